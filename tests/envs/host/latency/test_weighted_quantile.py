"""The estimator of a latency quantile."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.host.latency.text_log import weighted_quantile


def test_twenty_one_values_have_p95_at_19() -> None:
    """0.95 * 20 is 19 exactly; rounding up by one would report the worst request as p95."""
    assert weighted_quantile(range(20, -1, -1), [1] * 21, 0.95) == 19


def test_few_samples_err_towards_the_worse() -> None:
    assert weighted_quantile([1.0, 5.0], [1, 1], 0.95) == 5.0


@pytest.mark.parametrize(("values", "q"), [([], 0.5), ([1.0], 1.5), ([1.0], -0.1)])
def test_no_sample_or_no_quantile_is_an_error(values: list[float], q: float) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        weighted_quantile(values, [1] * len(values), q)


WEIGHTED = st.lists(st.tuples(st.floats(0.0, 1e3) | st.just(math.inf), st.integers(0, 20)), min_size=1, max_size=100)


@given(WEIGHTED, st.sampled_from([0.0, 0.5, 0.9, 0.95, 0.99, 1.0]))
def test_weight_is_as_good_as_so_many_values(weighted: list[tuple[float, int]], q: float) -> None:
    values, weights = zip(*weighted, strict=True)
    repeated = np.repeat(values, weights)
    if len(repeated):
        assert weighted_quantile(values, weights, q) == np.quantile(repeated, q, method="higher")
    else:
        with pytest.raises(ValueError, match="no quantile"):
            weighted_quantile(values, weights, q)
