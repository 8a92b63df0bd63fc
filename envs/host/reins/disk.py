"""The disks' rein: BE's bytes and operations a second, as a share of what each disk is taken to carry.

| | cgroup v2 | cgroup v1 |
| --- | --- | --- |
| what BE did | `io.stat` | `blkio.throttle.io_service_bytes`, `io_serviced` |
| what all did | `/sys/dev/block/*/stat` | the same |
| what BE may do | `io.max`, with all groups below | `blkio.throttle.*_device`, each group by itself |

Disks are found where BE reads and writes. Buffered writes escape v1, which neither counts nor holds them there.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rlctl.envs.errors import CgroupError, CgroupGone
from rlctl.envs.host.cgroup.group import Group, tree
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController
from rlctl.envs.host.reins.carried_rate import DISK_SHARES, CarriedRate, judge_window
from rlctl.envs.reins import FELL, LEAST_DISK_BYTES, USE, Rein, rate_of, share_of_disk

Four = tuple[float, float, float, float]
"""Bytes read, bytes written, reads, writes: counted, or a second."""

KINDS = ("rbps", "wbps", "riops", "wiops")
_V1 = tuple(f"blkio.throttle.{way}_{unit}_device" for unit in ("bps", "iops") for way in ("read", "write"))
_V1_COUNTS = ("blkio.throttle.io_service_bytes", "blkio.throttle.io_serviced")
_STATS = {"rbytes": 0, "wbytes": 1, "rios": 2, "wios": 3}
_WAYS = {"Read": 0, "Write": 1}

FREE: Four = (math.inf, math.inf, math.inf, math.inf)

SECTOR_BYTES = 512
"""Unit of the kernel's counts of a disk, whatever its sectors are."""

USUAL: Four = (10e6, 10e6, 100.0, 100.0)
"""A disk that was never seen to do more is taken to: a share of next to nothing would be none."""

LEAST: Four = (LEAST_DISK_BYTES, LEAST_DISK_BYTES, 10.0, 10.0)
"""No group is held below it."""


