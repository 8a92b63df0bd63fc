"""A merged bundle answers the mean of its members, says who they are, and takes none that do not belong together."""

import pytest

pytest.importorskip("sb3_contrib", reason="needs rlctl[train]")

import numpy as np
from stable_baselines3 import DQN, PPO

from rlctl.agents.served import bundle
from rlctl.agents.training.export import FEWEST, export
from rlctl.agents.training.sb3_model import parts_of, recorded
from rlctl.agents.training.sb3_vec_env import SimVecEnv
from rlctl.cli import main
from rlctl.envs.observation import LAGS
from rlctl.envs.sim.vector_env import SimHostVectorEnv
from tests.doubles.rebuild import as_ppo

pytestmark = pytest.mark.train

LEARNERS = {
    PPO: {"n_steps": 4, "batch_size": 8},
    DQN: {"learning_starts": 1, "buffer_size": 100, "batch_size": 4},
}


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """Three bundles of PPO, one of DQN, one that sees another history."""
    folder = tmp_path_factory.mktemp("members")
    plan = [(PPO, seed, LAGS) for seed in range(3)] + [(DQN, 3, LAGS), (PPO, 4, (1, 0))]
    for learner, seed, lags in plan:
        env = SimVecEnv(SimHostVectorEnv(2, lags=lags))
        model = learner("MlpPolicy", env, seed=seed, device="cpu", **LEARNERS[learner])
        zipped = folder / f"{seed}.zip"
        model.save(zipped)
        parts = parts_of(model, zipped, lags)
        export(model, folder / str(seed), name=f"one-{seed}", card=parts, observations=recorded(lags, FEWEST))
    return [folder / str(seed) for seed in range(len(plan))]


@pytest.mark.slow
def test_it_answers_the_mean_and_names_its_members(members, tmp_path, capsys):
    assert main(["merge", *map(str, members[:3]), "--out", str(tmp_path / "mean")]) == 0
    assert "mean of 3" in capsys.readouterr().out
    seen = recorded(LAGS, FEWEST)
    merged = bundle.load(tmp_path / "mean")
    parts = [bundle.load(folder) for folder in members[:3]]
    assert merged.logits(seen) == pytest.approx(np.mean([one.logits(seen) for one in parts], axis=0), abs=1e-4)
    chosen, _ = as_ppo(merged).predict(seen, deterministic=True)
    assert np.array_equal(chosen, merged.logits(seen).argmax(axis=1))
    training = merged.card.training
    assert training.members == tuple(one.card.policy_sha256 for one in parts)
    assert training.total_timesteps == sum(one.card.training.total_timesteps for one in parts)
    assert main(["inspect", str(tmp_path / "mean")]) == 0
    assert "3 runs merged" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ([0], "name two or more"),
        ([0, 3], "no common algorithm: PPO, DQN"),
        ([0, 4], "no common lags"),
    ],
)
def test_unmatched_members_are_one_line(members, tmp_path, capsys, chosen, said):
    code = main(["merge", *(str(members[one]) for one in chosen), "--out", str(tmp_path / "mean")])
    assert code == 78
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert not (tmp_path / "mean").exists()


def test_a_bundle_that_is_there_stays_unless_forced(members, tmp_path, capsys):
    words = ["merge", *map(str, members[:2]), "--out", str(tmp_path / "mean")]
    assert main(words) == 0
    assert main(words) == 78
    assert "--force" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0
