"""What every manager promises, whatever the sensors say, as checks that anybody's manager can be put through.

`rlctl managers check NAME` runs them; in a test suite of one's own they are

    @pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
    def test_my_manager_keeps_its_promises(check):
        check(MyManager)

Each takes what makes a new policy and raises `BrokenPromise`, which says what was promised and what happened.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from rlctl.agents.policy import Policy
from rlctl.envs.actions import decode
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.observation import Observer
from rlctl.envs.telemetry import READINGS, Telemetry, Value
from rlctl.safety.conformance import HOSTS, BrokenPromise, Ticks, histories, require_alike

Make = Callable[[], Policy]

HISTORY = [(0.5, 0.5), (-0.2, 0.9), (0.5, 0.3), (0.02, 0.82), (0.9, 0.1)] * 6
"""Slack and load, up and down."""


def any_telemetry(make: Make) -> None:
    """Any telemetry, absurd or missing, gets an allocation that the host has, with a note."""
    for limits, ticks in histories():
        policy = make()
        _is_legal(policy.start(limits), limits, "start")
        for number, allocation in enumerate(_answers(policy, limits, ticks)):
            _is_legal(allocation, limits, f"tick {number}")
            if not policy.note:
                raise BrokenPromise(f"tick {number} has no note")


def same_again(make: Make) -> None:
    """The same ticks get the same decisions: nothing is read but the telemetry, no clock, no chance."""
    looks = itertools.count(1)
    for limits, ticks in histories():
        first = _trace(make(), limits, ticks)
        with _other_clocks(looks):
            second = _trace(make(), limits, ticks)
        require_alike(first, second, "of a second one, later,")


def start_forgets(make: Make) -> None:
    """`start` forgets everything: a second run is as the first."""
    limits, policy = HOSTS[2], make()
    ticks = [
        (_tell(15.0 * number, slack, load_ratio=load, lc_cpus=17 * load, be_cpus=1.0, cpi=0.5 + load), limits.minimum)
        for number, (slack, load) in enumerate(HISTORY)
    ]
    require_alike(_trace(policy, limits, ticks), _trace(policy, limits, ticks), "after a second start")


def no_reading(make: Make) -> None:
    """Without any reading BE is never given more than at the start."""
    limits, policy = HOSTS[2], make()
    start = policy.start(limits)
    ticks = [(_tell(float(now)), start) for now in range(100)]
    for number, allocation in enumerate(_answers(policy, limits, ticks)):
        if not allocation.at_most(start):
            raise BrokenPromise(f"tick {number} gives BE {allocation}, the start was {start}")


def withheld(make: Make) -> None:
    """A shield that never lets it through does not confuse it."""
    limits, policy = HOSTS[0], make()
    policy.start(limits)
    ticks = [(_tell(float(now), 0.5, load_ratio=0.5, lc_cpus=0.3, be_cpus=0.0), limits.safe) for now in range(100)]
    for number, allocation in enumerate(_answers(policy, limits, ticks)):
        _is_legal(allocation, limits, f"tick {number}")


def describes_itself(make: Make) -> None:
    """It has a note and remarks before it has run, and needs readings that there are."""
    policy = make()
    if not (isinstance(policy.note, str) and policy.note):
        raise BrokenPromise(f"its note is {policy.note!r} before the start; a few words are wanted")
    if not isinstance(policy.remarks, tuple) or not all(isinstance(one, str) and one for one in policy.remarks):
        raise BrokenPromise(f"its remarks are {policy.remarks!r}; a tuple of sentences is wanted, or an empty one")
    if unknown := [name for name in policy.needs if name not in READINGS]:
        raise BrokenPromise(f"it needs {unknown[0]!r}, which is no reading; there are {', '.join(READINGS)}")


CHECKS: Mapping[str, Callable[[Make], None]] = MappingProxyType(
    {
        "any-telemetry": any_telemetry,
        "same-again": same_again,
        "start-forgets": start_forgets,
        "no-reading": no_reading,
        "withheld": withheld,
        "describes-itself": describes_itself,
    }
)
"""By name; the first line of each one's docstring is its promise."""


@contextlib.contextmanager
def _other_clocks(looks: Iterator[int]) -> Iterator[None]:
    """The functions of `time` go on by a third of an hour with each look, to days from now."""
    clocks = {name: getattr(time, name) for name in ("time", "monotonic", "perf_counter")}
    try:
        for name, clock in clocks.items():
            setattr(time, name, lambda clock=clock: clock() + 1234.5 * next(looks))
        yield
    finally:
        for name, clock in clocks.items():
            setattr(time, name, clock)


def _tell(now_seconds: float, slack: float | None = None, **readings: float) -> Telemetry:
    """Telemetry from plain numbers."""
    if slack is not None:
        readings["tail_latency_seconds"] = 1.0 - slack
    values: dict[str, Any] = {key: Value(one) for key, one in readings.items()}
    return Telemetry(time_seconds=now_seconds, target_seconds=1.0, **values)


def _trace(policy: Policy, limits: Limits, ticks: Ticks) -> list[Allocation]:
    return [policy.start(limits), *_answers(policy, limits, ticks)]


def _answers(policy: Policy, limits: Limits, ticks: Ticks) -> Iterator[Allocation]:
    """What it asks for at each tick; it has been started."""
    observer = Observer(limits, tick_seconds=1.0)
    for telemetry, current in ticks:
        yield decode(policy.act(observer.observe(telemetry, current)), current, limits)


def _is_legal(allocation: Allocation, limits: Limits, when: str) -> None:
    quota, cpuset = allocation.quota_cpus, allocation.cpuset_cpus
    fits = quota == UNLIMITED or limits.min_quota_cpus <= quota <= limits.cpus
    if not (fits and isinstance(cpuset, int) and 1 <= cpuset <= limits.cpus):
        raise BrokenPromise(f"{when}: {allocation} is nothing that a host of {limits.cpus} CPUs has")
