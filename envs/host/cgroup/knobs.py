"""Every setting that the controller writes: journalled first, written once, read back.

What is particular to each file, how two contents compare and how an original is written back, stands in `FileKind`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from rlctl.envs.errors import CgroupError, CgroupGone
from rlctl.envs.host.cgroup.journal import COMPACT_ENTRIES, Entry, Journal
from rlctl.envs.host.cgroup.kernel import Identity, Kernel, KernelFiles, refusal, refusing, whereabouts
from rlctl.envs.host.cgroup.schemata import Schemata
from rlctl.envs.host.decode import parse_cpus
from rlctl.envs.host.network.interface import is_interface

_log = logging.getLogger(__name__)

_NOTHING: Mapping[Path, str] = MappingProxyType({})


class Knobs:
    """Reads and writes single kernel files.

    Args:
        journal: Takes the original of each file before its first write. None for groups that are ours alone and are
            removed afterwards: nothing can then be put back.
        dry_run: Only log what would be written; the journal is left alone as well.

    Attributes:
        in_memory: Go on with originals in memory when the disk takes none. Once a controller has begun, a BE group that
            runs free is worse than one whose originals are lost if the controller is killed before they are stored.
    """

    def __init__(self, journal: Journal | None, kernel: Kernel | None = None, *, dry_run: bool = False) -> None:
        self.kernel = kernel or KernelFiles()
        self.dry_run = dry_run
        self.in_memory = False
        self._journal = journal
        # By the file's name and the group's identity: v1 lets a group have another name.
        self._originals: dict[tuple[str, Identity], Entry] = {}
        self._written: dict[Path, str] = {}
        self._given: Mapping[Path, str] = {}
        self._sweep_at = COMPACT_ENTRIES
        if journal is not None:
            self._keep(journal.entries)

    def read(self, path: Path) -> str:
        """The content now, as the kernel prints it.

        Raises:
            CgroupGone: The group was removed.
            PermissionMissing: The file may not be read.
            CgroupError: Anything else.
        """
        if (text := self._given.get(path)) is not None:
            return text
        try:
            return self.kernel.read(path)
        except OSError as error:
            raise refusal(error, path, "read it") from error

    def texts(self, paths: Iterable[Path]) -> tuple[str, ...]:
        """The contents of several files now; none at all where one of them cannot be read."""
        try:
            return tuple([self.kernel.read(path) for path in paths])
        except OSError:
            return ()

    def children(self, group: Path) -> tuple[Path, ...]:
        """Child groups that exist at this moment; none when the group itself vanished."""
        with contextlib.suppress(OSError):
            return self.kernel.subgroups(group)
        return ()

    @contextlib.contextmanager
    def answer_from(self, texts: Mapping[Path, str]) -> Iterator[None]:
        """Meanwhile `read` answers what was just read, rather than reading it again."""
        self._given = texts
        try:
            yield
        finally:
            self._given = {}

    def original(self, path: Path) -> str | None:
        """What the group that is there now had in this file before our first write; None if never written."""
        # By identity, not by path: a group made anew under an old name has originals of its own.
        identity = self._identity(path.parent) if self._originals else None
        entry = None if identity is None else self._originals.get((path.name, identity))
        return None if entry is None else entry.original

    def groups_changed_below(self, path: Path) -> list[Path]:
        """Groups below that of a file of whose file of that name an original is kept, parents first."""
        below = f"{path.parent}/"
        # By path first, which costs nothing; the kernel is asked for those few only.
        changed = [
            entry
            for entry in self._originals.values()
            if entry.path.name == path.name and entry.path.parent != path.parent and str(entry.path).startswith(below)
        ]
        places = [whereabouts(self.kernel, entry.path.parent, entry.identity) for entry in changed]
        return sorted(filter(None, places), key=lambda place: len(place.parts))

    def remember(
        self, paths: Iterable[Path], instead: Mapping[Path, str] = _NOTHING, *, skip_gone: bool = False
    ) -> None:
        """Journal the originals of several files with one fsync, ahead of their first writes.

        Args:
            instead: What is to be put back into some of them in place of what they hold. A group that was made while
                those above it were restricted has the restriction, not an original.
            skip_gone: Leave out files of groups that vanished, rather than raise CgroupGone.

        Raises:
            CgroupError: A file cannot be read.
            HostError: The journal cannot be written; the files then must not be either.
        """
        if self.dry_run:
            return
        # All in one record: each costs an fsync, of some milliseconds on a disk.
        new = []
        for path in [path for path in paths if self.original(path) is None]:
            try:
                new.append(self._entry(path, instead.get(path)))
            except CgroupGone:
                if not skip_gone:
                    raise
        if self._journal is not None and new:
            self._journal.record(new, in_memory=self.in_memory)
        self._keep(new)
        if len(self._originals) >= self._sweep_at:
            self._sweep()

    def store(self) -> None:
        """Try again to store originals that are in memory only, also where somebody took the journal away."""
        if self._journal is None:
            return
        self._journal.defend()
        if self._journal.unstored:
            self._journal.record((), in_memory=True)

    def write(self, path: Path, text: str) -> None:
        """Write a value and make sure that the kernel took it.

        Args:
            text: The value, without a newline.

        Raises:
            PermissionMissing: EACCES or EPERM.
            CgroupGone, CgroupBusy, CgroupRejected: The kernel's refusal.
            CgroupError: It reads back as something else.
            HostError: The original could not be journalled.
        """
        # The original is on the disk before the first write, whatever happens after it.
        self.remember([path])
        if self.dry_run:
            _would_write(path, text)
            return
        # In one write and without truncation: kernfs takes each write as a whole value (kernel/cgroup, fs/kernfs).
        with refusing(path, f"write {text.strip()!r}"):
            self.kernel.write(path, text)
        self._written[path] = text
        # Read back: a kernel may take a write and do something else, and so may another program.
        if not kind_of(path).same(text, got := self._own(path)):
            raise CgroupError(
                f"{path}: wanted {text.strip()!r}, reads back {got.strip()!r}: another program writes it too"
            )

    def holds(self, path: Path) -> bool:
        """Whether a file reads as it was last written here; also where it never was, or cannot be read now."""
        text = self._written.get(path)
        try:
            return text is None or kind_of(path).same(text, own_value(self.kernel, path))
        except OSError:
            return True

    def rewrite(self, path: Path) -> None:
        """Write the value that the file has: whether it takes one. Raises as `write` does."""
        # Only the kernel can say whether a write is allowed: it is given what it has.
        own = self._own(path)
        self.write(path, kind_of(path).to_write(own, own))

    def poke(self, path: Path, text: str) -> None:
        """Write what is no setting and cannot be read back, such as a pid to cgroup.procs. Raises as `write` does."""
        if self.dry_run:
            _would_write(path, text)
            return
        with refusing(path, f"write {text.strip()!r}"):
            self.kernel.write(path, text)

    def forget(self, groups: Iterable[Path]) -> None:
        """Groups were removed, with all below them: their files are let go, and their originals are nobody's any more.

        Args:
            groups: Their directories; another group may have taken the name since.
        """
        # With the slash: `a` must not take `ab` along.
        gone = tuple(f"{group}/" for group in groups)
        for group in gone:
            with contextlib.suppress(OSError):
                self.kernel.read(Path(group, "cgroup.procs"))  # which closes what is open of a removed group
        self._written = {path: text for path, text in self._written.items() if not str(path).startswith(gone)}
        for key, entry in [item for item in self._originals.items() if str(item[1].path).startswith(gone)]:
            if whereabouts(self.kernel, entry.path.parent, entry.identity) is None:
                del self._originals[key]
        if self._journal is not None and not self.dry_run:
            self._journal.compact({(entry.path, entry.identity) for entry in self._originals.values()})

    def close(self) -> None:
        """Close the kernel's files; the journal stays with whoever opened it. Idempotent."""
        self.kernel.close()

    def make_group(self, group: Path) -> None:
        """Make a group's directory, with the errors of `write`; also in a dry run, unlike the files."""
        with refusing(group, "make it", group=True):
            self.kernel.make_group(group)

    def _sweep(self) -> None:
        """Forget groups that are gone and of which nobody told: those below BE's groups come and go unseen."""
        places = {entry.identity: entry.path.parent for entry in self._originals.values()}
        self.forget([place for identity, place in places.items() if self._identity(place) != identity])
        self._sweep_at = max(COMPACT_ENTRIES, 2 * len(self._originals))

    def _keep(self, entries: Iterable[Entry]) -> None:
        files = (entry for entry in entries if not is_interface(entry.path))
        self._originals.update({(entry.path.name, entry.identity): entry for entry in files})

    def _identity(self, group: Path) -> Identity | None:
        try:
            return self.kernel.identity(group)
        except OSError:
            return None

    def _own(self, path: Path) -> str:
        with refusing(path, "read it"):
            return own_value(self.kernel, path)

    def _entry(self, path: Path, original: str | None) -> Entry:
        with refusing(path, "read it"):
            own = own_value(self.kernel, path) if original is None else original
            return Entry(path, own, self.kernel.identity(path.parent))


