"""On a live host a learner tries what is next to its best move, seldom, with much slack, and never what is masked."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents.training.live.bounded import TARGETS, BoundedHost, Bounds, around, has_room
from rlctl.agents.training.nearest_move import nearest_move
from rlctl.envs.actions import MOVES
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.errors import ConfigError, PolicyError
from rlctl.envs.host_env import HostEnv
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield
from rlctl.safety.wrapper import ShieldedEnv
from tests.doubles.plant import FakePlant

INDEX = {move.name: index for index, move in enumerate(MOVES)}
LIMITS = Limits(cpus=2)

allocations = st.builds(
    Allocation, st.one_of(st.floats(0.01, 2.0), st.just(UNLIMITED)), st.integers(1, 2), st.booleans()
)
moves = st.integers(0, len(MOVES) - 1)
masks = st.lists(st.booleans(), min_size=len(MOVES), max_size=len(MOVES)).map(np.array).filter(np.any)


def names(mask):
    return {MOVES[index].name for index in np.flatnonzero(mask)}


def prefers(move):
    """A policy with one favourite."""

    def logits(observations):
        return np.eye(len(MOVES), dtype=np.float32)[[INDEX[move]] * len(observations)]

    return logits


class Masked(ShieldedEnv):
    """A shielded host with a mask of the test's choice."""

    mask = None

    def action_masks(self):
        return super().action_masks() if self.mask is None else self.mask


def bounded(loads=(0.2,), move="quota-11%", probability=1.0, least_slack_ratio=0.5, note=lambda step: None):
    plant = FakePlant(LIMITS, loads=loads)
    shielded = Masked(HostEnv(plant), Shield(load_profile("responsive"), LIMITS))
    host = BoundedHost(shielded, prefers(move), Bounds(probability, least_slack_ratio), 0, note)
    host.exploring = True
    host.reset()
    return host, shielded, plant


def advanced(host, ticks):
    for _ in range(ticks):
        host.step(host.action_masks().argmax())


@given(mask=masks, scores=st.lists(st.floats(-5, 5), min_size=len(MOVES), max_size=len(MOVES)), ticks=st.integers(0, 5))
def test_explored_is_masked_and_next_to_best(mask, scores, ticks):
    host, shielded, plant = bounded()
    advanced(host, ticks)
    shielded.mask, host.logits = mask, lambda seen: np.array([scores])
    host._allowed = np.zeros(0, bool)
    allowed = host.action_masks()
    best = int(np.where(mask, scores, -np.inf).argmax())
    assert allowed[best]
    assert not (allowed & ~mask).any()
    assert not (allowed & ~around(best, plant.current, LIMITS)).any()


@given(chosen=moves, current=allocations)
def test_neighbourhood_is_two_targets_and_keep(chosen, current):
    near = set(np.flatnonzero(around(chosen, current, LIMITS)))
    beside = near - {chosen, INDEX["keep"]}
    assert beside <= set(TARGETS)
    assert len(beside) <= 2
    if chosen in TARGETS:
        assert all(abs(TARGETS.index(one) - TARGETS.index(chosen)) == 1 for one in beside)
    if MOVES[chosen].of(current, LIMITS).frozen:
        assert near == {chosen}, "to thaw is no small step"


def test_neighbours_by_name():
    running = Allocation(0.2, 1)
    assert names(around(INDEX["quota-11%"], running, LIMITS)) == {"keep", "quota-9.5%", "quota-11%", "quota-13%"}
    assert names(around(INDEX["keep"], running, LIMITS)) == {"keep", "quota-9.5%", "quota-11%"}
    assert names(around(INDEX["quota-100%"], running, LIMITS)) == {"keep", "quota-84%", "quota-100%"}
    assert names(around(INDEX["quota-1%"], running, LIMITS)) == {"keep", "quota-1%", "quota-1.2%"}
    assert names(around(INDEX["freeze"], running, LIMITS)) == {"freeze"}


def test_little_slack_takes_the_best_move():
    for changes in ({"least_slack_ratio": 0.95}, {"probability": 0.0}, {"loads": (0.75,), "least_slack_ratio": 0.9}):
        host, *_ = bounded(**changes)
        for _ in range(30):
            assert host.action_masks().sum() == 1
            advanced(host, 1)
    host, *_ = bounded()
    host.exploring = False
    advanced(host, 5)
    assert host.action_masks().sum() == 1


