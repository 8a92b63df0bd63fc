"""A guard of a user: whatever its code does, BE is never less restricted than without it."""

from __future__ import annotations

import contextlib
import json
import math
import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.errors import ConfigError, PolicyError
from rlctl.envs.telemetry import Telemetry, Value
from rlctl.log.record import _json_value
from rlctl.safety.batch_shield import BatchShield
from rlctl.safety.conformance import CHECKS, broken
from rlctl.safety.profile import Profile, load_profile, load_shield
from rlctl.safety.shield import Shield
from rlctl.safety.user_guard import UserGuard
from rlctl.safety.verdict import Bound, Reason
from tests.safety.test_guard_conformance import Calm, PressureGuard

FREE = Bound("load-gate", Reason.LOAD_HIGH, Allocation(UNLIMITED, 1 << 20))
ANSWERS: list[Any] = [
    None,
    FREE,
    Bound("x", Reason.OWN, Allocation(0.001, 1)),
    Bound("x", Reason.OWN, Allocation(2.0, 2, True)),
    SimpleNamespace(most=SimpleNamespace(quota_cpus=math.nan, cpuset_cpus=4, frozen=False), detail=""),
    SimpleNamespace(most=SimpleNamespace(quota_cpus=-1.0, cpuset_cpus=-4, frozen=False), detail=""),
    SimpleNamespace(most=SimpleNamespace(quota_cpus="4", cpuset_cpus=2, frozen=None), detail=object()),
    "free", 3, Allocation(UNLIMITED, 64), ValueError("no"), SystemExit(3), RecursionError(), KeyError(),
]  # fmt: skip
"""What a guard may answer, or raise."""


@dataclass
class Erratic:
    """Answers or raises what it is told to, and changes whatever it can reach."""

    answers: list[Any]
    name: str = "erratic"

    def start(self) -> Any:
        return self._next()

    def advance(self, memory: Any, telemetry: Telemetry) -> Any:
        return self._next()

    def bound(self, memory: Any, telemetry: Telemetry, current: Allocation, limits: Limits) -> Any:
        for target in (telemetry, current, limits):
            with contextlib.suppress(AttributeError, TypeError):
                target.frozen = False
        return self._next()

    def _next(self) -> Any:
        self.answers.append(self.answers.pop(0))
        if isinstance(self.answers[-1], BaseException):
            raise self.answers[-1]
        return self.answers[-1]


erratic = st.builds(Erratic, st.lists(st.sampled_from(ANSWERS), min_size=1, max_size=7))


@given(data=st.data())
def test_be_is_never_less_restricted(
    data: st.DataObject, profile: Profile, limits: Limits, histories: Any, allocations: Any
) -> None:
    """In any tick, under any proposal and any allocation in force, with guards that do what they like."""
    guards = [replace(data.draw(erratic), name=f"own-{number}") for number in range(data.draw(st.integers(1, 3)))]
    plain, own = Shield(profile, limits), Shield(profile.with_guards(*guards), limits)
    for telemetry in data.draw(histories):
        current, proposed = limits.clip(data.draw(allocations)), limits.clip(data.draw(allocations))
        without, verdict = plain.rule(telemetry, current, proposed), own.rule(telemetry, current, proposed)
        assert verdict.allocation.at_most(without.allocation)
        assert limits.safe.at_most(verdict.allocation)
        assert limits.clip(verdict.allocation) == verdict.allocation
        assert verdict.bounds[: len(without.bounds)] == without.bounds, "no other guard is touched"
        assert (own.mask(telemetry, current) <= plain.mask(telemetry, current)).all()


@pytest.mark.parametrize("answer", [one for one in ANSWERS if isinstance(one, (str, int, BaseException))])
def test_failure_is_the_safe_allocation_by_name(answer: Any, limits: Limits, calm: Calm) -> None:
    shield = Shield(load_profile("responsive").with_guards(Erratic([answer])), limits)
    verdict = shield.rule(calm(0.0), limits.full, limits.full)
    assert verdict.allocation == limits.safe
    assert verdict.bounds[-1].guard == "erratic"
    assert "guard erratic failed" in verdict.bounds[-1].detail


def test_a_failure_lasts_one_tick(limits: Limits, calm: Calm) -> None:
    own = UserGuard.of(Erratic([None, ValueError("once"), None, None]))  # start, advance, advance, bound
    memory = own.advance(own.start(), calm(0.0))
    bound = own.bound(memory, calm(0.0), limits.full, limits)
    assert bound is not None
    assert bound.most == limits.safe
    memory = own.advance(memory, calm(1.0))
    assert own.bound(memory, calm(1.0), limits.full, limits) is None


