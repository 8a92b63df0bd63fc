"""A run can be repeated, stopped and gone on with, and ends with a policy that acts."""

import hashlib
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("sb3_contrib", reason="needs rlctl[train]")

import torch
import yaml
from stable_baselines3.common.save_util import load_from_zip_file

from rlctl.agents.served.bundle import load
from rlctl.agents.training.algorithms import make, take_weights
from rlctl.agents.training.evaluations import History
from rlctl.agents.training.host_kinds import build, load_hosts, present
from rlctl.agents.training.learn import TrainingBudget, learn
from rlctl.agents.training.recipe import load_recipe
from rlctl.agents.training.run_folder import is_run
from rlctl.agents.training.training_run import Ending, TrainingRun
from rlctl.agents.training.trial import Course
from rlctl.bench.scenarios import load_scenario
from rlctl.envs.actions import MOVES
from rlctl.envs.errors import BundleError, ConfigError

pytestmark = pytest.mark.train

HOSTS = load_hosts()


def run_of(folder, algorithm="ppo", timesteps=256, **changes):
    """A run of a second or two: few hosts, small batches, one short course."""
    recipe, _ = load_recipe(algorithm).fitted(timesteps, None)
    recipe = recipe.model_copy(update={"batch_size": 64})
    scenario = load_scenario("two-core")
    course = Course("two-core", scenario.host(), scenario.load_model, scenario.be.weight, 10)
    made = TrainingRun(algorithm, recipe, HOSTS, (course,), folder, validation_seeds=2, export=False)
    return replace(made, **changes)


def weights(path, network=""):
    _, parameters, _ = load_from_zip_file(path, device="cpu", load_data=False)
    return torch.cat([one.flatten() for name, one in parameters["policy"].items() if name.startswith(network)])


