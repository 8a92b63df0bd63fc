"""A live testbed that acts for a learner, here a fake one: bounded, shielded, and never left to itself."""

import contextlib

import numpy as np
import pytest

from rlctl.agents.served.bundle_writer import as_file
from rlctl.agents.served.card import ObservationTable
from rlctl.agents.training.live.bounded import Bounds
from rlctl.agents.training.rollouts.worker import Orders
from rlctl.envs.actions import MOVES
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import CgroupGone, HostError
from tests.doubles.bed import Bed, running_on
from tests.doubles.plant import FakePlant
from tests.waiting import until

LAGS, LIMITS = (1, 0), Limits(cpus=2)
NAMES = [move.name for move in MOVES]


@pytest.fixture
def begun():
    """A worker on a fake testbed, its bed, and the plant."""
    stack = contextlib.ExitStack()

    def begin(plant, bounds=Bounds(1.0, 0.0)):  # noqa: B008 - frozen
        bed = Bed(plant)
        worker = running_on(bed, bounds, LAGS)
        stack.callback(worker.close)
        return worker, bed

    yield begin
    stack.close()


def prefers(linear, name):
    size = ObservationTable.here(LAGS).size
    bias = np.zeros(len(MOVES))
    bias[NAMES.index(name)] = 5.0
    return as_file(linear(np.zeros((len(MOVES), size)), bias))


def test_off_policy_tells_what_was_executed(begun, linear):
    worker, bed = begun(FakePlant(LIMITS, loads=(0.2,)))
    policy = prefers(linear, "quota-11%")
    one = worker.sample(Orders(40, epsilon=0.05), policy)
    assert one.observations.shape[:2] == (40, 1)
    assert not one.dones.any()
    assert one.counts.happened["live-nginx"].ticks == 40
    assert 1 < len(set(one.actions.flatten())) <= 6  # the best move, its neighbours, and keeping
    assert bed.diary == ["up", "settle", "reins", "start BE", "load"]
    assert worker.sample(Orders(4), policy).size == 4


def test_without_slack_there_is_one_move(begun, linear):
    worker, _ = begun(FakePlant(LIMITS, loads=(0.2,)), Bounds(0.0, 0.0))
    one = worker.sample(Orders(10, masked=True), prefers(linear, "quota-11%"))
    assert (one.masks.sum(axis=2) == 1).all()


def test_be_is_suspended_while_learner_stays_away(begun, linear):
    plant = FakePlant(LIMITS, loads=(0.2,), tick_seconds=0.01)
    worker, _ = begun(plant)
    policy, steps = prefers(linear, "quota-11%"), []
    worker.note = steps.append
    worker.sample(Orders(10), policy)
    until(lambda: worker._attended._acted)
    assert plant.current == LIMITS.safe
    ticks = plant.ticks
    worker.sample(Orders(3), policy)
    assert plant.ticks < ticks + 3  # its reset counts from 0
    assert [place for place, one in enumerate(steps) if one.begins] == [0, 10], "a dataset cuts its episodes there"


def test_closing_ends_be_and_failure_is_said(begun, linear):
    plant = FakePlant(LIMITS)
    worker, bed = begun(plant)

    def gone(_):
        raise CgroupGone("the group is gone")

    plant.apply = gone
    with pytest.raises(HostError, match="is gone"):
        worker.sample(Orders(3), prefers(linear, "quota-11%"))
    worker.close()
    worker.close()
    assert bed.diary[-2:] == ["stop BE", "gone"]
