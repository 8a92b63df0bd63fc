"""Laws in machine code say what the interpreted ones say, to the bit, whatever a sensor or a policy gives them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.actions import MOVES, apply_move
from rlctl.envs.allocation import UNLIMITED
from rlctl.envs.law import compiled
from rlctl.envs.reward import judge_latency, reward_of

pytest.importorskip("numba")

ANY = st.one_of(st.floats(), st.floats(0.0, 3.0), st.sampled_from([0.0, 1.0, np.inf, -np.inf, np.nan, 1e300]))
SHARE, FLAG = st.floats(0.0, 1.0), st.booleans()


def require_same(law, *numbers):
    """The same numbers from both forms, NaN included."""
    np.testing.assert_array_equal(law(*numbers), compiled(law)(*numbers))


@given(st.integers(1, 200).flatmap(lambda cpus: st.tuples(st.just(cpus), st.integers(1, cpus))), ANY, SHARE, FLAG)
def test_moves(cpus, quota, least, frozen):
    for move in range(len(MOVES)):
        for quota_cpus in (quota, UNLIMITED, cpus[0] * least):
            require_same(apply_move, move, quota_cpus, cpus[1], frozen, cpus[0], least)


@given(ANY, ANY, FLAG)
def test_latency_over_target(latency, target, lost):
    require_same(judge_latency, latency, target, lost)


@given(ANY, ANY, FLAG, FLAG, ANY, FLAG)
def test_rewards(over, work_rate, changed, overridden, work, first):
    require_same(reward_of, over, work_rate, changed, overridden, work, first)
