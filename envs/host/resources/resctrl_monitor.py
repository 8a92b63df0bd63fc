"""How much memory bandwidth and cache LC and BE use, by the processor's own count (MBM, CMT) under resctrl.

A reading makes the kernel ask each socket, which takes some microseconds of an interrupt there. What the default class
and the classes of others use is added to the total, since their tasks sit on the same memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from rlctl.envs.host.decode import parse_quantity
from rlctl.envs.host.resources.resctrl import BE_CLASS, LC_CLASS
from rlctl.envs.host.sensors.kernel_file import Gauge
from rlctl.envs.telemetry import Missing, Reading, Value, Why

# Between two looks for classes that others made.
LOOK_SECONDS = 10.0

MOST_BYTES_PER_SECOND = 4e12
_DOMAIN = re.compile(r"mon_L3_(\d{1,9})")
_NOT_CLASSES = frozenset({"info", "mon_data", "mon_groups"})


class ResctrlMonitor:
    """`dram_bandwidth_bytes` and its parts, per second; the shares of the peak are those of the busiest socket.

    Args:
        peak_bytes_per_second: What one socket's memory can do when streamed (STREAM, `stress-ng --stream`); without it
            there are no shares.
    """

    name = "resctrl"
    provides = (
        *("dram_bandwidth_bytes", "lc_dram_bandwidth_bytes", "be_dram_bandwidth_bytes"),
        *("dram_bandwidth_ratio", "be_dram_bandwidth_ratio", "lc_llc_bytes", "be_llc_bytes"),
    )

    def __init__(self, peak_bytes_per_second: float | None = None, sys: Path = Path("/sys")) -> None:
        self._peak = peak_bytes_per_second
        self._root = sys / "fs/resctrl"
        self._folders: dict[str, _Class] = {}
        self._next_seconds = float("-inf")

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """Bandwidth since the previous call, and what is in the caches now."""
        self._look(now_seconds)
        if not self._folders:
            return dict.fromkeys(self.provides, Missing(Why.NOT_SUPPORTED, "no bandwidth monitoring: see rlctl doctor"))
        rates = {name: one.rates(now_seconds) for name, one in self._folders.items()}
        others = rates.keys() - {"", LC_CLASS, BE_CLASS}
        for name in [name for name in others if _is_gone(rates[name])]:  # removed since the last look
            self._folders.pop(name).close()
            del rates[name]
        lc, be = (rates.get(name) for name in (LC_CLASS, BE_CLASS))
        readings = {
            "dram_bandwidth_bytes": _sum(reading for one in rates.values() for reading in one.values()),
            "lc_dram_bandwidth_bytes": _ABSENT if lc is None else _sum(lc.values()),
            "be_dram_bandwidth_bytes": _ABSENT if be is None else _sum(be.values()),
            **self._shares(rates, be),
        }
        for role, name in (("lc", LC_CLASS), ("be", BE_CLASS)):
            known = self._folders.get(name)
            readings[f"{role}_llc_bytes"] = _ABSENT if known is None else known.occupancy()
        return readings

    def close(self) -> None:
        """Close the kernel's files."""
        for one in self._folders.values():
            one.close()
        self._folders.clear()

    def _shares(
        self, rates: Mapping[str, Mapping[int, Reading]], be: Mapping[int, Reading] | None
    ) -> dict[str, Reading]:
        names = ("dram_bandwidth_ratio", "be_dram_bandwidth_ratio")
        if self._peak is None:
            return dict.fromkeys(names, Missing(Why.NOT_CONFIGURED, "set resources.dram_peak_bytes_per_second"))
        by_domain = {at: _sum(one[at] for one in rates.values() if at in one) for at in next(iter(rates.values()))}
        if missing := [total for total in by_domain.values() if isinstance(total, Missing)]:
            return dict.fromkeys(names, missing[0])
        known = {at: total.value for at, total in by_domain.items() if isinstance(total, Value)}
        busiest = max(known, key=lambda at: known[at])
        part = _ABSENT if be is None else be.get(busiest, _ABSENT)
        share = Value(part.value / self._peak) if isinstance(part, Value) else part
        return {names[0]: Value(known[busiest] / self._peak), names[1]: share}

    def _look(self, now_seconds: float) -> None:
        """Classes come and go; the default one is the root itself."""
        if now_seconds < self._next_seconds:
            return
        self._next_seconds = now_seconds + LOOK_SECONDS
        try:
            names = [one.name for one in self._root.iterdir() if one.is_dir() and one.name not in _NOT_CLASSES]
        except OSError:
            names = []
        there = {name: self._root / name for name in ["", *names] if (self._root / name / "mon_data").is_dir()}
        for name in self._folders.keys() - there.keys():
            self._folders.pop(name).close()
        for name, folder in there.items():
            if name not in self._folders:
                one = _Class(folder / "mon_data")
                if one.counts:
                    self._folders[name] = one


def _is_gone(rates: Mapping[int, Reading]) -> bool:
    return any(isinstance(one, Missing) and one.why is Why.GONE for one in rates.values())


class _Class:
    """The counters of one class, by socket (or whatever shares a last-level cache)."""

    def __init__(self, folder: Path) -> None:
        domains = [(int(match[1]), path) for path in folder.glob("mon_L3_*") if (match := _DOMAIN.fullmatch(path.name))]
        self._bytes = {
            at: Gauge(path / "mbm_total_bytes", _bytes, MOST_BYTES_PER_SECOND)
            for at, path in sorted(domains)
            if (path / "mbm_total_bytes").exists()
        }
        self._cache = [Gauge(path / "llc_occupancy", _bytes) for _, path in sorted(domains)]

    @property
    def counts(self) -> bool:
        """Whether the processor counts bandwidth at all."""
        return bool(self._bytes)

    def rates(self, now_seconds: float) -> dict[int, Reading]:
        """Bytes per second since the previous call, by domain."""
        return {at: gauge.rate(now_seconds) for at, gauge in self._bytes.items()}

    def occupancy(self) -> Reading:
        """Bytes in all last-level caches."""
        numbers = (gauge.now() for gauge in self._cache)
        return _sum(one if isinstance(one, Missing) else Value(one) for one in numbers)

    def close(self) -> None:
        """Close the kernel's files."""
        for gauge in (*self._bytes.values(), *self._cache):
            gauge.close()


_ABSENT = Missing(Why.NOT_CONFIGURED, "no class of its own: set resources.resctrl")


def _bytes(content: bytes) -> float | Missing:
    """The kernel says `Unavailable` when no counter could be read, `Error` when the socket is offline."""
    value = parse_quantity(content.strip())
    return Missing(Why.NO_DATA, f"{content[:20]!r}") if isinstance(value, Why) else value


def _sum(readings: Iterable[Reading]) -> Reading:
    total = 0.0
    for reading in readings:
        if isinstance(reading, Missing):
            return reading
        total += reading.value
    return Value(total)