def test_it_restricts_further_and_shows_in_the_digest(limits: Limits, calm: Calm) -> None:
    profile = load_profile("responsive")
    plain, own = Shield(profile, limits), Shield(profile.with_guards(PressureGuard(0.2)), limits)
    waiting, current = calm(0.0, lc_pressure_ratio=Value(0.5)), Allocation(1.0, 1)
    assert plain.rule(waiting, current, current).allocation == current
    verdict = own.rule(waiting, current, current)
    assert verdict.allocation == limits.minimum
    assert [bound.guard for bound in verdict.decisive] == ["lc-pressure"]
    assert len({plain.digest, own.digest, profile.with_guards(PressureGuard(0.3)).digest}) == 3
    assert profile.with_guards(PressureGuard(0.2)).digest == own.digest


GUARD = """
class Half:
    name = "half"
    def start(self): return [0]
    def advance(self, memory, telemetry): return [memory[0] + 1]
    def bound(self, memory, telemetry, current, limits):
        from rlctl.safety.verdict import Bound, Reason
        return Bound(self.name, Reason.OWN, limits.full.but(quota_cpus=0.5 * limits.cpus), f"tick {memory[0]}")
"""


@pytest.fixture
def own_file(tmp_path: Path) -> str:
    """A shield with the guard of a file behind it."""
    (tmp_path / "half.py").write_text(GUARD)
    return f"responsive+{tmp_path}/half.py:Half"


def test_a_file_is_named_behind_the_profile(own_file: str, limits: Limits, calm: Calm) -> None:
    profile = load_shield(own_file, strict=True)
    assert profile.guards()[-1].name == "half"
    again = pickle.loads(pickle.dumps(profile))
    assert (again.digest, again.guards()[-1].name) == (profile.digest, "half"), "as in another process of a bench"
    scaled = profile.scale_time(15.0)
    assert scaled.own == profile.own
    verdict = Shield(profile, limits).rule(calm(0.0), limits.full, limits.full)
    assert "tick 1" in [bound.detail for bound in verdict.bounds]
    with pytest.raises(ConfigError, match="rules on one host only"):
        BatchShield(profile, limits, 2)
    assert "own" not in profile.model_dump(), "a log names no code that a replay would run"


def test_what_it_remembers_stands_in_no_log(own_file: str, limits: Limits, calm: Calm) -> None:
    profile = load_shield(own_file)
    shield, again = Shield(profile, limits), Shield(profile, limits)
    telemetry = calm(0.0)
    shield.rule(telemetry, limits.safe, limits.full)
    state = json.loads(json.dumps(_json_value(dict(shield.state))))
    assert "half" not in state
    assert again.resume(state, telemetry)
    assert again.rule(calm(1.0), limits.safe, limits.full).bounds[-1].detail == "tick 1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("class Half: name = 'half'", "guard Half lacks start, advance, bound"),
        (GUARD.replace('"half"', "3"), "has a name that is not a text"),
        (GUARD.replace('"half"', '"load-gate"'), "two guards are called 'load-gate'; rename yours"),
        ("import nowhere", "half.py:1: it raised ModuleNotFoundError"),
        (GUARD.replace("    name", "    def __init__(self): 1 / 0\n    name"), r"Half\(\) raised ZeroDivisionError"),
    ],
)
def test_one_that_does_not_load_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "half.py").write_text(text)
    with pytest.raises(PolicyError, match=said):
        load_shield(f"responsive+{tmp_path}/half.py:Half")


@dataclass
class Growing:
    """Breaks every promise."""

    ticks: int = 0
    name: ClassVar[str] = "growing"

    def start(self) -> list[int]:
        return []

    def advance(self, memory: list[int], telemetry: Telemetry) -> list[int]:
        memory.append(1)
        return memory

    def bound(self, memory: list[int], telemetry: Telemetry, current: Allocation, limits: Limits) -> Bound:
        self.ticks += 1
        return Bound("other", Reason.OWN, Allocation(0.01 * self.ticks, 1))


def test_the_checks_find_what_breaks_a_promise() -> None:
    assert [name for name, _, what in broken(CHECKS, Growing()) if what] == list(CHECKS)


def test_profile_path_may_have_a_plus(tmp_path: Path) -> None:
    shipped = Path(__file__).parents[2] / "configs/safety/responsive.yaml"
    (tmp_path / "c++").mkdir()
    (tmp_path / "c++" / "mine.yaml").write_text(shipped.read_text())
    assert load_shield(f"{tmp_path}/c++/mine.yaml").digest == load_profile("responsive").digest
