"""CPU lists: a misread one puts BE on the LC's CPUs."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.host.decode import format_cpus, parse_cpus


@given(st.frozensets(st.integers(0, 8191)))
def test_round_trip(cpus: frozenset[int]) -> None:
    assert parse_cpus(format_cpus(cpus) + "\n") == cpus


@given(st.frozensets(st.integers(0, 40), min_size=1))
def test_written_as_the_kernel_does(cpus: frozenset[int]) -> None:
    runs = [[int(end) for end in run.split("-")] for run in format_cpus(cpus).split(",")]
    assert all(len(run) == 1 or run[0] < run[1] for run in runs)
    assert all(left[-1] + 1 < right[0] for left, right in pairwise(runs))  # sorted, none mergeable


def test_neighbours_are_written_as_one_range() -> None:
    assert format_cpus({0, 1, 2, 5, 7, 8}) == "0-2,5,7-8"


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8\n", {0, 1, 2, 3, 8}), ("", ()), ("\n", ()), ("5", {5}), ("3,1-1", {1, 3})]
)
def test_lists_that_exist(text: str, cpus: set[int]) -> None:
    assert parse_cpus(text) == frozenset(cpus)


@given(st.text(alphabet="0123456789-, \nax", max_size=12) | st.text(max_size=12))
def test_anything_else_is_refused_or_read(text: str) -> None:
    try:
        cpus = parse_cpus(text)
    except ValueError:
        return
    assert parse_cpus(format_cpus(cpus)) == cpus


@pytest.mark.parametrize("text", ["3-1", "a", "1-", "-1", "0-2-4", "1 2", "0-9999999999", "8192"])
def test_nonsense_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="no list of CPUs"):
        parse_cpus(text)