class DiskRein:
    """Holds BE on every disk that it uses. Use `open`.

    A level is a share of the bytes that the others leave, by what they did in the window before. So one level holds at
    any load, and everything is what the LC does not feel. What it carries of bytes read and of bytes written follows it
    by itself, see `CarriedRate`. Of operations a level is a share of the most: an LC's small writes, joined by a full
    disk, say nothing of how many more it would carry.

    Attributes:
        groups: Whose use it is, and whom it holds.
        beneath: The disk that one is on which carries what the others do, where it is not that itself.
    """

    def __init__(self, knobs: Knobs, disks: Collection[str] | None = None, sys: Path = Path("/sys")) -> None:
        self._knobs, self._disks, self._sys = knobs, disks, sys
        self.beneath: dict[str, str] = {}
        self.groups: tuple[Group, ...] = ()
        self._all_before: dict[str, Four] = {}
        self._others: dict[str, Four] = {}
        self._carried: dict[str, list[CarriedRate]] = {}
        # Bytes of a disk that BE used most of; what all might do, and what BE did.
        self._busiest: list[tuple[CarriedRate, float, float]] = []
        self._ratio, self._fell_ratio = 1.0, 0.0
        self._own: dict[Path, dict[str, Four]] = {}
        self._written: dict[Path, dict[str, Four]] = {}
        self._before: dict[Path, dict[str, Four]] = {}
        self._before_seconds = math.nan
        self._held: set[Path] = set()

    @classmethod
    def open(
        cls, be_groups: Sequence[Group], knobs: Knobs, disks: Collection[str] | None = None, sys: Path = Path("/sys")
    ) -> Self:
        """A rein that is free.

        Args:
            disks: Only these, by their numbers, `MAJOR:MINOR`; None for all that BE uses.

        Raises:
            CgroupError: A group has no I/O controller; the way out.
        """
        rein = cls(knobs, disks, sys)
        for group in be_groups:
            group.shared_part(CgroupController.IO, "io.max")
        rein.follow(be_groups)
        return rein

    @property
    def most(self) -> dict[str, tuple[float, ...]]:
        """By disk, the most that it was seen to carry in a second, which another run begins with."""
        return {disk: tuple(one.most for one in carried) for disk, carried in self._carried.items()}

    @property
    def is_known(self) -> bool:
        """True: a disk is found once BE uses it, and nothing is held before."""
        return True

    def prepare(self) -> None:
        """Nothing: all that it takes was seen by `open`."""

    def judge(self, *, missed: bool, calm: bool, ran_ratio: float) -> None:
        """Have what each disk carries of bytes read or written follow from a window that was read.

        Of those that BE had more of its part of: a window does not say which the LC waited behind.
        """
        for carried, allowed, own in self._busiest:
            fell = judge_window(carried.row, allowed, own, self._ratio, missed, calm, ran_ratio)
            self._fell_ratio = max(self._fell_ratio, fell)

    def follow(self, be_groups: Sequence[Group]) -> None:
        """Other groups are BE's from now on; those that are new are held at the next `hold`."""
        self.groups = tuple(group for group in be_groups if CgroupController.IO in group.paths)
        here = set(self._folders())
        self._own = {folder: own for folder, own in self._own.items() if folder in here}
        self._written = {folder: limits for folder, limits in self._written.items() if folder in here}
        self._held &= here

    def read_use(self, now_seconds: float) -> Mapping[str, float]:
        """BE's level as far as it used that, on the busiest disk, of bytes or operations the greater.

        Nothing at the first call. CgroupError, PermissionMissing: It cannot be read now; the next window is longer.
        """
        used, self._busiest = 0.0, []
        counted = {folder: _counts(self._knobs, folder, self._disks) for folder in self._folders()}
        looked_at = {*self._carried, *(disk for disks in counted.values() for disk in disks)}
        all_before, all_now = self._all_before, {disk: self._count_all(disk) for disk in looked_at}
        before, self._before, self._all_before = self._before, counted, all_now
        passed, self._before_seconds = now_seconds - self._before_seconds, now_seconds
        if not passed > 0.0:
            return {}

        def rates(now: Four, then: Four) -> Four:
            return _each(lambda total, old: max(total - old, 0.0) / passed, now, then)

        # What the others do on a disk that is known is seen before BE is there.
        done: dict[str, Four] = dict.fromkeys(self._carried, _NONE)
        for folder, disks in counted.items():
            for disk, now in disks.items():
                # A group that was made anew counts from 0 again.
                then = before.get(folder, {}).get(disk, now if folder not in before else _NONE)
                done[disk] = _each(float.__add__, done.get(disk, _NONE), rates(now, then))
        for disk, own in done.items():
            if disk not in self._carried:
                if not any(own):
                    continue
                self._begin(disk, (None,) * len(own))
            bound = self._bound(disk, self._ratio)
            parts = _each(float.__truediv__, own, bound)
            used, kind = max(used, *parts), int(parts[1] > parts[0])
            now, carried = all_now[disk], self._carried[disk]
            by_all = _each(max, rates(now, all_before.get(disk, now)), own)
            self._others[disk] = _each(float.__sub__, by_all, own)
            for one, did in zip(carried, by_all, strict=True):
                one.see(did, passed)
            self._busiest.append((carried[kind], by_all[kind] - own[kind] + bound[kind], own[kind]))
        readings = {USE[Rein.DISK]: self._ratio * min(used, 1.0), FELL[Rein.DISK]: self._fell_ratio}
        self._fell_ratio = 0.0
        return readings

    def _bound(self, disk: str, ratio: float) -> Four:
        """What BE as a whole may do there at a level."""
        *both, reads, writes = self._carried[disk]
        read, written = (
            one.carried * share_of_disk(ratio, others / one.carried)
            for one, others in zip(both, self._others.get(disk, _NONE), strict=False)
        )
        return _each(max, (read, written, ratio * reads.most, ratio * writes.most), LEAST)

    def _begin(self, disk: str, most: Sequence[float | None]) -> None:
        self._carried[disk] = [CarriedRate(*both, DISK_SHARES) for both in zip(most, USUAL, strict=True)]

    def _count_all(self, disk: str) -> Four:
        """What everybody has done on a disk since the host began; nothing where the kernel does not say."""
        with contextlib.suppress(CgroupGone, ValueError, IndexError):
            stat = self._sys / "dev/block" / self.beneath.get(disk, disk) / "stat"
            numbers = [float(word) for word in self._knobs.read(stat).split()]
            return SECTOR_BYTES * numbers[2], SECTOR_BYTES * numbers[6], numbers[0], numbers[4]
        return _NONE

    def hold(self, ratio: float | None) -> None:
        """Hold BE as a whole to that share of what the others leave of each disk, in equal parts; None: it is free.

        Raises:
            CgroupError, PermissionMissing: The kernel does not take it; the other groups were tried.
        """
        self._ratio = 1.0 if ratio is None else ratio
        if ratio is None and not self._held:
            return
        folders, errors = list(self._folders()), list[CgroupError]()
        for folder in folders:
            self._held.add(folder)
            for disk in self._carried:
                whole = FREE if ratio is None else self._bound(disk, ratio)
                try:
                    self._limit(folder, disk, _each(lambda each, least: max(each / len(folders), least), whole, LEAST))
                except CgroupGone:  # the group, or the disk
                    if not folder.exists():
                        self._own.pop(folder, None)
                except CgroupError as error:
                    errors.append(error)
            if ratio is None and not errors:
                self._held.discard(folder)
        if errors:
            raise errors[0]

    def restore_state(self, most: Mapping[str, Any]) -> None:
        """Go on with the `most` of an earlier run; ValueError: it is none."""
        for disk, rates in most.items():
            self._begin(str(disk), [max(rate_of(rate), usual) for rate, usual in zip(rates, USUAL, strict=True)])

    def close(self) -> None:
        """Put every group's own limits back, as far as it is there."""
        with contextlib.suppress(CgroupError):
            self.hold(None)

    def _folders(self) -> Iterator[Path]:
        """Groups that are held each by itself: in v1 those below BE's too, which a limit of theirs does not reach."""
        for group in self.groups:
            folder = group.paths[CgroupController.IO]
            yield from [folder] if _is_v2(folder) else tree(self._knobs.kernel, folder)

    def _limit(self, folder: Path, disk: str, wanted: Four) -> None:
        """Write a folder's limits of a disk where they are others, never above those that it had of its own."""
        own = self._own.get(folder)
        if own is None:
            own = self._own[folder] = _limits(self._knobs, folder, originals=True)
        now = _limits(self._knobs, folder).get(disk, FREE)
        # One that is not as it was written last is somebody else's, and BE's own from then on.
        written = self._written.setdefault(folder, {})
        own[disk] = _each(_unless_changed, own.get(disk, FREE), written.pop(disk, now), now)
        wanted = _each(min, wanted, own[disk])
        changed = [place for place in range(4) if _number(wanted[place]) != _number(now[place])]
        if _is_v2(folder):
            words = " ".join(f"{KINDS[place]}={_number(wanted[place]) or 'max'}" for place in changed)
            texts = {"io.max": f"{disk} {words}"} if changed else {}
        else:
            texts = {_V1[place]: f"{disk} {_number(wanted[place])}" for place in changed}
        for name, text in texts.items():
            self._knobs.write(folder / name, text)
        written[disk] = wanted