def test_with_room_it_explores_as_allowed():
    host, *_ = bounded(probability=0.3)
    advanced(host, 20)
    explored = 0
    for _ in range(400):
        explored += host.action_masks().sum() > 1
        advanced(host, 1)
    assert 80 <= explored <= 160


def test_closed_gate_or_cool_down_leaves_no_room():
    host, shielded, _plant = bounded(loads=(0.2,) * 8 + (0.99,) * 4 + (0.2,) * 100, least_slack_ratio=0.0)
    worried = []
    for _ in range(14):
        allowed = host.action_masks()
        inside = shielded.shield.rule(shielded.host.telemetry, shielded.host.current, LIMITS.full)
        worried.append(not {bound.reason.value for bound in inside.bounds} <= {"growth-rate", "ceiling"})
        assert not (worried[-1] and allowed.sum() > 1)
        advanced(host, 1)
    assert any(worried[7:])
    assert not all(worried)


def test_without_a_latency_there_is_no_room():
    shield = Shield(load_profile("responsive"), LIMITS)
    plant = FakePlant(LIMITS, loads=(0.2,))
    for _ in range(3):
        plant.wait()
        telemetry = plant.read()
        room = has_room(shield, telemetry, Allocation(0.1, 1), 0.5)
    assert room
    plant.wait()
    blind = plant.read().but(tail_latency_seconds=FakePlant(LIMITS).read().cpi)
    assert not has_room(shield, blind, Allocation(0.1, 1), 0.0)


def test_move_out_of_bounds_never_reaches_host():
    host, _, plant = bounded()
    advanced(host, 3)
    ticks = plant.ticks
    outside = int(np.flatnonzero(~host.action_masks())[0])
    with pytest.raises(PolicyError, match="out of the bounds"):
        host.step(outside)
    assert plant.ticks == ticks


@given(move=moves, before=allocations)
def test_move_let_through_is_the_executed_one(move, before):
    assert nearest_move(MOVES[move].of(before, LIMITS), before, LIMITS, preferred=move) == move


def test_an_overridden_move_is_stored_as_what_happened():
    running = Allocation(0.4, 1)
    assert MOVES[nearest_move(LIMITS.safe, running, LIMITS, preferred=INDEX["quota-100%"])].name == "freeze"
    assert MOVES[nearest_move(LIMITS.minimum, running, LIMITS, preferred=INDEX["quota-25%"])].name == "minimum"
    assert MOVES[nearest_move(running, running, LIMITS, preferred=INDEX["quota-25%"])].name == "keep"
    assert MOVES[nearest_move(Allocation(0.223, 1), running, LIMITS, preferred=INDEX["quota-25%"])].name == "quota-11%"


def test_nearest_move_thaws_and_rises_as_allowed():
    running, all_cpus = Allocation(0.4, 1), Allocation(2.0, 2)
    assert MOVES[nearest_move(running, running.but(frozen=True), LIMITS)].name == "thaw"
    assert MOVES[nearest_move(LIMITS.full, running, LIMITS)].name == "leap"
    assert nearest_move(running, running, LIMITS, np.arange(len(MOVES)) == INDEX["freeze"]) == INDEX["freeze"]
    assert MOVES[nearest_move(LIMITS.clip(LIMITS.full), all_cpus, LIMITS)].name == "keep", "2 CPUs are all there are"


def test_steps_tell_what_was_seen_asked_and_done():
    steps = []
    host, _, plant = bounded(loads=(0.2,) * 6 + (0.99,) * 10, move="quota-11%", note=steps.append)
    advanced(host, 10)
    assert len(steps) == 10
    assert all(step.chosen == step.proposed or not step.overridden for step in steps)
    assert any(step.held for step in steps)
    last = steps[-1].as_json()
    assert last["in_force"] == {"quota_cpus": 0.01, "cpuset_cpus": 1, "frozen": True}
    assert last["executed"] in {"freeze", "keep"}
    assert len(last["observation"]) == len(steps[-1].observation)
    assert math.isclose(sum(last["reward"].values()), sum(steps[-1].reward.values()), abs_tol=1e-5)
    assert plant.current.frozen


@pytest.mark.parametrize("numbers", [(-0.1, 0.5), (1.1, 0.5), (0.1, 1.5), (math.nan, 0.5)])
def test_impossible_bounds_are_refused(numbers):
    with pytest.raises(ConfigError):
        Bounds(*numbers)
