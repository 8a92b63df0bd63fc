"""Whatever a testbed starts or makes is recorded here first-hand, and gone afterwards: at exit, Ctrl-C or a crash.

On a clean end `close` clears the record. When the process dies, its keeper does (see `leftovers`). When both die, or
the machine's power fails, the next start does, or `rlctl restore`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from rlctl.envs.closing import Closing
from rlctl.envs.errors import PermissionMissing, TestbedError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.testbed import leftovers

log = logging.getLogger(__name__)

KEEPER_SECONDS = 2.0 + leftovers.PATIENCE_SECONDS


class Janitor(Closing):
    """Keeps the record of this process. Sweeps first, so that nothing of an earlier crash is in the way.

    Args:
        state_dir: Where the records are; by default `leftovers.default_state_dir()`.
        keeper: Start the process that clears the record when this one dies.

    Raises:
        PermissionMissing: The folder cannot be written.
        TestbedError: The keeper cannot be started.
    """

    def __init__(self, state_dir: Path | None = None, *, keeper: bool = True) -> None:
        folder = state_dir or leftovers.default_state_dir()
        for problem in leftovers.sweep(folder).left:
            log.warning("left by an earlier run: %s", problem)
        self._record, self._file = _new_record(folder)
        self._keeper: subprocess.Popen[bytes] | None = None
        self._note({"boot": leftovers.boot_id()})
        if keeper:
            try:
                self._keeper = _start_keeper(self._record)
            except OSError as error:
                self.close()
                raise TestbedError(f"cannot start the keeper with {sys.executable}: {error.strerror}") from error

    def note_process(self, pid: int) -> None:
        """Record a process; with it goes the session that it leads. One that has ended already is left out."""
        if (now := leftovers.task(pid)) is not None:
            self._note({"pid": pid, "start": now.start_ticks})

    def note_group(self, *directories: Path) -> None:
        """Record control groups that were made for the testbed, parents before children.

        Raises:
            TestbedError: There is no such group.
        """
        for directory in directories:
            try:
                self._note({"group": str(directory), "identity": leftovers.identity(directory)})
            except OSError as error:
                raise TestbedError(f"{directory}: {error.strerror}: make the group before recording it") from error

    @contextlib.contextmanager
    def group(
        self, layout: Layout, name: str, knobs: Knobs, also: Collection[CgroupController] = ()
    ) -> Iterator[Group]:
        """A new control group, recorded, and removed at the end; arguments and errors are those of `Group.create`."""
        made = Group.create(layout, name, knobs, also)
        try:
            self.note_group(*made.directories)
            yield made
        finally:
            made.remove()

    def make_folder(self, parent: Path | None = None) -> Path:
        """A new temporary folder, for this user only; its path is short enough for a socket in it."""
        self._check_open()
        folder = Path(tempfile.mkdtemp(prefix=leftovers.FOLDER_PREFIX, dir=parent))
        self._note({"folder": str(folder), "identity": leftovers.identity(folder)})
        return folder

    def close(self) -> tuple[str, ...]:
        """End and remove whatever is left of what was recorded. Idempotent.

        Returns:
            What could not be removed, one line each; the next sweep tries again.
        """
        if self._file < 0:
            return ()
        left = leftovers.clear(self._record)
        os.close(self._file)
        self._file = -1
        if self._keeper is not None:
            assert self._keeper.stdin is not None
            self._keeper.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it has nothing to do any more, and ends by itself
                self._keeper.wait(KEEPER_SECONDS)
        for problem in left:
            log.warning("%s", problem)
        return tuple(left)

    def _check_open(self) -> None:
        if self._file < 0:
            raise TestbedError("the janitor has been closed: nothing can be started any more")

    def _note(self, line: dict[str, Any]) -> None:
        self._check_open()
        os.write(self._file, (json.dumps(line) + "\n").encode())


def _new_record(folder: Path) -> tuple[Path, int]:
    """A locked record; it gets its name last, so that no sweep takes it for an orphan."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file, unnamed = tempfile.mkstemp(prefix=".new-", dir=folder)
    except OSError as error:
        raise PermissionMissing(f"{folder}: {error.strerror}: run as root, or name another state folder") from error
    fcntl.flock(file, fcntl.LOCK_EX)
    record = folder / f"testbed-{os.getpid()}-{Path(unnamed).name.removeprefix('.new-')}.jsonl"
    os.rename(unnamed, record)
    return record, file


def _start_keeper(record: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", leftovers.__file__, str(record)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for its owner
        cwd="/",
    )
