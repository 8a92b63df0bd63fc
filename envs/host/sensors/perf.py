"""CPI and perf counters of the LC and BE, from one `perf stat` child that runs as long as the controller."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rlctl.envs.errors import SensorError
from rlctl.envs.host.cgroup.kernel import Identity, identity_of
from rlctl.envs.host.cgroup.layout import list_mounts
from rlctl.envs.host.sensors.perf_process import Count, FrameAssembler, PerfChild, PerfInterval, PerfKeeper, Shape
from rlctl.envs.telemetry import Missing, Reading, Value, Why

# Cycles and instructions first (they form the group); a software event last, as it is one line on every CPU.
EVENTS = (
    "cycles",
    "instructions",
    "LLC-load-misses",
    "cache-misses",
    "branch-misses",
    "stalled-cycles-frontend",
    "stalled-cycles-backend",
    "context-switches",
    "cpu-migrations",
    "page-faults",
    "task-clock",
)

LEAST_RUNNING_RATIO = 0.30  # below, perf's scaling of a multiplexed count is guesswork (libraries.md 8)
MOST_CPI = 100.0  # a thread that waits for DRAM with every instruction stays below
STALE_INTERVALS = 3.0
_LACKING = Missing(Why.NOT_SUPPORTED, "perf: this host has no such event")
_NOT_WANTED = Missing(Why.NOT_CONFIGURED, "perf is not told to count it")
_PATTERN_CHARACTERS = frozenset(",{}[]()|*+?^$;")  # perf takes a name with these for a list or a regular expression


def perf_root(proc: Path = Path("/proc")) -> Path | None:
    """Where perf looks up cgroup names: the v1 hierarchy of perf_event if it is mounted, else the cgroup2 mount."""
    mounts = list(list_mounts("cgroup", "cgroup2", proc=proc))
    v1 = [one.path for one in mounts if one.kind == "cgroup" and "perf_event" in one.options]
    return next(iter([*v1, *(one.path for one in mounts if one.kind == "cgroup2")]), None)


def perf_command(
    perf: str, shape: Shape, names: Sequence[str], events: Sequence[str], interval_seconds: float
) -> list[str]:
    """The command line, but for where its output goes.

    Args:
        names: Cgroups, relative to `perf_root`.
        interval_seconds: Perf's print interval, 10 ms at least.
    """
    wanted = ",".join(events)
    if shape.grouped:
        wanted = wanted.replace("cycles,instructions", "{cycles,instructions}", 1)
    form = "-j" if shape.json else "-x;"
    milliseconds = max(round(interval_seconds * 1e3), 10)
    return [perf, "stat", form, "-I", str(milliseconds), "-a", "--for-each-cgroup", ",".join(names), "-e", wanted]


class PerfSensor:
    """`cpi` of the LC, and every event of both roles as a counter per second (`lc_cache_misses`, `be_cycles`, ...).

    `lc_task_clock` and `be_task_clock` are in CPUs. A group that is removed and made again (a service that restarts)
    makes perf start again, as it would watch the old one for ever. Create it in a thread that lives as long as the
    controller: perf ends with that thread.

    Args:
        lc: The LC's cgroups, relative to `root`.
        be: The BE cgroups; those that do not exist are left out until they do.
        interval_seconds: Perf's print interval; the control period, or a fraction of it.

    Raises:
        SensorError: A cgroup name that perf would not take literally.
    """

    name = "perf"

    def __init__(
        self,
        lc: Sequence[str],
        be: Sequence[str],
        root: Path,
        *,
        interval_seconds: float = 1.0,
        events: Sequence[str] = EVENTS,
        perf: str = "perf",
        start: Callable[[Sequence[str]], PerfChild] | None = None,
    ) -> None:
        self.root = root
        self.follow(lc, be)
        self._perf = perf
        self._interval_seconds, self._events = interval_seconds, tuple(events)
        self._start = start or PerfChild
        self._keys = {
            (role, event): f"{role}_{event.lower().replace('-', '_')}" for role in self._roles for event in self._events
        }
        self.provides = ("cpi", *self._keys.values())
        self._keeper = PerfKeeper(self._launch, Shape(grouped={"cycles", "instructions"} <= set(events)))
        self._absent = None if start or shutil.which(perf) else Missing(Why.NOT_SUPPORTED, f"no {perf} on PATH")
        self._counted = self._events  # those of them that this host has; known after the first interval
        self._identities: tuple[Identity | None, ...] = ()
        self._assembler = FrameAssembler(())
        self._clock_ahead_seconds = float("inf")
        self._last: dict[str, Reading] = {}
        self._last_seconds = float("-inf")
        self._look()
        if self._absent is None and any(self._identities):
            self._keeper.read(float("-inf"))  # starts perf now, so that the first tick may find an interval

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """Rates over the intervals that perf has printed since the previous call; else the last ones, older."""
        frames = self._frames(now_seconds)
        if frames:
            self._clock_ahead_seconds = min(self._clock_ahead_seconds, now_seconds - frames[-1].stamp_seconds)
            self._last_seconds = frames[-1].stamp_seconds + self._clock_ahead_seconds
            self._last = self._readings(frames)
            self._leave_out(frames[-1])
        age_seconds = max(now_seconds - self._last_seconds, 0.0)
        missing = self._missing(age_seconds)
        if missing is not None:
            return dict.fromkeys(self.provides, missing)
        return {name: r if isinstance(r, Missing) else Value(r.value, age_seconds) for name, r in self._last.items()}

    def follow(self, lc: Sequence[str], be: Sequence[str]) -> None:
        """Count these groups from now on; perf starts again for it.

        Raises:
            SensorError: A cgroup name that perf would not take literally; all stays as it was.
        """
        for name in (*lc, *be):
            if _PATTERN_CHARACTERS.intersection(name):
                raise SensorError(f"perf takes the cgroup name {name!r} for a pattern: rename the group")
        self._roles = {"lc": tuple(lc), "be": tuple(be)}
        self._names = tuple(dict.fromkeys((*lc, *be)))
        self._directories = tuple(str(self.root / name) for name in self._names)

    def close(self) -> None:
        """End the perf child. Idempotent."""
        self._keeper.stop(Missing(Why.GONE, "perf: closed"))
        self._absent = self._keeper.trouble

    def _frames(self, now_seconds: float) -> list[PerfInterval]:
        if self._absent is not None:
            return []
        if self._look():
            self._keeper.stop()
        if not any(self._identities):
            return []
        assembler, starts = self._assembler, self._keeper.starts
        frames = assembler.feed(self._keeper.read(now_seconds))
        return frames if starts == self._keeper.starts else []  # a new child has a new clock

    def _leave_out(self, frame: PerfInterval) -> None:
        """Start perf anew without the events that this host lacks, as each costs perf and every tick some time."""
        seen: dict[str, set[float | Why]] = {}
        for (_, event), count in frame.counts.items():
            seen.setdefault(event, set()).add(count.count)
        lacking = [event for event in self._counted if seen.get(event) == {Why.NOT_SUPPORTED}]
        if lacking:
            self._counted = tuple(event for event in self._counted if event not in lacking)
            self._keeper.stop()
        if not self._counted:
            self._absent = Missing(Why.NOT_SUPPORTED, "perf: this host has none of the events")

    def _look(self) -> bool:
        """True when a group came, went or was made anew since the last look."""
        before, self._identities = self._identities, tuple(map(identity_of, self._directories))
        return bool(before) and before != self._identities

    def _launch(self, shape: Shape) -> PerfChild:
        names = [name for name, identity in zip(self._names, self._identities, strict=True) if identity is not None]
        self._assembler = FrameAssembler([(name, event) for name in names for event in self._counted])
        self._clock_ahead_seconds = float("inf")
        return self._start(perf_command(self._perf, shape, names, self._counted, self._interval_seconds))

    def _missing(self, age_seconds: float) -> Missing | None:
        """Why there are no readings at all; None when the last ones are fresh enough."""
        trouble = self._absent or self._keeper.trouble
        if self._absent is not None or self._keeper.gave_up:
            return trouble
        if not any(self._identities):
            where = next(iter(self._directories), "where perf looks")
            return Missing(Why.GONE, f"{where}: no such cgroup", age_seconds)
        if age_seconds == float("inf"):
            return trouble or Missing(Why.NO_DATA, "perf has not ended its first interval")
        if age_seconds > STALE_INTERVALS * self._interval_seconds:
            return trouble or Missing(Why.STALE, f"perf has been silent for {age_seconds:.1f} s", age_seconds)
        return None

    def _readings(self, frames: Sequence[PerfInterval]) -> dict[str, Reading]:
        readings: dict[str, Reading] = dict.fromkeys(self.provides, _LACKING)
        seconds = sum(frame.seconds for frame in frames)
        for (role, event), name in self._keys.items():
            if not self._roles[role]:
                readings[name] = _NOT_WANTED
            elif event in self._counted:
                readings[name] = _rate(self._counts(frames, role, event), seconds)
        readings["cpi"] = _cpi(readings.get("lc_cycles", _NOT_WANTED), readings.get("lc_instructions", _NOT_WANTED))
        return readings

    def _counts(self, frames: Sequence[PerfInterval], role: str, event: str) -> list[Count]:
        names = self._roles[role]
        by_frame = [[f.counts[name, event] for name in names if (name, event) in f.counts] for f in frames]
        return [sum(counts[1:], counts[0]) if counts else Count(Why.GONE) for counts in by_frame]


def _cpi(cycles: Reading, instructions: Reading) -> Reading:
    if isinstance(cycles, Missing) or isinstance(instructions, Missing):
        return cycles if isinstance(cycles, Missing) else instructions
    if instructions.value <= 0.0:
        return Missing(Why.NOT_COUNTED, "no instruction was counted")
    cpi = cycles.value / instructions.value
    return Value(cpi) if 0.0 < cpi <= MOST_CPI else Missing(Why.ABSURD, f"{cpi:g} cycles per instruction")


def _rate(counts: Sequence[Count], seconds: float) -> Reading:
    """Counts per second over all frames; in one where the task did not run it counted nothing."""
    known = [(count.count, count.running_ratio) for count in counts if not isinstance(count.count, Why)]
    bad = [c.count for c in counts if isinstance(c.count, Why) and (c.count is not Why.NOT_COUNTED or not known)]
    if bad:
        return Missing(bad[-1], "perf: " + bad[-1].value)
    running_ratio = min(ratio for _, ratio in known)
    if running_ratio < LEAST_RUNNING_RATIO:
        return Missing(Why.MULTIPLEXED, f"perf: counted for {running_ratio:.0%} of the interval")
    rate = sum(number for number, _ in known) / seconds
    return Value(rate) if math.isfinite(rate) else Missing(Why.ABSURD, f"perf: {rate:g} per second")