def _would_write(path: Path, text: str) -> None:
    _log.info("dry run: would write %r to %s", text, path)


def _same_text(wanted: str, got: str) -> bool:
    return wanted.strip() == got.strip()


def _same_list(wanted: str, got: str) -> bool:
    try:
        return parse_cpus(wanted) == parse_cpus(got)
    except ValueError:
        return False


def _same_fields(wanted: str, got: str) -> bool:
    # A lone `max` keeps the period, and reads back as `max 10000` (cgroup-v2.rst, "cpu.max").
    fields = wanted.split()
    return fields == got.split()[: len(fields)]


def _same_controllers(wanted: str, got: str) -> bool:
    """Either `+cpu -io`, as it is written, or the list that a read answers."""
    enabled = set(got.split())
    signed = [word for word in wanted.split() if word[0] in "+-"]
    if not signed:
        return set(wanted.split()) == enabled
    return all((word[1:] in enabled) == (word[0] == "+") for word in signed)


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _same_pages(wanted: str, got: str) -> bool:
    # Memory counts in whole pages, and more than there can be is `max` (page_counter_memparse in mm/page_counter.c).
    if wanted.strip() == got.strip():
        return True
    with contextlib.suppress(ValueError):
        return int(wanted) // _PAGE_BYTES == int(got) // _PAGE_BYTES
    return False


