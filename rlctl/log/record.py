"""The record of a tick: its fields, the recorders that take it, and its form in the tick log as JSON.

The log's header says who decided, under which shield, on what host; enough to run it again elsewhere.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rlctl import __version__
from rlctl.agents.policy import Policy
from rlctl.agents.policy_runner import SAFE
from rlctl.envs.allocation import UNLIMITED, Allocation
from rlctl.envs.applications import Placement
from rlctl.envs.errors import RlctlError
from rlctl.envs.host.cgroup.journal import boot_id
from rlctl.envs.host.events import BE_VANISHED
from rlctl.envs.plant import Plant
from rlctl.envs.reins import Rein
from rlctl.envs.telemetry import (
    LOGGED_OF_EACH_LC,
    OF_EACH_LC,
    READINGS,
    Missing,
    Quantile,
    Reading,
    Telemetry,
)
from rlctl.log.writer import LogWriter
from rlctl.safety.shield import Shield
from rlctl.safety.symptoms import Alarm, Sign
from rlctl.safety.verdict import OF_SERVICE, Verdict

Shares = Mapping[str, Placement | None]
"""Placements by application, in a log as mode, cluster and CPUs; None for one that is deferred."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One control period, from reading to reading back.

    Attributes:
        index: Number of the tick since the start, from 0.
        wall_seconds: Wall clock (Unix time), for people; everything else runs on `telemetry.time_seconds`.
        telemetry: Readings of the period before.
        before: The allocation that was in force in that period.
        proposed: The allocation that was asked for.
        verdict: The allocation that the shield let through, with every guard's bound.
        applied: The allocation that was read back after the write.
        policy: Name of the policy that the service runs.
        note: Why this allocation was proposed, in the words of whoever proposed it.
        error: What failed in writing; empty if nothing did.
        read_seconds, decision_seconds, tick_seconds: Time for the sensors; to observe, decide and rule; for all of it.
        missed_deadlines: Number of deadlines missed since the start.
        acting: Name of the policy that decided this tick: `policy`, a heuristic in its place, or "safe".
        fallback: Why that was not `policy`; empty if it was.
        events: What happened to the host's groups, a line `kind: text` for each; see `rlctl.envs.host.events`.
        shares: How BE's applications divide what is applied; None for one that is deferred.
        alarm: Why BE was held before the period was over; `before` was in force only until then. None if it was not.
        price: What a violation cost a learned policy; 1 unless an error budget says otherwise.
        least_weight: `Limits.least_weight` in this tick: it changes where other groups come and go; None is not known.
    """

    index: int
    wall_seconds: float
    telemetry: Telemetry
    before: Allocation
    proposed: Allocation
    verdict: Verdict
    applied: Allocation
    policy: str
    note: str = ""
    error: str = ""
    read_seconds: float = 0.0
    decision_seconds: float = 0.0
    tick_seconds: float = 0.0
    missed_deadlines: int = 0
    acting: str = ""
    fallback: str = ""
    events: tuple[str, ...] = ()
    shares: Shares = field(default_factory=dict)
    alarm: Alarm | None = None
    price: float = 1.0
    least_weight: bool | None = None

    @property
    def cut(self) -> bool:
        """BE was held before the period was over."""
        return self.alarm is not None

    @property
    def false_alarm(self) -> bool:
        """BE was held before the period was over, and the LC whose sign it was met its target in it."""
        if self.alarm is None or self.alarm.sign is Sign.TAIL:  # which is a window that missed the target
            return False
        return self.telemetry.lcs.get(self.alarm.lc, self.telemetry).missed is False

    @property
    def be_vanished(self) -> bool:
        """No BE group was left, so that the allocation applied to nothing."""
        return any(event.startswith(f"{BE_VANISHED}:") for event in self.events)

    @property
    def why_safe(self) -> str:
        """Why the loop itself took BE to the safe allocation, whatever the verdict was; empty where it did not."""
        return self.fallback if self.acting == SAFE else ""


class Recorder(Protocol):
    """Takes every tick of the loop."""

    def write(self, tick: Tick) -> None:
        """Record a tick; never raises, for the loop must go on."""
        ...


class Tee:
    """Hands each tick to several recorders, in order."""

    def __init__(self, *recorders: Recorder) -> None:
        self._recorders = recorders

    def write(self, tick: Tick) -> None:
        """Hand the tick to each recorder."""
        for recorder in self._recorders:
            recorder.write(tick)


class TickLog(LogWriter[Tick]):
    """The log of every tick; see `rlctl.log.writer.LogWriter`; OSError: the file cannot be opened at the start."""

    def __init__(self, path: Path, most_bytes: int = 16 << 20, keep: int = 4) -> None:
        super().__init__(path, tick_as_json, most_bytes, keep)


def tick_as_json(tick: Tick) -> dict[str, Any]:
    """A tick as plain data; readings are `{"value", "age"}` or `{"missing", "detail", "age"}`.

    Numbers keep all their digits: a replay shall come to the same verdicts. What is not finite is "nan", "inf" or
    "-inf", for JSON has no such numbers; an age of null is infinite.
    """
    telemetry, verdict = tick.telemetry, tick.verdict
    # The bounds that bind, and those of the service in any case: a replay asks others under them.
    binding = set(verdict.binding)
    told = [one for one in verdict.bounds if one in binding or one.reason in OF_SERVICE]
    return {
        "tick": tick.index,
        "ts": round(tick.wall_seconds, 6),
        "time_seconds": _number(telemetry.time_seconds),
        "target_seconds": _number(telemetry.target_seconds),
        "slack_ratio": _finite(telemetry.slack_ratio),
        "readings": {name: _reading(getattr(telemetry, name)) for name in READINGS},
        "counters": {name: _reading(reading) for name, reading in telemetry.counters.items()},
        "before": allocation_as_json(tick.before),
        "proposed": allocation_as_json(tick.proposed),
        "verdict": allocation_as_json(verdict.allocation),
        "bounds": [
            {"guard": b.guard, "reason": b.reason, "most": allocation_as_json(b.most), "detail": b.detail} for b in told
        ],
        "applied": allocation_as_json(tick.applied),
        "policy": tick.policy,
        "note": tick.note,
        "error": tick.error,
        "read_seconds": round(tick.read_seconds, 6),
        "decision_seconds": round(tick.decision_seconds, 6),
        "tick_seconds": round(tick.tick_seconds, 6),
        "missed_deadlines": tick.missed_deadlines,
        "acting": tick.acting,
        "fallback": tick.fallback,
        "events": list(tick.events),
        "least_weight": tick.least_weight,
    } | _further(tick)


def _further(tick: Tick) -> dict[str, Any]:
    """What only ticks with another rein than the CPU, an alarm, a price, applications or several LCs have."""
    telemetry = tick.telemetry
    plain: dict[str, Any] = {}
    if telemetry.rein != Rein.CPU:
        plain["rein"] = str(telemetry.rein)
    if tick.price != 1.0:
        plain["price"] = tick.price
    if tick.alarm:
        plain["alarm"] = asdict(tick.alarm)
    if tick.shares:
        plain["shares"] = {
            name: one and [one.mode, one.cluster, round(one.cpus, 4)] for name, one in tick.shares.items()
        }
    if telemetry.ruling:
        plain["lc"] = telemetry.ruling
        plain["lcs"] = {
            name: {
                "target_seconds": _number(one.target_seconds),
                "readings": {reading: _reading(getattr(one, reading)) for reading in OF_EACH_LC},
                "counters": {
                    counter: _reading(one.counters[counter]) for counter in LOGGED_OF_EACH_LC if counter in one.counters
                },
            }
            for name, one in telemetry.lcs.items()
        }
    return plain


def _reading(reading: Reading) -> dict[str, Any]:
    if isinstance(reading, Missing):
        return {"missing": reading.why, "detail": reading.detail, "age": _age(reading.age_seconds)}
    plain: dict[str, Any] = {"value": _number(reading.value), "age": _age(reading.age_seconds)}
    if isinstance(reading, Quantile):
        plain |= {"samples": reading.samples, "window": _number(reading.window_seconds)}
    return plain


def allocation_as_json(allocation: Allocation) -> dict[str, Any]:
    """An allocation as plain data; a lifted quota is null."""
    quota = None if allocation.quota_cpus == UNLIMITED else float(allocation.quota_cpus)
    return {"quota_cpus": quota, "cpuset_cpus": allocation.cpuset_cpus, "frozen": allocation.frozen}


def _number(value: float) -> float | str:
    return float(value) if math.isfinite(value) else str(float(value))


def _age(seconds: float) -> float | str | None:
    return None if seconds == math.inf else _number(seconds)


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


SCHEMA = 1


def header_of(
    plant: Plant, policy: Policy, shield: Shield | None, workloads: Mapping[str, object] | None = None
) -> Callable[[Tick], Mapping[str, object]]:
    """Says the header of a run, for `TickLog.header`. To be called before the run begins; None: nobody ruled on it.

    What the guards remember is in it, as of their verdict on the tick that follows: so a log whose beginning has been
    rotated away can still be checked.

    Args:
        workloads: Who LC and BE are, as `ServeConfig.named_workloads` has it.
    """
    fixed: dict[str, object] = {
        "log": SCHEMA,
        "rlctl": __version__,
        "boot_id": _boot_id(),
        "pid": os.getpid(),
        "started": round(time.time(), 6),
        "policy": _name_and_hash(policy),
        "heuristic": _name_and_hash(policy.heuristic) if policy.heuristic else None,
        "limits": asdict(plant.limits),
        "tick_seconds": plant.tick_seconds,
    }
    if workloads:
        fixed["workloads"] = workloads
    if shield:
        described = {"name": shield.profile.name, "digest": shield.digest, "profile": shield.profile.model_dump()}
        fixed["shield"] = described

    def header(tick: Tick) -> Mapping[str, object]:
        return fixed | {
            "target_seconds": _json_value(next(iter(tick.telemetry.targets_seconds.values()))),
            "targets_seconds": {name: _json_value(one) for name, one in tick.telemetry.targets_seconds.items()},
            "guards": {name: _json_value(memory) for name, memory in (shield.state if shield else {}).items()},
        }

    return header


def _name_and_hash(policy: Policy) -> dict[str, str]:
    return {"name": policy.name, "hash": policy.digest}


def _json_value(memory: object) -> object:
    """Plain data for JSON, which has no NaN and no infinity."""
    if isinstance(memory, dict):
        return {name: _json_value(value) for name, value in memory.items()}
    return str(memory) if isinstance(memory, float) and not math.isfinite(memory) else memory


def _boot_id() -> str:
    try:
        return boot_id()
    except RlctlError:
        return ""
