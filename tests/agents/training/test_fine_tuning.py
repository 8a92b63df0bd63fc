"""Fine-tuning on a live host, here a fake one: what is learned, what is kept, and what a reader is told."""

import contextlib
import json

import numpy as np
import pytest

pytest.importorskip("sb3_contrib", reason="needs rlctl[train]")

import torch
from sb3_contrib import QRDQN
from stable_baselines3 import DQN, PPO

from rlctl.agents.served.bundle import load
from rlctl.agents.training.live.bounded import Bounds
from rlctl.agents.training.rollouts import fine_tuning, live_testbed
from rlctl.agents.training.rollouts.fine_tuning import FineTuning, FineTuningTask, Phase, rounds_of
from rlctl.envs.actions import MOVES
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import ConfigError, HostError
from rlctl.envs.host_env import HostEnv
from rlctl.safety.wrapper import ShieldedEnv
from tests.doubles.bed import Bed, running_on
from tests.doubles.plant import BreakingPlant, FakePlant

pytestmark = pytest.mark.train

LIMITS = Limits(cpus=2)
LEARNERS = {"dqn": DQN, "qrdqn": QRDQN, "ppo": PPO}


def initial(path, algorithm="dqn", move="quota-11%"):
    """A tiny model that prefers one move."""
    env = HostEnv(FakePlant(LIMITS))
    few = {"n_steps": 8, "batch_size": 8} if algorithm == "ppo" else {"buffer_size": 8}
    model = LEARNERS[algorithm]("MlpPolicy", env, policy_kwargs={"net_arch": [8]}, device="cpu", seed=0, **few)
    index = [one.name for one in MOVES].index(move)
    with torch.no_grad():
        last = {
            "dqn": lambda: model.q_net.q_net[-1],
            "qrdqn": lambda: model.quantile_net.quantile_net[-1],
            "ppo": lambda: model.policy.action_net,
        }[algorithm]()
        bias = last.bias.view(-1, len(MOVES))
        bias[:, index] += 3.0
    model.save(path)
    return path


def task(tmp_path, algorithm="dqn", **changes):
    given = {"timesteps": 90, "evaluation_ticks": 10, "seed": 1} | changes
    return FineTuningTask(init=initial(tmp_path / "initial.zip", algorithm), folder=tmp_path / "run", **given)


def fine_tuned(one, plant):
    """A task done on a plant; what came of it."""
    return learned(one, plant)[0]


def learned(one, plant):
    """A task done on a plant; what came of it, and the learner."""
    tuning = FineTuning(one)
    with contextlib.closing(running_on(Bed(plant), one.bounds)) as running:
        return tuning.run(running), tuning.learner


def lines(folder):
    return [json.loads(line) for line in (folder / fine_tuning.files.TRANSITIONS).read_text().splitlines()]


@pytest.mark.parametrize("algorithm", ["dqn", pytest.param("qrdqn", marks=pytest.mark.slow), "ppo"])
def test_it_measures_learns_measures_and_leaves_a_bundle(algorithm, tmp_path):
    bed = Bed(FakePlant(LIMITS, loads=(0.2, 0.5, 0.3)))
    tuning = FineTuning(task(tmp_path, algorithm))
    with contextlib.closing(running_on(bed)) as running:
        outcome = tuning.run(running)
    assert [one.name for one in outcome.phases] == ["before", "learning 1", "after 1"]
    assert [one.ticks for one in outcome.phases] == [10, 90, 10]
    assert bed.diary[4:-2] == ["load"] * 4, "at the start, and with each phase"
    assert outcome.timesteps == 90
    assert outcome.phases[0].explored == outcome.phases[2].explored == 0
    record = lines(tmp_path / "run")
    assert [line["phase"] for line in record] == ["before"] * 10 + ["learning 1"] * 90 + ["after 1"] * 10
    told = json.loads((tmp_path / "run" / "live.json").read_text())
    assert told["improved"] == outcome.improved
    card = load(tuning.export(outcome, "tiny")).card
    assert card.training.hyperparameters["live"]["kept_initial"] == (not outcome.improved)


@pytest.mark.slow
def test_exploration_is_seldom_and_never_leaves_the_bounds(tmp_path):
    plant = FakePlant(LIMITS, loads=(0.2,) * 20 + (0.95,) * 5)
    outcome = fine_tuned(task(tmp_path, timesteps=250), plant)
    learning = outcome.phases[1]
    assert 0 < learning.explored <= 0.2 * learning.ticks
    for line in lines(tmp_path / "run"):
        assert line["proposed"] == line["chosen"] or not line["overridden"]


class LateMask(ShieldedEnv):
    """As if the host had gone on between mask and verdict."""

    def action_masks(self):
        return np.ones(len(MOVES), bool)


