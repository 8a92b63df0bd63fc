"""What every guard must keep to, the shipped ones and one that a user might add."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.telemetry import Telemetry, Value
from rlctl.safety.conformance import CHECKS, broken
from rlctl.safety.guard import Guard
from rlctl.safety.profile import load_profile
from rlctl.safety.verdict import Bound, Reason
from tests.doubles.shipped import SAFETY_PROFILES

Calm = Callable[..., Telemetry]


@dataclass(frozen=True, slots=True)
class PressureGuard:
    """A user's guard: while LC threads wait for a CPU more than a share of the time, BE gets the minimum."""

    most_ratio: float
    name: ClassVar[str] = "lc-pressure"

    def start(self) -> None: ...

    def advance(self, memory: None, telemetry: Telemetry) -> None: ...

    def bound(self, memory: None, telemetry: Telemetry, current: Allocation, limits: Limits) -> Bound | None:
        pressure = telemetry.lc_pressure_ratio
        if isinstance(pressure, Value) and pressure.value <= self.most_ratio:
            return None
        return Bound(self.name, Reason.OWN, limits.minimum, "LC waits for CPUs")


SHIPPED = [guard for name in SAFETY_PROFILES for guard in load_profile(name).guards()]
GUARDS: list[Guard[Any]] = [*{type(guard): guard for guard in SHIPPED}.values(), PressureGuard(0.2)]
"""One of each kind."""

each_guard = pytest.mark.parametrize("guard", GUARDS, ids=lambda g: g.name)


@each_guard
def test_keeps_what_the_public_checks_ask(guard: Guard[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlctl.safety.conformance.RUNS", 2)
    assert not [f"{check}: {what}" for check, _, what in broken(CHECKS, guard) if what]


@each_guard
def test_guard_and_its_memory_are_immutable_and_comparable(guard: Guard[Any], calm: Calm) -> None:
    memory = guard.advance(guard.start(), calm(0.0))
    hash((guard, memory))
    if dataclasses.fields(guard):  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(guard, dataclasses.fields(guard)[0].name, None)  # type: ignore[arg-type]
    assert memory is None or isinstance(memory, tuple), "a memory is a NamedTuple, which nobody can change"
    assert repr(memory) == repr(guard.advance(guard.start(), calm(0.0)))  # NaN is not itself


@each_guard
@given(data=st.data())
def test_guard_answers_to_anything_and_always_same(
    data: st.DataObject,
    guard: Guard[Any],
    limits: Limits,
    histories: st.SearchStrategy[list[Telemetry]],
    allocations: st.SearchStrategy[Allocation],
) -> None:
    history, current = data.draw(histories), data.draw(allocations)
    shield_like = [guard.start(), guard.start()]
    for telemetry in history:
        if telemetry.time_seconds - telemetry.time_seconds == 0.0:
            shield_like = [guard.advance(memory, telemetry) for memory in shield_like]
    first, second = (guard.bound(memory, history[-1], current, limits) for memory in shield_like)
    assert repr(first) == repr(second)
    assert first is None or (first.guard == guard.name and first.reason in Reason)


@each_guard
@given(data=st.data())
def test_guard_never_asks_for_less_than_safe_allocation(
    data: st.DataObject,
    guard: Guard[Any],
    limits: Limits,
    histories: st.SearchStrategy[list[Telemetry]],
    allocations: st.SearchStrategy[Allocation],
) -> None:
    """Were a bound below what the host can write, the plant could not carry the verdict out."""
    current = limits.clip(data.draw(allocations))
    for telemetry in data.draw(histories):
        bound = guard.bound(guard.start(), telemetry, current, limits)
        assert bound is None or limits.safe.at_most(bound.most)


def test_names_are_unique_within_a_profile() -> None:
    for name in ("heracles", "responsive"):
        names = [guard.name for guard in load_profile(name).guards()]
        assert len(set(names)) == len(names)
