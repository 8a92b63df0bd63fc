"""Learning from a dataset alone: what is learned, from what, and a bundle like any other at the end."""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("sb3_contrib", reason="needs rlctl[train]")

import torch

from rlctl.agents.served.bundle import load
from rlctl.agents.served.learned import LearnedPolicy
from rlctl.agents.training.offline import learners
from rlctl.agents.training.offline.dataset import Dataset, Origin, PolicyCounts, Source
from rlctl.agents.training.offline.learners import Cloner, learner_of, parted, rewards_of, teacher_of, value_of
from rlctl.agents.training.offline.training import OfflineRun, learn_offline
from rlctl.agents.training.recipe import OFFLINE, recipe_file
from rlctl.agents.training.sb3_model import lags_of, load_model
from rlctl.agents.training.trial import Course
from rlctl.envs.actions import MOVES, MOVES_VERSION
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import ConfigError
from rlctl.envs.observation import LAGS, VERSION, Observer
from rlctl.envs.reward import WORK
from rlctl.envs.sim.loads_training import training_load
from rlctl.envs.sim.profile import load_profile as load_profile_of_host
from rlctl.envs.workload import Weight
from rlctl.log.kept import MemoryRecorder
from rlctl.loop.control import Controller
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield
from tests.doubles.plant import FakePlant

pytestmark = pytest.mark.train

SIZE = Observer(Limits(1), 1.0).size
STEPS = 10
NAMES = [move.name for move in MOVES]
GOOD, BAD, BARRED = NAMES.index("quota-25%"), NAMES.index("quota-100%"), NAMES.index("quota-51%")


def counts(qos, be, transitions=100):
    return PolicyCounts(
        transitions=transitions, qos_percent=qos, be_percent=be, override_percent=0.0, explored_percent=0.0
    )


def test_who_stood_in_is_not_cloned():
    acted = {"ppo": counts(99.7, 30.0, 80_000), "safe": counts(100.0, 0.0, 20), "bold": counts(90.0, 60.0, 70_000)}
    assert teacher_of(origin(150_020, acted)) == "ppo"


def source(transitions, **changes):
    given = {"kind": "tick log", "name": "log", "sha256": "0" * 64, "host": "2 CPUs", "hosts": 1}
    return Source(**given | {"ticks": transitions, "transitions": transitions} | changes)


