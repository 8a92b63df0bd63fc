"""Putting back what the journal remembers: works with no daemon, any number of times, after any crash."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rlctl.envs.errors import CgroupGone, RlctlError, printable
from rlctl.envs.host.cgroup.journal import (
    JOURNAL,
    OBSOLETE,
    RESTORED,
    STATE_DIR,
    Entry,
    StateLock,
    archive,
    boot_id,
    load,
)
from rlctl.envs.host.cgroup.kernel import Kernel, KernelFiles, refusal, whereabouts
from rlctl.envs.host.cgroup.knobs import is_made_class, kind_of, own_value
from rlctl.envs.host.cgroup.locks import other_holder, unmark
from rlctl.envs.host.decode import format_cpus, parse_cpus
from rlctl.envs.host.network import interface
from rlctl.envs.host.network.interface import is_interface

PATIENCE_SECONDS = 2.0
_PAUSE_SECONDS = 0.005

MOST_OF_A_REASON = 8
"""Files with one reason that a report names one by one."""

_PARENTS = {
    "cpuset.cpus": ("cpuset.cpus.effective", "cpuset.effective_cpus"),  # v2, v1
    "cpuset.mems": ("cpuset.mems.effective", "cpuset.effective_mems"),
}
_CONTESTED = "reads back otherwise: does another program write it too?"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that was not put back, or not literally."""

    path: Path
    why: str


@dataclass(slots=True)
class RestoreReport:
    """What a restore did.

    Attributes:
        restored: Files that were written and read back as their originals.
        unchanged: Files that held their originals already.
        equivalent: Files whose originals the kernel does not take back, and what they hold instead to the same effect.
        skipped: Files whose group is gone or is another one by now; nothing is left to do for them.
        failed: Files that could not be put back; the journal keeps them for another try.
    """

    restored: list[Path] = field(default_factory=list)
    unchanged: list[Path] = field(default_factory=list)
    equivalent: list[Skipped] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    failed: list[Skipped] = field(default_factory=list)
    note: str = "nothing to do"

    @property
    def ok(self) -> bool:
        """True when nothing is left to put back."""
        return not self.failed

    def __str__(self) -> str:
        items = (*self.equivalent, *self.skipped, *self.failed)
        counts = [
            f"{len(found)} {words}"
            for found, words in (
                (self.restored, "files put back"),
                (self.unchanged, "had not changed"),
                (self.equivalent, "put back to the same effect"),
                (self.skipped, "of groups that are gone"),
                (self.failed, "NOT put back"),
            )
            if found
        ]
        first = f"{', '.join(counts) or 'no file to put back'}; {self.note}"
        by_reason: dict[str, list[Path]] = {}
        for item in items:
            by_reason.setdefault(item.why, []).append(item.path)
        lines = [first]
        for why, paths in by_reason.items():
            # One line for many: after months of groups that came and went there are hundreds.
            told = paths if len(paths) <= MOST_OF_A_REASON else paths[:1]
            more = f" (and {len(paths) - 1} more files)" if len(paths) > len(told) else ""
            lines += [printable(f"{path}{more}: {why}") for path in told]
        return "\n".join(lines)


def restore(
    state_dir: Path = STATE_DIR,
    *,
    kernel: Kernel | None = None,
    proc: Path = Path("/proc"),
    force: bool = False,
    held: Sequence[Entry] = (),
    patience_seconds: float = PATIENCE_SECONDS,
) -> RestoreReport:
    """Put back every original that the journal holds, then set the journal aside.

    Args:
        force: Do not ask whether a live controller holds the directory.
        held: Originals that are not in it.
        patience_seconds: How long files that answer EBUSY and the like are tried again.

    Raises:
        HostError: A live controller holds the directory.
        PermissionMissing: The journal may not be read, or the directory not be locked.
    """
    if not held and not (state_dir / JOURNAL).exists():
        return RestoreReport()
    with contextlib.ExitStack() as closing:
        if not force:
            closing.callback(StateLock(state_dir, writable=False).close)
        if kernel is None:
            kernel = KernelFiles()
            closing.callback(kernel.close)
        return _restore_locked(state_dir, kernel, boot_id(proc), held, patience_seconds)


def _restore_locked(
    state_dir: Path, kernel: Kernel, boot: str, held: Sequence[Entry], patience_seconds: float
) -> RestoreReport:
    # Inode numbers and groups do not outlive a boot: what an old journal names is others' by now.
    recorded = load(state_dir)
    if recorded.entries and not recorded.is_of(boot):
        note = f"the journal is of an earlier boot, whose groups are gone: {_set_aside(state_dir, OBSOLETE)}"
        return RestoreReport(note=note)
    report = put_back([*recorded.entries, *held], state_dir, kernel, patience_seconds)
    report.failed += [
        Skipped(state_dir / JOURNAL, f"line {line} is unreadable: what it held must be put back by hand")
        for line in recorded.unreadable
    ]
    if report.ok:
        report.note = f"the journal is {_set_aside(state_dir, RESTORED)}"
        unmark({entry.path.parent for entry in recorded.entries}, state_dir)
    else:
        report.note = f"the journal stays at {state_dir / JOURNAL}: run restore again, or remove it"
    return report


