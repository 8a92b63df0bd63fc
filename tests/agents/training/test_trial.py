"""A policy scores the same here, on all hosts at once, as in the benchmark, host by host."""

import numpy as np
import pytest

from rlctl.agents.policy import Policy
from rlctl.agents.training.evaluations import Evaluation, History, Judge
from rlctl.agents.training.trial import Course, always_frozen, frozen, score
from rlctl.bench import sim_run
from rlctl.bench.scenarios import load_scenario
from rlctl.bench.sim_run import SimTask, simulate
from rlctl.envs.actions import MOVES
from rlctl.envs.observation import LAGS
from rlctl.envs.sim.seeds import evaluation, training
from rlctl.envs.workload import Weight
from rlctl.learn.plan import course_of
from rlctl.safety.profile import load_profile

PREFERENCES = np.random.default_rng(3).normal(size=(400, len(MOVES))).astype(np.float32)
SEEDS = tuple(evaluation(number) for number in range(3))


def logits(observations):
    """Anything that depends on what is seen, computed row by row: a matrix product of one row rounds otherwise."""
    weights = PREFERENCES[: observations.shape[1]]
    return np.array([(row[:, None] * weights).sum(axis=0) for row in observations])


class HandMade(Policy):
    """The same preferences as a policy."""

    name, weight, masked, needs, note, remarks, learns = "hand-made", Weight.EQUAL, True, (), "", (), True

    def __init__(self, shielded):
        self.shielded = self.masked = shielded

    def start(self, limits):
        return limits.safe

    def act(self, observation):
        each = logits(observation.vector[None])[0]
        mask = observation.filter_moves(np.ones(len(MOVES), np.bool_) if observation.mask is None else observation.mask)
        return int(np.argmax(np.where(mask, each, -np.inf)))


@pytest.mark.parametrize("shielded", [True, False])
@pytest.mark.parametrize(("name", "vary"), [("noisy", False), ("two-core", False), ("two-core", True)])
def test_a_trial_agrees_with_the_benchmark(name, vary, shielded, monkeypatch):
    scenario = load_scenario(name).model_copy(update={"duration_seconds": 30.0, "vary": vary})
    profile = load_profile("responsive").scale_time(scenario.time_scale)
    weight = scenario.be.weight
    monkeypatch.setattr(sim_run, "policy_for", lambda *_: HandMade(shielded))
    benched = simulate(SimTask(scenario, scenario.host(), "hand-made", SEEDS, weight, profile)).values
    course = course_of(scenario, load_profile("responsive") if shielded else None)
    trial = score(course, logits, SEEDS, LAGS)
    assert np.array_equal(trial.qos_percent, benched["qos_guarantee_percent"])
    assert np.array_equal(trial.be_percent, benched["be_throughput_percent"])
    assert np.array_equal(trial.override_percent, benched["shield_override_percent"])
    assert trial.be_percent.min() > 0.0


def short_course(name="thesis", ticks=40):
    scenario = load_scenario(name)
    return Course(name, scenario.host(), scenario.load_model, scenario.be.weight, ticks, 1.0, None)


def test_without_be_target_holds_nothing_is_gained():
    trial = score(short_course("two-core"), always_frozen, [training(1), training(2)], (1, 0))
    assert (trial.qos_percent == 100.0).all()
    assert (trial.be_percent < 0.5).all()


@pytest.mark.parametrize("name", ["two-core", "thesis", "capped-link"])
def test_asked_qos_is_that_without_be(name):
    """Also where BE has the least weight: there a host lifts a learned policy's BE to everything."""
    assert (frozen(short_course(name), [training(1), training(2)]).be_percent < 0.5).all()


def greedy(observations):
    wanted = np.zeros((len(observations), len(MOVES)))
    wanted[:, max(range(len(MOVES)), key=lambda move: MOVES[move].quota_ratio or 0.0)] = 1.0
    return wanted


def test_no_be_work_pays_for_qos():
    judge = Judge([short_course("two-core")], [training(number) for number in range(4)], (1, 0))
    careful = judge.evaluate(always_frozen, 0, 0.0)
    careless = judge.evaluate(greedy, 0, 0.0)
    assert careless.mean("be_percent") > careful.mean("be_percent") + 10.0
    assert careless.mean("qos_percent") < careful.mean("qos_percent") - 1.0
    assert careless.merit < careful.merit


def test_history_has_the_shape_sb3_reads(tmp_path):
    courses = [short_course(ticks=20), short_course("two-core", 30)]
    judge, history = Judge(courses, [training(1), training(2)], (0,)), History(tmp_path / "evaluations.npz", courses)
    done = judge.evaluate(always_frozen, 100, 1.0)
    for timesteps, merit in ((100, 5.0), (200, 7.0), (300, 6.0)):
        history.add(Evaluation(timesteps, 1.0, done.trials, merit))
    again = History(tmp_path / "evaluations.npz", courses)
    assert (len(again), again.best_merit, again.without_gain) == (3, 7.0, 1)
    again.add(Evaluation(400, 2.0, done.trials, 1.0))
    with np.load(tmp_path / "evaluations.npz") as kept:
        assert kept["timesteps"].tolist() == [100, 200, 300, 400]
        assert kept["results"].shape == kept["ep_lengths"].shape == (4, 4)
        assert kept["ep_lengths"][0].tolist() == [20, 20, 30, 30]
