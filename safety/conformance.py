"""What every guard promises, whatever the sensors say, as checks that anybody's guard can be put through.

`rlctl managers check NAME` runs them; in a test suite of one's own they are

    @pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
    def test_my_guard_keeps_its_promises(check):
        check(MyGuard())

Each takes a guard and raises `BrokenPromise`, which says what was promised and what happened.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.telemetry import READINGS, Missing, Quantile, Reading, Telemetry, Value, Why
from rlctl.safety.guard import Guard
from rlctl.safety.verdict import Bound, Reason

HOSTS = (
    Limits(cpus=1), Limits(cpus=2), Limits(cpus=36, lc_cpus=17), Limits(cpus=3, lc_cpus=0.5, min_quota_cpus=0.2),
    Limits(cpus=2, can_freeze=False),
)  # fmt: skip
"""From one shared CPU to the thesis' machine, and one whose BE is held by quota."""

RUNS, TICKS = 10, 20
"""Of absurd telemetry on each host."""

TARGET_SECONDS = 0.010
ODD = (0.0, -1.0, 0.0095, TARGET_SECONDS, 0.8, 0.85, 0.9, 1e300, math.nan, math.inf, -math.inf)
"""At the thresholds, and beyond all sense."""


class BrokenPromise(AssertionError):
    """A promise that was not kept; says what happened."""


def any_telemetry(guard: Guard[Any]) -> None:
    """Any telemetry, absurd or missing, gets no bound, or one of its name that is not below the safe allocation."""
    for limits, ticks in histories():
        for number, bound in enumerate(_bounds(guard, limits, ticks)):
            if bound is None:
                continue
            if not isinstance(bound, Bound) or bound.guard != guard.name or bound.reason not in Reason:
                raise BrokenPromise(f"tick {number} is answered with {bound!r}")
            if not limits.safe.at_most(bound.most):
                raise BrokenPromise(f"tick {number} is bound to {bound.most}, below the safe {limits.safe}")


def same_again(guard: Guard[Any]) -> None:
    """The same ticks get the same bounds: nothing is read but the telemetry, no clock, no chance."""
    for limits, ticks in histories():
        require_alike(_bounds(guard, limits, ticks), _bounds(guard, limits, ticks), "then")


def memory_is_immutable(guard: Guard[Any]) -> None:
    """What is remembered is a value that later ticks do not change."""
    for _, ticks in histories():
        # A shield rules on several proposals with one memory, and a replay resumes it: it must stay what it was.
        memories = [guard.start()]
        before = [repr(memories[0])]
        for telemetry, _ in ticks:
            memories.append(guard.advance(memories[-1], telemetry))
            before.append(repr(memories[-1]))
        if [repr(memory) for memory in memories] != before:
            raise BrokenPromise("advance changes the memory that it is given; return a new one")


CHECKS: Mapping[str, Callable[[Guard[Any]], None]] = MappingProxyType(
    {"any-telemetry": any_telemetry, "same-again": same_again, "memory-is-immutable": memory_is_immutable}
)
"""By name; the first line of each one's docstring is its promise."""

Ticks = list[tuple[Telemetry, Allocation]]


def broken(checks: Mapping[str, Callable[[Any], None]], subject: object) -> Iterator[tuple[str, str, str]]:
    """Put a guard, or what makes a manager, through checks.

    Yields:
        Name, promise, and what happened instead; that is empty where the promise was kept.
    """
    for name, check in checks.items():
        promise = (check.__doc__ or "").splitlines()[0]
        try:
            check(subject)
        except BrokenPromise as happened:
            yield name, promise, str(happened)
        except Exception as error:  # noqa: BLE001 - a user's code is not trusted to fail in a known way
            yield name, promise, str(error) or type(error).__name__
        else:
            yield name, promise, ""


def require_alike(first: Iterable[object], second: Iterable[object], whose: str) -> None:
    """BrokenPromise: the second answers are others than the first."""
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        if repr(one) != repr(other):
            raise BrokenPromise(f"answer {number} is {one}, and {whose} {other}")


def histories() -> Iterator[tuple[Limits, Ticks]]:
    """Hosts with ticks in order of time or not, some without a reading, each with any allocation in force."""
    for seed in range(RUNS):
        chance = random.Random(seed)
        for limits in HOSTS:
            yield limits, [(_telemetry(chance), limits.clip(_allocation(chance))) for _ in range(TICKS)]


def _telemetry(chance: random.Random) -> Telemetry:
    readings: dict[str, Any] = {} if chance.random() < 0.2 else {name: _reading(chance) for name in READINGS}
    return Telemetry(time_seconds=chance.uniform(0.0, 2000.0), target_seconds=TARGET_SECONDS, **readings)


def _reading(chance: random.Random) -> Reading:
    number = chance.choice((*ODD, chance.uniform(0.0, 2.0), chance.uniform(0.0, 40.0)))
    return chance.choice((Missing(chance.choice(list(Why))), Value(number), Quantile(number, samples=500)))


def _allocation(chance: random.Random) -> Allocation:
    quota_cpus = chance.choice((UNLIMITED, chance.uniform(0.01, 64.0)))
    return Allocation(quota_cpus, chance.randint(1, 64), chance.random() < 0.3)


def _bounds(guard: Guard[Any], limits: Limits, ticks: Ticks) -> Iterator[Bound | None]:
    memory = guard.start()
    for telemetry, current in ticks:
        memory = guard.advance(memory, telemetry)
        yield guard.bound(memory, telemetry, current, limits)
