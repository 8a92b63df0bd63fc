"""Any text becomes a sane number or a reason."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.host.decode import json_or_none, parse_quantity
from rlctl.envs.telemetry import Why


@pytest.mark.parametrize("raw", ["nan", "inf", "-1", -0.5, 1e309, 10**400, "1e999"])
def test_what_cannot_be_measured_is_absurd(raw: object) -> None:
    assert parse_quantity(raw) is Why.ABSURD


@pytest.mark.parametrize("raw", ["", "fast", None, True, [1], b"\xff", "1.2.3"])
def test_what_is_no_number_is_malformed(raw: object) -> None:
    assert parse_quantity(raw) is Why.MALFORMED


@given(st.one_of(st.text(), st.binary(), st.floats(), st.integers(), st.none(), st.booleans()))
def test_a_number_is_finite_and_not_negative(raw: object) -> None:
    number = parse_quantity(raw, most=1e6)
    assert isinstance(number, Why) or (math.isfinite(number) and 0.0 <= number <= 1e6)


@given(st.binary())
def test_json_never_raises(data: bytes) -> None:
    json_or_none(data)


def test_a_bomb_of_brackets_is_no_json() -> None:
    assert json_or_none(b"[" * 100_000) is None