def checkpoint_of(folder):
    (one,) = (folder / "checkpoints").iterdir()
    return one, json.loads((one / "state.json").read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run of PPO that has spent its budget; it is only read."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert learn(run_of(folder)).ending is Ending.BUDGET
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_same_seed_gives_the_same_weights(algorithm, tmp_path):
    for name, seed in (("one", 3), ("again", 3), ("other", 4)):
        learn(run_of(tmp_path / name, algorithm, timesteps=256, seed=seed))
    one, again, other = (weights(checkpoint_of(tmp_path / name)[0] / "model.zip") for name in ("one", "again", "other"))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_stopped_run_goes_on_where_it_was(algorithm, tmp_path):
    asked = iter([False] * 30)
    stopped = learn(run_of(tmp_path, algorithm, 1024), stopped=lambda: next(asked, True))
    assert stopped.ending is Ending.STOPPED
    assert 0 < stopped.timesteps < 1024
    folder, before = checkpoint_of(tmp_path)
    assert before["timesteps"] == stopped.timesteps
    learned = weights(folder / "model.zip")
    assert (folder / "replay.npz").exists() == (algorithm == "dqn")
    resumed = learn(run_of(tmp_path, algorithm, 1024, resume=True))
    assert resumed.ending is Ending.BUDGET
    assert 1024 <= resumed.timesteps < 1024 + 2 * 256
    folder, after = checkpoint_of(tmp_path)
    assert not torch.equal(weights(folder / "model.zip"), learned)
    assert after["block"] == before["block"] + 1
    assert resumed.seconds > stopped.seconds
    with np.load(tmp_path / "evaluations.npz") as kept:
        assert kept["timesteps"].tolist() == [0, stopped.timesteps, resumed.timesteps]


@pytest.mark.slow
def test_lost_replay_buffer_is_collected_before_learning(tmp_path):
    """Else the first updates draw again and again from the few transitions that there are."""
    first, second = (iter([False] * steps) for steps in (30, 20))
    learn(run_of(tmp_path, "dqn", 1024), stopped=lambda: next(first, True))
    folder, before = checkpoint_of(tmp_path)
    (folder / "replay.npz").unlink()
    learned, told = weights(folder / "model.zip", "q_net."), []
    again = run_of(tmp_path, "dqn", 1024, resume=True)
    resumed = learn(again, lambda status: told.append(status.activity), stopped=lambda: next(second, True))
    assert "replay buffer was not kept" in told[0], "at the start, where it still helps"
    assert any("replay buffer was not kept" in remark for remark in resumed.remarks)
    folder, after = checkpoint_of(tmp_path)
    assert after["timesteps"] > before["timesteps"]
    assert torch.equal(weights(folder / "model.zip", "q_net."), learned)


def test_checkpoint_cut_short_does_not_count(finished, tmp_path):
    run = shutil.copytree(finished, tmp_path / "run")
    (run / "checkpoints" / "000000999999").mkdir()
    (run / "checkpoints" / "000000999999" / "model.zip.part").write_bytes(b"half")
    assert learn(run_of(run, resume=True)).timesteps == 256


def test_folder_with_run_is_not_written_over(finished, tmp_path):
    with pytest.raises(ConfigError, match="--resume"):
        learn(run_of(finished))
    with pytest.raises(ConfigError, match="no folder of a run"):
        learn(run_of(tmp_path / "none", resume=True))


@pytest.mark.slow
def test_a_run_without_gain_ends_early(tmp_path):
    run = run_of(tmp_path, timesteps=4096)
    recipe = run.recipe.model_copy(
        update={"learning_rate": 1e-12, "eval_every_timesteps": 256, "early_stop": 2, "n_epochs": 1}
    )
    result = learn(replace(run, recipe=recipe))
    assert result.ending is Ending.NO_GAIN
    assert result.timesteps < 4096


def test_time_is_a_budget_too(tmp_path):
    result = learn(run_of(tmp_path, timesteps=10**8, max_seconds=0.01))
    assert result.ending is Ending.BUDGET
    assert result.timesteps < 10**6
    assert any("leave no time to learn" in remark for remark in result.remarks)
    with np.load(tmp_path / "evaluations.npz") as kept:
        assert kept["timesteps"].tolist() == [0, result.timesteps]


def test_the_budget_covers_what_follows_learning():
    budget = TrainingBudget(10**6, 100.0, spent_seconds=80.0)
    assert not budget.is_time_up()
    budget.reserve_seconds = 15.0
    assert not budget.is_time_up()
    assert budget.is_time_up(5.0), "no time for one more evaluation"
    assert budget.left() == pytest.approx(0.05, abs=0.01)
    budget.reserve_seconds = 25.0
    assert budget.is_time_up()
    assert not TrainingBudget(10**6, None, spent_seconds=1e9).is_time_up()


def test_the_point_before_learning_is_no_candidate(tmp_path):
    history = History(tmp_path / "evaluations.npz", ())
    history._columns = {"merit": [90.0, 10.0, 20.0, 15.0], "timesteps": [0, 100, 200, 300]}
    assert (history.best_merit, history.without_gain) == (20.0, 1)


def test_bundle_of_run_acts_and_says_origin(tmp_path):
    result = learn(run_of(tmp_path, "maskable-ppo", export=True, seed=5, arguments={"seed": 5}, command="rlctl train"))
    bundle = load(result.bundle)
    logits = bundle.logits(np.zeros((3, bundle.card.observation.size), np.float32))
    assert logits.shape == (3, len(MOVES))
    assert bundle.card.training.seed == 5
    assert {plant.profile for plant in bundle.card.plants} >= {"thesis-host", "two-core-host", "two-core-nginx"}
    kinds = [kind for kind, _ in present(HOSTS, load_recipe("maskable-ppo", tmp_path / "config.yml").n_envs)]
    assert [plant.work for plant in bundle.card.plants] == [kind.work for kind in kinds]
    names = {one.name for one in tmp_path.iterdir()}
    assert names >= {
        "best_model.zip",
        "config.yml",
        "args.yml",
        "hosts.yml",
        "command.txt",
        "versions.yml",
        "tensorboard",
    }
    assert yaml.safe_load((tmp_path / "versions.yml").read_text())["torch"] == torch.__version__
    assert load_hosts(tmp_path / "hosts.yml") == HOSTS
    assert load_recipe("maskable-ppo", tmp_path / "config.yml").n_timesteps == 256


def test_curves_have_the_names_that_users_look_for(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    hosts = HOSTS.model_copy(update={"episode_steps": 20})
    run = run_of(tmp_path, hosts=hosts)
    learn(run)
    kind, _ = present(hosts, run.recipe.n_envs)[0]
    curves = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    curves.Reload()
    assert set(curves.Tags()["scalars"]) >= {
        "rollout/ep_rew_mean",
        "rollout/ep_len_mean",
        "time/fps",
        "train/approx_kl",
        "rlctl/slo_violation_ratio",
        "rlctl/be_throughput_ratio",
        "rlctl/shield_override_ratio",
        f"rlctl/{kind.name}/slo_violation_ratio",
        "eval/two-core/qos_percent",
        "eval/two-core/be_percent",
    }


def test_network_that_no_bundle_holds_is_not_learned(tmp_path):
    run = run_of(tmp_path, export=True)
    network = run.recipe.policy_kwargs.model_copy(update={"net_arch": (1024, 1024)})
    run = replace(run, recipe=run.recipe.model_copy(update={"policy_kwargs": network}))
    with pytest.raises(BundleError, match="has more than 4 MB"):
        learn(run, watch=lambda _: pytest.fail("it learns"))
    assert not is_run(tmp_path), "the folder is free"


@pytest.mark.slow
def test_weights_of_another_shape_are_refused(tmp_path):
    learn(run_of(tmp_path / "ppo"))
    best = tmp_path / "ppo" / "best_model.zip"
    began = run_of(tmp_path / "like", init=best)
    learn(began)
    with pytest.raises(ConfigError, match="does not fit"):
        learn(run_of(tmp_path / "dqn", "dqn", init=best))
    (tmp_path / "text.zip").write_text("no model")
    with pytest.raises(ConfigError, match="does not fit"):
        learn(run_of(tmp_path / "text", init=tmp_path / "text.zip"))


def test_run_that_could_not_begin_leaves_folder_free(tmp_path):
    (tmp_path / "text.zip").write_text("no model")
    with pytest.raises(ConfigError, match="does not fit"):
        learn(run_of(tmp_path / "run", init=tmp_path / "text.zip"))
    run = run_of(tmp_path / "run")
    with pytest.raises(ConfigError, match="ppo does not take these hyperparameters: Policy MlpPolcy unknown"):
        learn(replace(run, recipe=run.recipe.model_copy(update={"policy": "MlpPolcy"})))
    assert learn(run).ending is Ending.BUDGET


@pytest.mark.slow
def test_model_a_run_began_with_may_move(tmp_path):
    learn(run_of(tmp_path / "first"))
    init = (tmp_path / "first" / "best_model.zip").rename(tmp_path / "init.zip")
    learn(run_of(tmp_path / "second", init=init))
    init.unlink()
    resumed = learn(run_of(tmp_path / "second", init=init, resume=True, export=True))
    assert load(resumed.bundle).card.training.total_timesteps == 256


@pytest.mark.slow
def test_card_has_what_first_model_learned_from(tmp_path):
    one, other = (HOSTS.model_copy(update={"kinds": (kind,)}) for kind in HOSTS.kinds[:2])
    before = load(learn(run_of(tmp_path / "first", hosts=one, export=True)).bundle).card
    init = tmp_path / "first" / "best_model.zip"
    card = load(learn(run_of(tmp_path / "second", hosts=other, init=init, export=True)).bundle).card
    assert card.training.total_timesteps == 512
    assert card.training.hyperparameters["init"] == hashlib.sha256(init.read_bytes()).hexdigest()
    assert [*before.plants] == [*card.plants][1:]
    assert len(card.plants) == 2


def test_schedules_follow_what_is_left_of_the_budget():
    left = [1.0]
    recipe, _ = load_recipe("ppo").fitted(512, None)
    recipe = recipe.model_copy(update={"learning_rate": "lin_1e-3"})
    model = make("ppo", recipe, build(HOSTS, 8, 0, recipe.lags), lambda: left[0])
    assert model.lr_schedule(0.3) == pytest.approx(1e-3)
    left[0] = 0.0
    assert model.lr_schedule(0.3) == pytest.approx(5e-5)


def test_loading_weights_opens_no_pickle(finished, monkeypatch):
    import cloudpickle

    recipe, _ = load_recipe("ppo").fitted(512, None)
    model = make("ppo", recipe, build(HOSTS, 8, 0, recipe.lags), lambda: 1.0)

    def refuse(*_, **__):
        raise AssertionError("a pickle was opened")

    monkeypatch.setattr(cloudpickle, "loads", refuse)
    take_weights(model, finished / "best_model.zip")
