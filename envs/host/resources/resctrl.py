"""Classes of the last-level cache (CAT) and of memory bandwidth (MBA) for LC and BE, through /sys/fs/resctrl.

BE gets the highest ways and so much bandwidth; the LC gets a class with the other ways and all bandwidth; whatever else
runs stays in the default class. A class is a directory: rlctl makes `rlctl-lc` and `rlctl-be`, and `restore` removes
them, upon which the kernel moves their tasks back to the default class. A task's children are born into its class;
those that come into a group from elsewhere are moved at the next `gather`.

resctrl is never mounted from here: that takes options (cdp, mba_MBps) that are the operator's to choose.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

from rlctl.envs.errors import CgroupError, PermissionMissing, RlctlError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.kernel import refusal
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import list_mounts
from rlctl.envs.host.cgroup.locks import claim
from rlctl.envs.host.cgroup.schemata import Schemata, high_ways
from rlctl.envs.host.cgroup.values import number
from rlctl.envs.host.decode import parse_quantity, text_of
from rlctl.envs.host.sensors.kernel_file import Gauge
from rlctl.envs.telemetry import Missing, Reading, Value, Why

# AMD counts in eighths of a GB/s, and says so by a least bandwidth of 0.
_AMD_MEGABYTES = 125.0

LC_CLASS, BE_CLASS = "rlctl-lc", "rlctl-be"


class Classes:
    """LC's and BE's class.

    Attributes:
        full: What the default class may use.

    Raises:
        CgroupError: resctrl is not mounted or this host has none; why, and the way out.
    """

    def __init__(self, knobs: Knobs, sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> None:
        self.root = sys / "fs/resctrl"
        if reason := why_no_resctrl(sys, proc):
            raise CgroupError(f"resctrl: {reason}")
        self._knobs = knobs
        self._mbps = "mba_MBps" in mount_options(proc)
        self.full = self._schemata(self.root)

    def make(self) -> None:
        """Make both classes, with all there is, and journal them; a predecessor's are taken over, without its shares.

        Raises:
            PermissionMissing: Not root.
            CgroupError: Another running rlctl has them, or no class is left: the processor has few, and other groups
                hold them.
        """
        for name in (LC_CLASS, BE_CLASS):
            folder = self.root / name
            if self._knobs.dry_run:
                continue
            if not folder.is_dir():
                try:
                    self._knobs.kernel.make_group(folder)
                except OSError as error:
                    if error.errno == errno.ENOSPC:
                        raise CgroupError(f"{folder}: no class of service is left: remove another group") from error
                    raise refusal(error, folder, "make it", group=True) from error
            claim(self._knobs, folder / "schemata")  # before its original is ours: restore removes what has one
            self._knobs.remember([folder / "schemata"])
            self._give_all(folder)

    def divide(
        self,
        cache_ratio: float | None = None,
        bandwidth_percent: float | None = None,
        bandwidth_megabytes_per_second: float | None = None,
    ) -> None:
        """Write what each class may use; call `make` first.

        Args:
            cache_ratio: BE's share of the ways of each last-level cache; None for all, as below.
            bandwidth_percent: BE's share of each socket's memory bandwidth: Intel's unit.
            bandwidth_megabytes_per_second: The same in the unit of a mount with mba_MBps, and of AMD.

        Raises:
            CgroupError: The processor cannot do one of them; nothing is written then.
            PermissionMissing: Not root.
        """
        caches = self._caches(cache_ratio)
        be = Schemata(caches, self._bandwidth(bandwidth_percent, bandwidth_megabytes_per_second))
        lc = Schemata({name: {at: self._rest(name, mask) for at, mask in one.items()} for name, one in caches.items()})
        for name, wanted in ((LC_CLASS, lc), (BE_CLASS, be)):
            if text := str(wanted):
                self._knobs.write(self.root / name / "schemata", text)

    def _give_all(self, folder: Path) -> None:
        """Give a class what it had when it was made."""
        made = Schemata.parse(self._knobs.original(folder / "schemata") or "")
        if not self._schemata(folder).includes(made):
            step = self._step() if made.bandwidth else 1
            bandwidth = {at: most // step * step for at, most in made.bandwidth.items()}
            self._knobs.write(folder / "schemata", str(Schemata(made.caches, bandwidth)))

    def gather(self, lc: Iterable[int], be: Iterable[int]) -> int:
        """Move threads into their class; how many were not in it. One that has ended meanwhile is passed over."""
        moved = 0
        for name, wanted in ((LC_CLASS, lc), (BE_CLASS, be)):
            path = self.root / name / "tasks"
            if self._knobs.dry_run:
                continue
            inside = set(self._knobs.read(path).split())
            for task in wanted:
                if str(task) not in inside:
                    moved += self._move(path, task)
        return moved

    def _move(self, path: Path, task: int) -> bool:
        try:
            self._knobs.poke(path, str(task))
        except PermissionMissing:
            raise
        except RlctlError:
            return False  # it has ended
        return True

    def _caches(self, ratio: float | None) -> Mapping[str, Mapping[int, int]]:
        if ratio is None:
            return {}
        if not self.full.caches:
            raise CgroupError(f"{self.root}: this processor divides no last-level cache (cat_l3)")
        return {
            name: dict.fromkeys(domains, high_ways(self._mask(name), ratio, max(self._info(name, "min_cbm_bits"), 1)))
            for name, domains in self.full.caches.items()
        }

    def _bandwidth(self, percent: float | None, mbps: float | None) -> Mapping[int, int]:
        if percent is None and mbps is None:
            return {}
        if not self.full.bandwidth:
            raise CgroupError(f"{self.root}: this processor divides no memory bandwidth (mba)")
        least, step = self._info("MB", "min_bandwidth"), self._step()
        absolute = self._mbps or least == 0
        if absolute and mbps is not None:
            units = int(mbps / (1.0 if self._mbps else _AMD_MEGABYTES))
            return dict.fromkeys(self.full.bandwidth, max(units // step * step, step))
        if not absolute and percent is not None:
            steps = int(-(-max(percent - least, 0.0) // step))  # the kernel rounds up, and would read back otherwise
            return dict.fromkeys(self.full.bandwidth, min(least + steps * step, 100))
        unit, other = ("MB/s", "percent") if absolute else ("percent", "MB/s (mount it with -o mba_MBps)")
        raise CgroupError(f"{self.root} takes BE's bandwidth in {unit} here, not in {other}")

    def _step(self) -> int:
        """What bandwidth is a multiple of: kernels before 6.13 round up MB/s too, the most of all to next to none."""
        return max(self._info("MB", "bandwidth_gran"), 1)

    def _rest(self, name: str, be_mask: int) -> int:
        """The LC's ways: all below BE's, or all where BE has them all."""
        return (self._mask(name) & ~be_mask) or self._mask(name)

    def _mask(self, name: str) -> int:
        path = self.root / "info" / name / "cbm_mask"
        text = self._knobs.read(path).strip()
        try:
            return int(text, 16)
        except ValueError:
            raise CgroupError(f"{path}: {text[:40]!r} is no mask") from None

    def _info(self, resource: str, name: str) -> int:
        path = self.root / "info" / resource / name
        return number(self._knobs.read(path), path)

    def _schemata(self, folder: Path) -> Schemata:
        path = folder / "schemata"
        try:
            return Schemata.parse(self._knobs.read(path))
        except ValueError as error:
            raise CgroupError(f"{path}: {error}") from None


def task_ids(groups: Iterable[Group]) -> frozenset[int]:
    """Threads of some groups and of all below them."""
    tids: set[int] = set()
    for folder, _, files in chain.from_iterable(os.walk(group.directories[0]) for group in groups):
        for name in {"cgroup.threads", "tasks"}.intersection(files):  # v2, v1
            with contextlib.suppress(OSError, ValueError):  # removed meanwhile, or a domain without threads
                tids.update(map(int, Path(folder, name).read_text().split()))
    return frozenset(tids - {0})


def why_no_resctrl(sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> str:
    """Why there are no classes here, with the way out; empty if there are."""
    mount = sys / "fs/resctrl"
    if (mount / "schemata").is_file():
        return ""
    if "resctrl" in text_of(proc / "filesystems").split():
        return f"not mounted: mount -t resctrl resctrl {mount} (with -o mba_MBps for bandwidth in MB/s)"
    return "this CPU or kernel has none"


def mount_options(proc: Path = Path("/proc")) -> frozenset[str]:
    """What resctrl was mounted with; empty when it is not."""
    return frozenset(next((one.options for one in list_mounts("resctrl", proc=proc)), ()))


# Between two looks for classes that others made.
LOOK_SECONDS = 10.0

MOST_BYTES_PER_SECOND = 4e12
_DOMAIN = re.compile(r"mon_L3_(\d{1,9})")
_NOT_CLASSES = frozenset({"info", "mon_data", "mon_groups"})


class ResctrlMonitor:
    """`dram_bandwidth_bytes` and its parts, per second; the shares of the peak are those of the busiest socket.

    By the processor's own count (MBM, CMT). A reading makes the kernel ask each socket, which takes some microseconds
    of an interrupt there. What the default class and the classes of others use is added to the total, since their tasks
    sit on the same memory.

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