def _same_default(wanted: str, got: str) -> bool:
    """`50` and `default 50` alike; weights of single devices may follow below."""
    return wanted.split()[-1:] == got.partition("\n")[0].split()[-1:]


def _default_as_it_was(original: str, _now: str) -> str:
    return original.partition("\n")[0]


def _by_device(content: str) -> dict[str, str]:
    return {device: rest for device, _, rest in (line.partition(" ") for line in content.splitlines() if line)}


def _same_device(wanted: str, got: str) -> bool:
    # What was written of a device is listed of it; one without limits is not listed (cgroup-v2.rst, "io.max").
    device, _, limits = wanted.strip().partition(" ")
    listed = _by_device(got).get(device, "").split()
    return all(limit in listed or limit == "0" or (limit.endswith("=max") and not listed) for limit in limits.split())


def _device_to_write(original: str, now: str) -> str:
    """One device at a time is all that the kernel takes: the first that is not yet as it was.

    Those that are listed now come first: of one that is not, the disk may be gone, and the kernel refuse it.
    """
    before, after = _by_device(original), _by_device(now)
    for device in sorted(before.keys() | after.keys(), key=lambda device: (device not in after, device)):
        if before.get(device) != after.get(device):
            lifted = "rbps=max wbps=max riops=max wiops=max" if "=" in now else "0"
            return f"{device} {before.get(device, lifted)}"
    return original.strip() or "\n"