_NONE: Four = (0.0, 0.0, 0.0, 0.0)


def _each(combine: Callable[..., float], *fours: Four) -> Four:
    first, second, third, fourth = map(combine, *fours)
    return first, second, third, fourth


def _unless_changed(own: float, written: float, now: float) -> float:
    return own if _number(written) == _number(now) else now


def _is_v2(folder: Path) -> bool:
    return (folder / "io.max").exists()


def _number(limit: float) -> int:
    """A limit as the kernel of v1 has it: 0 for none."""
    return 0 if limit == math.inf else round(limit)


def _counts(knobs: Knobs, folder: Path, disks: Collection[str] | None) -> dict[str, Four]:
    """What a group has done since it was made, by disk, of some or all; nothing of one that was removed."""
    counts: dict[str, list[float]] = {}
    with contextlib.suppress(CgroupGone):
        if _is_v2(folder):
            for disk, *words in filter(None, map(str.split, knobs.read(folder / "io.stat").splitlines())):
                for word in words:
                    name, _, value = word.partition("=")
                    if name in _STATS and value.isdecimal():
                        counts.setdefault(disk, [0.0] * 4)[_STATS[name]] = float(value)
        else:
            for half, name in enumerate(_V1_COUNTS):
                for words in map(str.split, knobs.read(folder / name).splitlines()):
                    if len(words) == 3 and words[1] in _WAYS and words[2].isdecimal():
                        counts.setdefault(words[0], [0.0] * 4)[2 * half + _WAYS[words[1]]] = float(words[2])
    return {disk: (one[0], one[1], one[2], one[3]) for disk, one in counts.items() if disks is None or disk in disks}


def _limits(knobs: Knobs, folder: Path, *, originals: bool = False) -> dict[str, Four]:
    """A group's limits by disk: those of now, or those before rlctl's first write."""
    found: dict[str, list[float]] = {}
    for place, name in enumerate(["io.max"] if _is_v2(folder) else _V1):
        original = knobs.original(folder / name) if originals else None
        text = knobs.read(folder / name) if original is None else original
        for disk, *words in filter(None, map(str.split, text.splitlines())):
            limits = found.setdefault(disk, list(FREE))
            for word in words:
                kind, _, value = word.rpartition("=")
                if value.isdecimal():
                    limits[KINDS.index(kind) if kind in KINDS else place] = float(value)
    return {disk: (one[0], one[1], one[2], one[3]) for disk, one in found.items()}
