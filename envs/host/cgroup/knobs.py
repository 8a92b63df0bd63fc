"""Every write to a kernel file: journalled first, written once, read back."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from rlctl.envs.errors import CgroupError, CgroupGone
from rlctl.envs.host.cgroup.files import kind_of, own_value
from rlctl.envs.host.cgroup.journal import COMPACT_ENTRIES, Entry, Journal
from rlctl.envs.host.cgroup.kernel import Identity, Kernel, KernelFiles, refusal, refusing, whereabouts
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