def _same_schemata(wanted: str, got: str) -> bool:
    # The kernel lines its columns up, and lists what was not written too (Documentation/arch/x86/resctrl.rst).
    with contextlib.suppress(ValueError):
        return Schemata.parse(got).includes(Schemata.parse(wanted))
    return False


def _as_it_was(original: str, _now: str) -> str:
    return original.strip() or "\n"  # a write of no bytes never reaches the kernel


def _controllers_to_toggle(original: str, now: str) -> str:
    """An original is a list as it was read, or `-cpu -io`: only these off, whatever others have switched on since."""
    before, after = set(original.split()), set(now.split())
    if original.startswith("-"):
        return " ".join(word for word in original.split() if word[1:] in after)
    return " ".join([f"-{name}" for name in sorted(after - before)] + [f"+{name}" for name in sorted(before - after)])


@dataclass(frozen=True, slots=True)
class FileKind:
    """How one kind of file is compared and put back.

    Attributes:
        rank: Its turn when originals are put back.
        same: Whether what was written and what was read mean the same.
        to_write: The text that brings an original back, given the content now.
    """

    rank: int
    same: Callable[[str, str], bool] = _same_text
    to_write: Callable[[str, str], str] = _as_it_was


_KINDS: dict[str, FileKind] = {
    # First what the kernel resets other files by: leaving cpu.idle sets the weight to its default
    # (sched_group_set_idle in kernel/sched/fair.c).
    "cpu.idle": FileKind(0),
    "cpu.cfs_period_us": FileKind(1),
    "cpu.cfs_quota_us": FileKind(1),
    "cpu.max": FileKind(1, _same_fields),
    # The burst may not exceed the quota (sched-bwc.rst, "Burst feature").
    "cpu.cfs_burst_us": FileKind(2),
    "cpu.max.burst": FileKind(2),
    "cpuset.mems": FileKind(3, _same_list),
    "cpuset.cpus": FileKind(3, _same_list),
    "cpu.shares": FileKind(4),
    "cpu.weight": FileKind(4),
    **dict.fromkeys(("memory.min", "memory.low", "memory.high", "memory.max"), FileKind(4, _same_pages)),
    **dict.fromkeys(("memory.limit_in_bytes", "memory.soft_limit_in_bytes"), FileKind(4, _same_pages)),
    **dict.fromkeys(("io.weight", "io.bfq.weight"), FileKind(4, _same_default, _default_as_it_was)),
    **dict.fromkeys(
        ("io.max", *(f"blkio.throttle.{way}_{unit}_device" for way in ("read", "write") for unit in ("bps", "iops"))),
        FileKind(4, _same_device, _device_to_write),
    ),
    "schemata": FileKind(4, _same_schemata),
    # Thawed only when all limits are back, so that nothing runs under limits that are not its own.
    "freezer.state": FileKind(5),
    "cgroup.freeze": FileKind(5),
    # Controllers last: their files vanish with them.
    "cgroup.subtree_control": FileKind(6, _same_controllers, _controllers_to_toggle),
}
_OTHER = FileKind(4)


def is_made_class(path: Path) -> bool:
    """Whether a file is of a resctrl class that rlctl made: what is put back there is that the class was not."""
    return path.name == "schemata" and path.parent.name.startswith("rlctl-")


def kind_of(path: Path) -> FileKind:
    """The kind, by the file's name."""
    return _KINDS.get(path.name, _OTHER)


def own_value(kernel: Kernel, path: Path) -> str:
    """The group's own setting in this file.

    That is its content, but for v1 `freezer.state`, which shows FROZEN when only an ancestor is frozen and FREEZING on
    the way. Written back literally, the former would leave a group frozen that nobody had frozen.
    """
    if path.name != "freezer.state":
        return kernel.read(path)
    return "FROZEN\n" if kernel.read(path.parent / "freezer.self_freezing").strip() == "1" else "THAWED\n"
