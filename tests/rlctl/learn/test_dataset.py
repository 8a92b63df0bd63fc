"""`rlctl dataset` and `rlctl train --offline`: Minari loads what is written, and a mistake is one line and no file."""

import contextlib
import importlib.util
import json
from types import SimpleNamespace

import numpy as np
import pytest

from rlctl.agents.served import bundle
from rlctl.agents.training.offline import writer as dataset_writer
from rlctl.agents.training.offline.dataset import TERMS, dataset_folder, read, read_origin
from rlctl.cli import main
from rlctl.envs.actions import MOVES, discrete_space
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import ConfigError
from rlctl.envs.observation import Observer

needs_minari = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("minari", "h5py")), reason="needs rlctl[data]"
)
needs_training = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "sb3_contrib")),
    reason="needs rlctl[train]",
)
RECORD = ("dataset", "record", "--scenario", "two-core", "--duration", "20", "--managers", "feedforward,greedy-shield")


@pytest.fixture
def exported(tmp_path, recorded_run, monkeypatch):
    """A log as a dataset below Minari's own folder."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    log = recorded_run(rotate_bytes=70_000).go(90)
    assert main(["dataset", "export", str(log), "--out", "rlctl/fake-v0"]) == 0
    return log


@needs_minari
def test_minari_recovers_the_simulated_host(tmp_path, monkeypatch):
    import minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    assert main([*RECORD, "--out", "rlctl/hosts-v0"]) == 0
    dataset = minari.load_dataset("rlctl/hosts-v0")
    worst, best = (dataset.storage.metadata[f"ref_{end}_score"] for end in ("min", "max"))
    assert minari.get_normalized_score(dataset, np.array([worst, best])).tolist() == [0.0, 1.0]
    assert worst < 0.0 < best  # random moves miss many windows, and the shipped policy earns
    env = dataset.recover_environment()
    assert env.spec.kwargs["profile"] == "two-core-host"
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert env.step(0)


@needs_minari
def test_minari_loads_what_a_log_was_exported_to(exported, capsys):
    import minari

    assert "rlctl/fake-v0" in minari.list_local_datasets()
    found = minari.load_dataset("rlctl/fake-v0")
    assert found.observation_space == Observer(Limits(1), 1.0).space
    assert found.action_space == discrete_space()
    assert found.recover_environment().observation_space == found.observation_space
    assert found.total_steps == sum(len(one) for one in found) == 89
    ours = read(dataset_folder("rlctl/fake-v0"))
    for episode in found:
        assert all(found.observation_space.contains(one) for one in episode.observations)
        assert all(found.action_space.contains(one) for one in episode.actions)
        assert len(episode.observations) == len(episode.infos["action_mask"]) == len(episode) + 1
        assert episode.infos["action_mask"].shape[1] == len(MOVES)
        assert np.allclose(episode.rewards, episode.infos["reward_terms"].sum(axis=1))
        assert not episode.terminations.any()
        assert episode.truncations.tolist() == [False] * (len(episode) - 1) + [True]
        mine = ours.episode == episode.id
        assert np.array_equal(ours.observations[ours.state[mine]], episode.observations[:-1])
        assert np.array_equal(ours.observations[ours.state[mine] + 1], episode.observations[1:])
        assert np.array_equal(ours.actions[mine], episode.actions)
        assert np.array_equal(ours.terms[mine], episode.infos["reward_terms"].astype(np.float32))
    assert ours.origin.policies["always"].transitions == 89
    assert 0 < ours.origin.policies["always"].override_percent <= 100
    capsys.readouterr()
    assert main(["dataset", "show", "rlctl/fake-v0"]) == 0
    out = capsys.readouterr().out
    assert "rlctl/fake-v0: 89 transitions of 90 ticks of 1 s" in out
    assert str(exported) in out


@needs_minari
def test_the_same_log_is_the_same_dataset(exported, tmp_path, capsys):
    assert main(["dataset", "export", str(exported), "--out", str(tmp_path / "again"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    first = read_origin(dataset_folder("rlctl/fake-v0"))
    assert said["sha256"] == first.sha256
    assert said["sources"] == first.model_dump(mode="json")["sources"]
    assert said["id"] == "again-v0"


@needs_minari
def test_simulated_hosts_are_recorded_beside_us(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = tmp_path / "hosts.yaml"
    kind = "{name: a, profile: two-core-host, weight: equal, safety: null, absent: [cpi], share: 1}"
    small.write_text(f"episode_steps: 30\nkinds:\n  - {kind}\n")
    assert main([*RECORD, "--hosts", "1", "--hosts-file", str(small), "--out", "./sim"]) == 0
    origin = read_origin(dataset_folder(str(tmp_path / "sim")))
    assert list(origin.policies) == ["feedforward", "greedy-shield"]
    assert [one.kind for one in origin.sources] == ["simulator"] * len(origin.sources)
    assert origin.sources[0].weight is not None
    assert [one.absent for one in origin.sources] == [(), ("cpi",)]
    data = read(dataset_folder(str(tmp_path / "sim")))
    assert data.masks[data.state, data.actions].all()
    assert (np.diff(data.state) == 1 + np.diff(data.episode)).all(), "an episode's last state begins no transition"
    assert "two-core-host" in capsys.readouterr().out


@needs_minari
def test_nothing_is_overwritten_and_nothing_half_written_stays(tmp_path, recorded_run, capsys):
    log = recorded_run().go(1)
    assert main(["dataset", "export", str(log), "--out", str(tmp_path / "none")]) == 78
    assert "no transition is left" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    assert main([*RECORD, "--out", str(tmp_path / "some")]) == 0
    before = (tmp_path / "some" / "data" / "metadata.json").read_bytes()
    assert main([*RECORD, "--out", str(tmp_path / "some")]) == 78
    assert (tmp_path / "some" / "data" / "metadata.json").read_bytes() == before
    assert sorted(path.name for path in (tmp_path / "some").iterdir()) == ["data"]


@needs_minari
def test_full_disk_is_told_before_hdf5(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(dataset_writer.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    assert main([*RECORD, "--out", str(tmp_path / "some")]) == 75
    assert f"{tmp_path / 'some'}: less than 64 MiB are free there" in capsys.readouterr().err
    assert not (tmp_path / "some").exists()


@needs_minari
def test_damaged_data_are_told(tmp_path):
    import h5py

    assert main([*RECORD, "--out", str(tmp_path / "some")]) == 0
    file = tmp_path / "some" / "data" / "main_data.hdf5"
    with h5py.File(file, "a") as stored:
        stored["episode_0"]["actions"][3] = len(MOVES)
    with pytest.raises(ConfigError, match="episode 0: a move that is none; export it again"):
        read(dataset_folder(str(tmp_path / "some")))
    said = json.loads((told := file.with_name("metadata.json")).read_text())
    told.write_text(json.dumps(said | {"total_episodes": 0}))
    with pytest.raises(ConfigError, match="holds 0 of 38 transitions"):
        read(dataset_folder(str(tmp_path / "some")))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(ConfigError, match="cannot be read"):
        read(dataset_folder(str(tmp_path / "some")))


def test_others_dataset_is_refused(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for said, why in (
        ("{", "cannot be read"),
        ("{}", "no dataset of rlctl's"),
        (json.dumps({"rlctl": {"schema_version": 1}}), "metadata.json"),
    ):
        (data / "metadata.json").write_text(said)
        with pytest.raises(ConfigError, match=why):
            read_origin(dataset_folder(str(tmp_path)))
    with pytest.raises(ConfigError, match="holds no dataset"):
        read_origin(dataset_folder(str(tmp_path / "nowhere")))


def test_id_is_minaris_else_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    assert dataset_folder("rlctl/nginx-v0").folder == tmp_path / "rlctl" / "nginx-v0"
    for folder in ("./nginx-v0", "/x/nginx-v0", "nginx", "runs/1"):
        assert dataset_folder(folder).folder.as_posix() == folder.removeprefix("./")
    assert dataset_folder("/x/nginx-v3").name == "nginx-v3"
    assert dataset_folder("/x/my data.1").name == "my-data-1-v0"
    monkeypatch.delenv("MINARI_DATASETS_PATH")
    monkeypatch.setenv("HOME", "/nobody")
    assert dataset_folder("nginx-v0").folder.as_posix() == "/nobody/.minari/datasets/nginx-v0"


def test_without_minari_one_line_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("rlctl.envs.errors.find_spec", lambda name: None)
    assert main([*RECORD, "--out", str(tmp_path / "x")]) == 78
    err = capsys.readouterr().err
    assert err == (
        "rlctl: error: a dataset needs minari, h5py: pip install 'rlctl[data]', or in a checkout "
        "scripts/install dev,data\n"
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("dataset", "record", "--out", "x"), "nothing to record on"),
        (("dataset", "record", "--scenario", "live-nginx", "--out", "x"), "export those"),
        (("dataset", "record", "--hosts", "1", "--managers", "nobody", "--out", "x"), "no manager 'nobody'"),
        (("dataset", "record", "--hosts", "1", "--managers", ",", "--out", "x"), "--managers names nothing"),
        (("dataset", "record", "--hosts", "1", "--seeds", "2", "--out", "x"), "--seeds goes with --scenario"),
        ((*RECORD, "--hosts-file", "hosts.yaml", "--out", "x"), "--hosts-file goes with --hosts N"),
        ((*RECORD, "--scenario", ",", "--out", "x"), "--scenario names nothing"),
        (("dataset", "export", "/nowhere", "--out", "x"), "/nowhere"),
        (("dataset", "show", "/nowhere"), "holds no dataset"),
        (("train", "--algo", "cql"), "give --offline"),
    ],
)
def test_a_mistake_is_one_line(words, why, tmp_path, monkeypatch, capsys):
    pytest.importorskip("minari", reason="needs rlctl[data]")
    monkeypatch.chdir(tmp_path)
    assert main(list(words)) == 78
    err = capsys.readouterr().err.splitlines()
    assert why in err[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@needs_minari
@needs_training
@pytest.mark.train
def test_training_from_dataset_is_checked_and_scored(tmp_path, capsys):
    where = str(tmp_path / "sim")
    assert main([*RECORD, "--seeds", "3", "--out", where]) == 0
    for words, why in (
        (("--algo", "ppo"), "--offline takes --algo bc or cql"),
        (("--algo", "bc", "--n-envs", "3"), "--n-envs means nothing with --offline"),
        (("--algo", "bc", "--shield", "knee"), "give --scenario"),
    ):
        assert main(["train", "--offline", where, *words]) == 78
        assert why in capsys.readouterr().err
    assert main(["train", "--offline", where, "--algo", "bc", "--dry-run"]) == 0
    assert "cloned: " in capsys.readouterr().out
    out = tmp_path / "run"
    words = ["train", "--offline", where, "--algo", "bc", "--total-timesteps", "8", "--out", str(out)]
    assert main([*words, "--config", str(_small(tmp_path)), "--json", str(tmp_path / "told.json")]) == 0
    assert "selected by fitted Q evaluation" in capsys.readouterr().out
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["dataset"]["transitions"] == 114
    assert bundle.read(out / "bundle")[0].training.hyperparameters["dataset"]["id"] == "sim-v0"


def _small(folder):
    file = folder / "bc.yaml"
    file.write_text(
        "rlctl/SimHost-v0:\n  n_updates: 9\n  rounds: 1\n  learning_rate: 1.0e-3\n  batch_size: 16\n  held_out: 0.4\n"
    )
    return file


@needs_minari
@needs_training
@pytest.mark.train
def test_live_trainings_steps_are_transitions(tmp_path):
    from stable_baselines3 import DQN

    from rlctl.agents.training.rollouts.fine_tuning import FineTuning, FineTuningTask
    from rlctl.envs.host_env import HostEnv
    from rlctl.learn.dataset_sources import recording_of
    from tests.doubles.bed import Bed, running_on
    from tests.doubles.plant import FakePlant

    limits = Limits(cpus=2)
    model = DQN("MlpPolicy", HostEnv(FakePlant(limits)), policy_kwargs={"net_arch": [8]}, buffer_size=8, device="cpu")
    model.save(tmp_path / "initial.zip")
    task = FineTuningTask(tmp_path / "initial.zip", tmp_path / "run", timesteps=40, evaluation_ticks=10, seed=1)
    with contextlib.closing(running_on(Bed(FakePlant(limits, loads=(0.2, 0.5, 0.9), tick_seconds=0.5)))) as running:
        FineTuning(task).run(running)
    file = tmp_path / "run" / "transitions.jsonl"
    said = [json.loads(line) for line in file.read_text().splitlines()]
    with file.open("a") as stream:
        stream.write('{"phase": "after 1", "obs')  # a crash
    found = recording_of(tmp_path / "run", None, lambda damage: pytest.fail(str(damage)))
    assert [len(one) for one in found.episodes] == [9, 39, 9]
    assert found.source.kind == "train-live"
    assert found.tick_seconds == 0.5
    steps = [line for line in said if line["phase"] == "learning 1"][:-1]
    learning = found.episodes[1]
    assert [MOVES[move].name for move in learning.actions] == [line["executed"] for line in steps]
    recorded = np.array([[line["reward"][name] for name in TERMS] for line in steps])
    assert np.allclose(learning.reward_terms, recorded, atol=1e-5), "the same reward, computed anew"
    assert learning.explored.tolist() == [line["proposed"] != line["chosen"] for line in steps]
    assert not learning.action_mask.all()
    assert learning.action_mask[np.arange(39), learning.actions].all()