def origin(transitions, policies=None, sources=None):
    return Origin(
        rlctl="0",
        code="0",
        observation_version=VERSION,
        moves_version=MOVES_VERSION,
        lags=LAGS,
        tick_seconds=1.0,
        sha256="ab" * 32,
        episodes=transitions // STEPS,
        ticks=transitions,
        transitions=transitions,
        censored={},
        policies=policies or {"cautious": counts(99.9, 20.0, transitions // 2), "bold": counts(90.0, 60.0)},
        sources=sources or (source(transitions),),
    )


def bandit(episodes=40, seed=0):
    """States that say nothing, a good move and a bad one, and one that the shield bars everywhere."""
    dice, n = np.random.default_rng(seed), episodes * STEPS
    policy = np.repeat(np.arange(episodes) % 2, STEPS)
    actions = np.where(dice.random(n) < 0.8, np.where(policy == 0, GOOD, BAD), np.where(policy == 0, BAD, GOOD))
    terms = np.zeros((n, 5), np.float32)
    terms[:, 0] = np.where(actions == BAD, -1.0, 0.0)
    terms[:, 2] = np.where(actions == GOOD, 0.06, 0.0)
    masks = np.ones((episodes * (STEPS + 1), len(MOVES)), np.bool_)
    masks[:, BARRED] = False
    first = np.repeat(np.arange(episodes) * (STEPS + 1), STEPS)
    seen = dice.uniform(-1, 1, (len(masks), SIZE)).astype(np.float32)
    seen[:, -1] = 0.0  # the usual price of a violation
    return Dataset(
        name="bandit-v0",
        origin=origin(n),
        observations=seen,
        masks=masks,
        state=first + np.tile(np.arange(STEPS), episodes),
        episode=np.repeat(np.arange(episodes), STEPS),
        actions=actions,
        proposed=actions,
        terms=terms,
        policy=policy,
    )


def task(tmp_path, algorithm="cql", data=None, **changes):
    small = {"n_updates": 160, "rounds": 2, "batch_size": 64} | changes
    recipe = recipe_file(OFFLINE[algorithm], algorithm, None).model_copy(update=small)
    if algorithm == "cql":
        network = recipe.policy_kwargs.model_copy(update={"net_arch": (16,), "n_quantiles": 4})
        recipe = recipe.model_copy(update={"policy_kwargs": network, "target_update_interval": 20})
    return OfflineRun(algorithm, recipe, data or bandit(), tmp_path / "run", arguments={"algo": algorithm})


def chosen(outcome):
    """What the bundle does in most states, where nothing is barred."""
    bundle = load(outcome.bundle)
    logits = bundle.logits(outcome.run.dataset.observations)
    return NAMES[np.bincount(logits.argmax(axis=1), minlength=len(MOVES)).argmax()]


def test_clone_is_judged_by_unseen_episodes(tmp_path):
    given = task(tmp_path, "bc")
    cloner = Cloner(given.dataset, given.recipe, given.seed)
    _, judged = parted(given.dataset, given.recipe.held_out, given.seed)
    assert not set(given.dataset.episode[cloner.train]) & set(given.dataset.episode[judged])
    assert set(given.dataset.policy[cloner.train]) == {0}


@pytest.mark.parametrize("algorithm", ["bc", pytest.param("cql", marks=pytest.mark.slow)])
def test_some_updates_end_in_a_bundle_that_serves(algorithm, tmp_path):
    """It finds the good move among what two policies did, one of which mostly violated."""
    outcome = learn_offline(task(tmp_path, algorithm))
    assert chosen(outcome) == "quota-25%"
    card = load(outcome.bundle).card
    assert card.algorithm == algorithm.upper()
    told = card.training.hyperparameters
    assert told["dataset"]["id"] == "bandit-v0"
    assert told["dataset"]["transitions"] == card.training.total_timesteps == 400
    assert told["dataset"]["sources"] == ["tick log log, sha256 000000000000"]
    assert told["selected_by"].startswith("fitted Q evaluation")
    assert told.get("teacher") == ("cautious" if algorithm == "bc" else None)
    kept = json.loads((tmp_path / "run" / "offline.json").read_text())
    assert kept["best"] == outcome.best.updates
    plant, recorder = FakePlant(Limits(cpus=2), loads=(0.2,)), MemoryRecorder()
    policy = LearnedPolicy(load(outcome.bundle))
    controller = Controller(plant, policy, Shield(load_profile("responsive"), plant.limits), recorder)
    controller.begin()
    for _ in range(5):
        plant.wait()
        controller.tick()
    assert len(recorder.ticks) == 5
    with pytest.raises(ConfigError, match="holds a run already"):
        learn_offline(task(tmp_path, algorithm))


@pytest.mark.parametrize("algorithm", list(OFFLINE))
def test_model_can_be_fine_tuned(algorithm, tmp_path):
    learn_offline(task(tmp_path, algorithm, n_updates=2))
    model = tmp_path / "run" / "best_model.zip"
    assert lags_of(model, load_model(model)) == LAGS


@pytest.mark.slow
def test_stopped_run_judges_and_exports(tmp_path):
    asked = iter([False] * 4)
    outcome = learn_offline(task(tmp_path, "bc"), stopped=lambda: next(asked, True))
    assert [one.updates for one in outcome.rounds] == [5]
    assert load(outcome.bundle).card.training.hyperparameters["stopped_after_updates"] == 5


def test_the_card_says_which_sensors_the_hosts_lacked(tmp_path):
    """Else the policy is taken off such hosts for a sensor that it never had."""
    data = bandit()
    blind = source(len(data), kind="simulator", weight=Weight.EQUAL, work=WORK, absent=("cpi",))
    run = task(tmp_path, "bc", replace(data, origin=origin(len(data), sources=(blind,))), n_updates=2)
    (plant,) = load(learn_offline(run).bundle).card.plants
    assert plant.absent == ("cpi",)


def test_the_same_seed_learns_the_same(tmp_path):
    one, other = (learn_offline(task(tmp_path / name, n_updates=20)) for name in ("a", "b"))
    assert (one.bundle / "weights.npz").read_bytes() == (other.bundle / "weights.npz").read_bytes()


def test_barred_moves_are_neither_feared_nor_hoped(tmp_path):
    """Their values are nobody's: no data, no part in the maximum, no gradient."""
    run = task(tmp_path)
    learner = learner_of(run.dataset, run.recipe, run.seed)
    last = learner.model.quantile_net.quantile_net[-1]
    with torch.no_grad():
        last.bias.view(-1, len(MOVES))[:, BARRED] += 1e3
    rows = np.arange(32)
    targets = learner._targets(rows)
    assert targets.abs().max() < 10.0
    loss = learner.update(rows)
    assert loss.item() < 10.0
    last.bias._backward_hooks.clear()  # what neighbours would share is not the question
    loss.backward()
    assert last.bias.grad.view(-1, len(MOVES))[:, BARRED].abs().max() == 0.0


def test_move_that_happened_counts_despite_mask():
    """A shield's own quota may lie nearest to a move that it would not have let through."""
    data = bandit(2)
    data.masks[:, GOOD] = False
    allowed = learners._allowed(data, np.arange(3), np.array([GOOD, GOOD, BAD]))
    assert allowed[:2, GOOD].all()
    assert not allowed[2, GOOD]
    assert not data.masks[:, GOOD].any(), "the dataset stays as it is"


def test_teacher_is_best_by_qos_then_be():
    policies = {
        "frozen": counts(99.95, 0.0),
        "b": counts(99.9, 40.0),
        "c": counts(99.88, 50.0),
        "d": counts(98.0, 90.0),
    }
    assert teacher_of(origin(400, policies)) == "c", "0.1 points are no difference"
    assert teacher_of(origin(400, {**policies, "e": counts(99.99, 10.0)})) == "b"


def test_rewards_take_each_sources_price():
    data = bandit(4)
    terms = np.tile(np.array([-0.01, 0.0, 0.5 * WORK, -0.002, -0.004], np.float32), (40, 1))
    priced = origin(40, sources=(source(10), source(30, kind="simulator", work=2 * WORK)))
    data = replace(data, terms=terms, origin=priced)
    found = rewards_of(data, None)
    assert found[:10] == pytest.approx(-0.012 + 0.5 * WORK, abs=1e-6)
    assert found[10:] == pytest.approx(-0.012 + WORK, abs=1e-6)
    assert rewards_of(data, WORK)[10:] == pytest.approx(-0.012 + 0.5 * WORK, abs=1e-6)
    data.observations[:, -1] = 1.0  # four times that, as an error budget that burns sets it
    assert rewards_of(data, WORK)[10:] == pytest.approx(-0.012 + 0.125 * WORK, abs=1e-6)


@pytest.mark.slow
def test_datasets_judge_tells_good_from_bad():
    data = bandit(60)
    rows, rewards = np.arange(len(data)), rewards_of(data, None)

    def value(move):
        moves = np.full(len(rows), move)
        return value_of(data, rows, rewards, (moves, moves), 0.5, updates=200)

    assert value(GOOD) == pytest.approx(0.12, abs=0.06)
    assert value(BAD) < -1.0


def test_too_few_episodes_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be held out; record more"):
        learn_offline(task(tmp_path, data=bandit(2)))


def test_recipes_mistake_is_told_with_its_line(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("rlctl/SimHost-v0:\n  n_updates: 10\n  learning_rate: 1.0e-3\n  batch_size: 8\n  alfa: 1\n")
    with pytest.raises(ConfigError, match=r"mine.yaml:5: .*alfa"):
        recipe_file(OFFLINE["cql"], "cql", file)


def test_simulated_selection_is_by_merit(tmp_path):
    host = load_profile_of_host("two-core-host")
    course = Course("short", host, training_load, Weight.EQUAL, 20, 1.0, load_profile("responsive"))
    run = replace(task(tmp_path, n_updates=4), courses=(course,), validation_seeds=2)
    outcome = learn_offline(run)
    assert len(outcome.rounds) == 2
    said = load(outcome.bundle).card.training.hyperparameters["selected_by"]
    assert said == "validation in the simulator: merit on short, 2 validation seeds"