def put_back(
    entries: Collection[Entry], state_dir: Path, kernel: Kernel, patience_seconds: float = PATIENCE_SECONDS
) -> RestoreReport:
    """Put back some originals of a journal, which keeps them, and whose directory the caller has locked."""
    report = RestoreReport(note="the journal keeps them")
    pending = _Pending(kernel, report, state_dir)
    pending.take(entry for entry in entries if not is_interface(entry.path))
    pending.work(patience_seconds)
    # BE's packets last: until then its groups were restricted.
    for entry in entries:
        if is_interface(entry.path):
            _put_back_interface(entry, report)
    return report


def _put_back_interface(entry: Entry, report: RestoreReport) -> None:
    try:
        found = interface.put_back(entry.identity)
    except RlctlError as error:
        report.failed.append(Skipped(entry.path, str(error)))
        return
    if found is None:
        report.skipped.append(Skipped(entry.path, "the interface has gone, and its queues with it"))
    else:
        (report.restored if found else report.unchanged).append(entry.path)


def _set_aside(state_dir: Path, name: str) -> str:
    """A disk that does not let the journal be renamed must not hide that all is back."""
    try:
        return archive(state_dir, name)
    except FileNotFoundError:
        return "gone"
    except OSError as error:
        return f"still {state_dir / JOURNAL} ({error.strerror}): remove it before the next start"


