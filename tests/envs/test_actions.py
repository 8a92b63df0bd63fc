"""What an action asks for, on any host."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.actions import MOVES, decode, discrete_space, multi_discrete_space
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.errors import PolicyError

LIMITS = Limits(cpus=4, levels=20)
INDEX = {move.name: index for index, move in enumerate(MOVES)}


def move(name, current):
    return decode(INDEX[name], current, LIMITS)


def test_the_table_does_what_its_names_say():
    current = Allocation(2.0, 2)
    assert move("keep", current) == current
    assert move("quota-1", current).quota_cpus == pytest.approx(1.8)
    assert move("quota+2", current).quota_cpus == pytest.approx(2.4)
    assert move("quota-floor", current).quota_cpus == 0.01
    assert move("cpuset+1", current).cpuset_cpus == 3
    assert move("freeze", current).frozen
    assert not move("thaw", current.but(frozen=True)).frozen


def test_moves_stop_at_the_ends():
    assert move("quota-2", Allocation(0.01, 1)) == Allocation(0.01, 1)
    assert move("cpuset-1", Allocation(0.01, 1)).cpuset_cpus == 1
    assert move("cpuset+1", Allocation(0.01, 4)).cpuset_cpus == 4
    assert move("quota-1", Allocation(UNLIMITED, 4)).quota_cpus == pytest.approx(3.8)


@given(st.integers(1, 64), st.integers(1, 40), st.data())
def test_every_action_of_both_spaces_is_an_allocation_of_this_host(cpus, levels, data):
    limits = Limits(cpus, levels=levels)
    current = Allocation(data.draw(st.floats(0.01, cpus)), data.draw(st.integers(1, cpus)), data.draw(st.booleans()))
    for action in (discrete_space().sample(), multi_discrete_space(limits).sample()):
        asked = decode(action, current, limits)
        assert 1 <= asked.cpuset_cpus <= cpus
        assert limits.min_quota_cpus <= asked.quota_cpus


@pytest.mark.parametrize(
    "bad", [-1, len(MOVES), 0.5, float("nan"), None, "freeze", True, (0, 0), (99, 0, 0), (0, 9, 0), (0, 0, 2),
            np.array([0.0, 1.0, 0.0])]
)  # fmt: skip
def test_what_is_no_action_is_refused(bad):
    with pytest.raises(PolicyError):
        decode(bad, LIMITS.full, LIMITS)
