"""One number over scenarios and seeds, by the formulas of rliable; and what may be claimed of many comparisons."""

import math

import numpy as np
import pytest

from rlctl.bench.comparison import (
    aggregate,
    compare,
    holm,
    improvement,
    improvement_share,
    interquartile_mean,
    paired_difference,
)
from rlctl.bench.score import SimOutcome
from rlctl.envs.run_metrics import METRICS


def outcome(**managers):
    """A scenario on which each manager has the same values in every metric."""
    runs = {name: dict.fromkeys(METRICS, np.array(values, float)) for name, values in managers.items()}
    return SimOutcome("made", "", "", runs, {}, 300.0)


def test_outliers_do_not_move_interquartile_mean():
    assert interquartile_mean([np.array([0.0, 3.0, 1.0, 2.0]), np.array([1e9, 4.0, -1e9, 5.0])]) == 2.5


def test_improvement_counts_pairs_and_halves_ties():
    # 1 beats 0 and ties with 1: 1.5 of 2 pairs; 3 beats both: 3.5 of 4. The other scenario: none.
    one, other = [np.array([1.0, 3.0]), np.array([0.0, 0.0])], [np.array([0.0, 1.0]), np.array([5.0, 5.0])]
    assert improvement_share(one, other) == pytest.approx((3.5 / 4 + 0.0) / 2)
    assert improvement_share(one, one) == 0.5


def test_intervals_hold_their_number():
    rng = np.random.default_rng(0)
    results = [outcome(a=rng.normal(50, 5, 12), b=rng.normal(48, 5, 12)) for _ in range(3)]
    for found in (aggregate(results, "a", "emu_percent"), improvement(results, "a", "b", "emu_percent")):
        assert found.bootstrap95[0] < found.value < found.bootstrap95[1]


def test_single_seed_has_no_interval():
    assert aggregate([outcome(a=[50.0])], "a", "emu_percent").bootstrap95 == (-math.inf, math.inf)


def test_holm_by_hand():
    # ordered .01, .02, .03, .04 times 4, 3, 2, 1: .04, .06, .06, .04, and none below one before it
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_t_test_by_hand():
    # differences 1, 2, 3: t = 2 / (1 / sqrt(3)) = 3.4641 with 2 degrees of freedom, p = 0.07418
    found = paired_difference(np.array([11.0, 22.0, 33.0]), np.array([10.0, 20.0, 30.0]))
    assert found.p == pytest.approx(0.07418, abs=1e-4)


def test_chance_among_many_managers_is_no_star():
    rng = np.random.default_rng(5)
    result = outcome(base=rng.normal(50, 5, 20), **{f"m{i}": rng.normal(50, 5, 20) for i in range(40)})
    base, *others = (runs["emu_percent"] for runs in result.managers.values())
    assert any(paired_difference(one, base).is_clear for one in others)
    assert not any(one.differences["qos_guarantee_percent"].is_clear for one in compare(result, "base"))