class _Pending:
    """Writes until everything reads as it was, or nothing moves any more."""

    # A v1 kernel refuses some orders: a parent's cpuset and quota must cover its children's at every moment, so growing
    # goes from the top and shrinking from the bottom. Going round, parents first, finds an order: whatever is refused
    # in one round succeeds in a later one, when its relatives have moved.

    def __init__(self, kernel: Kernel, report: RestoreReport, state_dir: Path) -> None:
        self._kernel = kernel
        self._report = report
        self._state_dir = state_dir
        self._entries: list[Entry] = []
        self._why: dict[Path, str] = {}
        self._instead: dict[Path, str] = {}
        self._removed: list[Entry] = []

    def take(self, entries: Iterable[Entry]) -> None:
        """Sort entries into those to work on, in their order, and those that need nothing."""
        for entry in sorted(entries, key=lambda entry: (kind_of(entry.path).rank, len(entry.path.parts))):
            if (group := whereabouts(self._kernel, entry.path.parent, entry.identity)) is None:
                anew = entry.path.parent.is_dir()
                why = "the group was re-created since; this one is not ours" if anew else "the group is gone"
                self._report.skipped.append(Skipped(entry.path, why))
            elif (holder := other_holder(group, self._state_dir)) is not None:
                why = f"another rlctl has taken the group over: `rlctl restore --state {holder}` comes first"
                self._report.failed.append(Skipped(entry.path, why))
            else:
                self._entries.append(replace(entry, path=group / entry.path.name))

    def work(self, patience_seconds: float) -> None:
        """Rounds of writes; fills the report."""
        deadline, made_room = time.monotonic() + patience_seconds, False
        # Rounds until nothing moves: growing goes from the top, shrinking from the bottom, and both occur.
        touched = pending = self._not_back()
        while pending:
            moved = [self._put_back(entry) for entry in pending]
            pending = self._not_back()
            if any(moved) and time.monotonic() < deadline:
                continue
            if not made_room:
                self._make_room(pending)
                made_room = True
                continue
            if time.monotonic() < deadline:
                time.sleep(_PAUSE_SECONDS)
            elif any(self._put_back_what_is_left(entry) for entry in pending):
                pending = self._not_back()  # and children may have more now
            else:
                break
        self._sum_up(touched, pending)

    def _sum_up(self, touched: Sequence[Entry], pending: Sequence[Entry]) -> None:
        # `unchanged` held its original before anything was written.
        back = [entry for entry in self._entries if entry not in pending]
        literally = [entry for entry in touched if entry.path not in self._instead]
        self._report.restored = [entry.path for entry in back if entry in literally]
        self._report.unchanged = [entry.path for entry in back if entry not in touched]
        self._report.equivalent = [
            Skipped(entry.path, _why_instead(entry, self._instead[entry.path]))
            for entry in back
            if entry.path in self._instead
        ]
        self._report.failed += [Skipped(entry.path, self._why.get(entry.path, _CONTESTED)) for entry in pending]

    def _put_back(self, entry: Entry) -> bool:
        """One write; True when it has changed anything, be it one of many disks."""
        text = ""
        try:
            if is_made_class(entry.path):
                with contextlib.suppress(FileNotFoundError):
                    self._kernel.remove_group(entry.path.parent)  # which moves its tasks to the default class
                self._removed.append(entry)
                return True
            now = own_value(self._kernel, entry.path)
            wanted = self._instead.get(entry.path, entry.original)
            self._kernel.write(entry.path, text := kind_of(entry.path).to_write(wanted, now))
            self._why.pop(entry.path, None)
            return own_value(self._kernel, entry.path) != now
        except OSError as error:
            self._why[entry.path] = str(refusal(error, entry.path, f"write {entry.original.strip()!r}"))
            if error.errno == errno.ENODEV and text:  # met reading, it tells of the group and of no disk
                return self._without_device(entry, text)
            return error.errno == errno.ENOSPC and self._widen(entry)

    def _without_device(self, entry: Entry, text: str) -> bool:
        """A disk that was detached took its limits along; those of the others are still to be put back."""
        wanted = self._instead.get(entry.path, entry.original).splitlines()
        left = [line for line in wanted if line.split()[:1] != text.split()[:1]]
        if left == wanted:
            return False
        self._instead[entry.path] = "\n".join(left)
        return True

    def _widen(self, entry: Entry) -> bool:
        # An empty cpuset means the parent's CPUs, but with tasks in the group no kernel lets it become empty again:
        # ENOSPC from validate_change in kernel/cgroup/cpuset.c.
        for name in _PARENTS.get(entry.path.name, ()) if not entry.original.strip() else ():
            with contextlib.suppress(OSError):
                self._kernel.write(entry.path, self._kernel.read(entry.path.parent.parent / name).strip())
                self._instead[entry.path] = own_value(self._kernel, entry.path).strip()
                return True
        return False

    def _put_back_what_is_left(self, entry: Entry) -> bool:
        """The last resort for CPUs or memory nodes of which some went offline: those that the parent still has."""
        # v1 takes none that its parent has not: EACCES from validate_change, or EINVAL below the root. The root has
        # those that are online.
        if entry.path.name not in _PARENTS or entry.path in self._instead:
            return False
        _, effective = _PARENTS[entry.path.name]
        with contextlib.suppress(OSError, ValueError):
            wanted = parse_cpus(entry.original)
            left = wanted & parse_cpus(self._kernel.read(entry.path.parent.parent / effective))
            if left and left != wanted:
                self._kernel.write(entry.path, text := format_cpus(left))
                self._instead[entry.path] = text
                return True
        return False

    def _not_back(self) -> list[Entry]:
        """Entries whose files do not hold their originals; those whose group vanished are dropped."""
        pending = []
        for entry in tuple(self._entries):
            try:
                if not self._is_back(entry):
                    pending.append(entry)
            except OSError as error:
                reason = refusal(error, entry.path, "read it")
                self._why[entry.path] = str(reason)
                pending.append(entry)
                if isinstance(reason, CgroupGone):
                    pending.pop()
                    self._entries.remove(entry)
                    self._report.skipped.append(Skipped(entry.path, "the group was removed meanwhile"))
        return pending

    def _is_back(self, entry: Entry) -> bool:
        if is_made_class(entry.path):
            return entry in self._removed
        own = own_value(self._kernel, entry.path)
        # A list of controllers, or `-name` of those alone that are to be off.
        same = entry.path.name == "cgroup.subtree_control" and kind_of(entry.path).same(entry.original, own)
        return same or own == entry.original or own.strip() == self._instead.get(entry.path)

    def _make_room(self, pending: Sequence[Entry]) -> None:
        """Stepping stones for v1 where no order is legal, parents first."""
        # A lifted quota fits below every parent and above every child. A cpuset with both its present and its original
        # CPUs lets children change sides: a family that is all on CPU 0 gets to CPU 1 in no other way.
        for entry in pending:
            with contextlib.suppress(OSError, ValueError):
                if entry.path.name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"):
                    self._kernel.write(entry.path.parent / "cpu.cfs_quota_us", "-1")
                elif entry.path.name in _PARENTS:
                    both = parse_cpus(self._kernel.read(entry.path)) | parse_cpus(entry.original)
                    self._kernel.write(entry.path, format_cpus(both))


def _why_instead(entry: Entry, instead: str) -> str:
    """Why a file holds this and not its original."""
    if entry.path.name in _PARENTS and entry.original.strip():
        return f"its parent has no more of {entry.original.strip()} by now: left at {instead}"
    if entry.path.name in _PARENTS:
        return f"the kernel takes no empty list while tasks run: left at all its parent has ({instead})"
    gone = [line for line in entry.original.splitlines() if line not in instead.splitlines()]
    return f"the disk is gone, and its limits with it ({'; '.join(gone)})"