def test_transition_stores_executed_move_without_asking_cost(tmp_path, monkeypatch):
    """L10. The policy asks for BE to run when the load has risen, and the shield freezes BE."""
    monkeypatch.setattr(live_testbed, "ShieldedEnv", LateMask)
    plant = FakePlant(LIMITS, loads=(0.2,) * 6 + (0.99,) * 4)
    _, learner = learned(task(tmp_path, timesteps=60), plant)
    record = [line for line in lines(tmp_path / "run") if line["phase"] == "learning 1"]
    buffer = learner.replay_buffer
    index = {move.name: place for place, move in enumerate(MOVES)}
    assert buffer.actions[:60, 0, 0].tolist() == [index[line["executed"]] for line in record]
    own = [sum(line["reward"].values()) - line["reward"]["override"] for line in record]
    assert np.allclose(buffer.rewards[:60, 0], own, atol=1e-5)
    assert any(line["overridden"] and line["proposed"] == "quota-11%" != line["executed"] for line in record)
    assert np.allclose(buffer.observations[5, 0], record[5]["observation"], atol=1e-6)


def test_ppo_is_rated_by_its_drawing_distribution(tmp_path):
    """Where there was one move its probability is 1; rated as unbounded, moves would be taught that none could draw."""
    one = task(tmp_path, "ppo", timesteps=60, bounds=Bounds(1.0, 0.5))
    kept = learned(one, FakePlant(LIMITS, loads=(0.2, 0.2, 0.7)))[1].rollout_buffer
    masks = kept.action_masks.reshape(-1, len(MOVES)).astype(bool)
    drawn, chances = kept.actions.reshape(-1).astype(int), np.exp(kept.log_probs.reshape(-1))
    assert masks[np.arange(60), drawn].all()
    alone = masks.sum(axis=1) == 1
    assert np.allclose(chances[alone], 1.0)
    assert (~alone).any()
    assert (chances[~alone] < 1.0).all()


def test_only_better_in_qos_then_be_is_kept(tmp_path, monkeypatch):
    """A round that got more BE for a violation is thrown away."""

    def phase(violations, be_work):
        return Phase("x", ticks=10, violations=violations, be_work=be_work)

    assert phase(0, 1.0).rank > phase(1, 9.0).rank
    assert phase(0, 2.0).rank > phase(0, 1.0).rank
    saved = []
    monkeypatch.setattr(fine_tuning, "save", lambda model, path: saved.append(path))
    results = iter([phase(1, 2.0), phase(2, 9.0), phase(1, 3.0), phase(1, 3.0)])
    monkeypatch.setattr(FineTuning, "_learn", lambda self, number, ticks: None)
    monkeypatch.setattr(FineTuning, "_measure", lambda self, name: self.phases.append(next(results)) or self.phases[-1])
    monkeypatch.setattr(fine_tuning, "rounds_of", lambda timesteps: (3, 30, 30))
    outcome = fine_tuned(task(tmp_path), FakePlant(LIMITS))
    assert outcome.interrupted == ""
    assert outcome.best.be_work == 3.0
    assert len(saved) == 1, "as good is not better"


def test_measured_survives_an_error(tmp_path):
    outcome = fine_tuned(task(tmp_path), BreakingPlant(40, HostError("gone"), loads=(0.2,)))
    assert outcome.interrupted == "gone"
    assert not outcome.improved
    assert (tmp_path / "run" / "best_model.zip").read_bytes() == (tmp_path / "initial.zip").read_bytes()
    assert len(lines(tmp_path / "run")) == outcome.phases[0].ticks + outcome.phases[1].ticks


def test_an_error_before_the_first_measurement_is_raised(tmp_path):
    with pytest.raises(HostError, match="gone"):
        fine_tuned(task(tmp_path), BreakingPlant(5, HostError("gone"), loads=(0.2,)))


def test_folder_with_run_or_other_lags_is_refused(tmp_path):
    one = task(tmp_path)
    FineTuning(one)
    (tmp_path / "run" / fine_tuning.files.TRANSITIONS).touch()
    with pytest.raises(ConfigError, match="holds a run already"):
        FineTuning(one)
    env = HostEnv(FakePlant(LIMITS), lags=(1, 0))
    DQN("MlpPolicy", env, policy_kwargs={"net_arch": [8]}, buffer_size=8, device="cpu").save(tmp_path / "short.zip")
    with pytest.raises(ConfigError, match="folder of its run"):
        FineTuning(FineTuningTask(tmp_path / "short.zip", tmp_path / "other", 10))
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("timesteps", [2, 15, 60, 101, 300, 301, 600, 999])
def test_rounds_spend_the_budget_and_no_more(timesteps):
    count, each, rollout = rounds_of(timesteps)
    assert each % rollout == 0
    assert each <= 300
    assert 0.9 * timesteps <= count * each <= timesteps
