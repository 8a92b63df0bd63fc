"""Ends what a record lists: processes, control groups, folders. Also the keeper: `python -I -S leftovers.py RECORD`.

The keeper is a process of its own that sleeps on a pipe from its owner. The pipe ends with the owner, however that
dies, and the keeper then clears the record. It is started as a file in a bare interpreter, since it sits there for the
whole run, without what the package weighs. So this module uses nothing outside the standard library.

A record has one JSON object per line: `{"boot": ID}` first, then `{"pid", "start"}`, `{"group", "identity"}` and
`{"folder", "identity"}`. A pid counts only with its start time and a directory only with its device and inode, so that
nothing that came to the same name later is touched.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROC = Path("/proc")
PATIENCE_SECONDS = 10.0  # to die and leave groups: a worker that was starved needs some milliseconds of CPU time
PAUSE_SECONDS = 0.01
FOLDER_PREFIX = "rlctl-"  # a record is no licence to remove anything else


@dataclass(frozen=True, slots=True)
class LeftoverProcess:
    """A process, as /proc/PID/stat tells it.

    Attributes:
        state: One letter; `Z` has ended and waits for its parent.
        session: Pid of the process that began its session.
        start_ticks: When it began, in clock ticks since boot; with the pid this names one process for good.
    """

    pid: int
    state: str
    session: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        """False for one that has ended, reaped or not."""
        return self.state not in "ZX"


def boot_id(proc: Path = PROC) -> str:
    """The kernel's id of this boot; empty where there is none."""
    with contextlib.suppress(OSError):
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    return ""


def task(pid: int, proc: Path = PROC) -> LeftoverProcess | None:
    """One process; None when there is none."""
    try:
        stat = (proc / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    fields = stat.rpartition(b")")[2].split()  # the name before it may hold anything
    return LeftoverProcess(pid, fields[0].decode(), int(fields[3]), int(fields[19]))


def tasks(proc: Path = PROC) -> Iterator[LeftoverProcess]:
    """All processes that there are now."""
    for name in os.listdir(proc):
        if name.isdigit() and (process := task(int(name), proc)) is not None:
            yield process


def session(leader: int, proc: Path = PROC) -> frozenset[int]:
    """Live processes of the session that this one began. The number is theirs for as long as there is one."""
    return frozenset(process.pid for process in tasks(proc) if process.session == leader and process.alive)


def identity(path: Path) -> list[int]:
    """Device and inode of a directory.

    Raises:
        OSError: It does not exist.
    """
    status = os.stat(path)
    return [status.st_dev, status.st_ino]


def thaw(groups: Iterable[Path]) -> None:
    """Let tasks run in groups of whatever version, and in those below them; a frozen one of v1 does not even die."""
    for group in groups:
        for folder, _, files in os.walk(group):
            for name, value in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
                if name in files:
                    with contextlib.suppress(OSError):
                        _write(Path(folder, name), value)


def members(groups: Iterable[Path], proc: Path = PROC) -> frozenset[int]:
    """Live processes in groups and below them."""
    pids: set[int] = set()
    for group in groups:
        for folder, _, files in os.walk(group):
            with contextlib.suppress(OSError):
                listing = Path(folder, "cgroup.procs").read_text() if "cgroup.procs" in files else ""
                pids.update(map(int, listing.split()))
    processes = (task(pid, proc) for pid in pids)
    return frozenset(process.pid for process in processes if process is not None and process.alive)


def kill(pid: int, number: int = signal.SIGKILL, start_ticks: int | None = None) -> bool:
    """Signal one process by a handle, so that its pid cannot pass to another one in between.

    With `start_ticks` it is signalled only if it began then.

    Returns:
        Whether it was there.
    """
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        now = task(pid)
        if now is None or not now.alive or start_ticks not in (None, now.start_ticks):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def clear(record: Path) -> list[str]:
    """End and remove all that a record lists, then the record; what could not be removed keeps it.

    Returns:
        What is left, one line each; empty when all is gone.
    """
    lines = list(_lines(record))
    same_boot = boot_id() in {line["boot"] for line in lines if "boot" in line}
    groups = [path for path in _directories(lines, "group") if same_boot]
    recorded = {line["pid"]: line["start"] for line in lines if "pid" in line and same_boot}
    deadline = time.monotonic() + PATIENCE_SECONDS
    left = [f"process {pid} does not die" for pid in _end(recorded, groups, deadline)]
    left += [problem for group in reversed(groups) if (problem := _remove(group, deadline))]
    for folder in _directories(lines, "folder"):
        if folder.name.startswith(FOLDER_PREFIX):
            shutil.rmtree(folder, ignore_errors=True)
    if not left:
        record.unlink(missing_ok=True)
    return left


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found.

    Attributes:
        cleared: Records of dead owners whose processes, groups and folders are gone now, or in a dry run would be.
        running: Records whose owners are alive; they were left alone.
        left: What could not be removed, one line each; its records stay for another try.
    """

    cleared: tuple[Path, ...] = ()
    running: tuple[Path, ...] = ()
    left: tuple[str, ...] = ()


def default_state_dir() -> Path:
    """Where records live: a folder that nobody else can write, as a record tells what to kill and to remove."""
    if os.geteuid() == 0:
        return Path("/run/rlctl/testbed")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "rlctl" if runtime else Path.home() / ".local/state/rlctl/testbed"


def sweep(state_dir: Path | None = None, *, dry_run: bool = False) -> Swept:
    """Remove what dead owners left behind, or only look for it; harmless when there is nothing."""
    cleared, running, left = list[Path](), list[Path](), list[str]()
    folder = state_dir or default_state_dir()
    try:
        records = sorted(folder.glob("testbed-*.jsonl"))
    except OSError as error:  # HOME is another user's, as under `setpriv` or `sudo` without -H
        why = (
            f"{folder}: {error.strerror}: cannot look there for what a testbed has left; set HOME to a folder of yours"
        )
        return Swept(left=(why,))
    for record in records:
        with contextlib.suppress(FileNotFoundError), record.open("rb") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # its owner lives, or another sweep is at it
                running.append(record)
                continue
            problems = [] if dry_run else clear(record)
            left += problems
            cleared += [] if problems else [record]
    return Swept(tuple(cleared), tuple(running), tuple(left))


def main(arguments: list[str]) -> int:
    """Wait for the end of standard input, then clear the record, the one argument, if nobody has.

    Returns:
        Exit code: 1 if something is left.
    """
    while os.read(0, 1):
        pass
    record = Path(arguments[0])
    try:
        with record.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)  # its owner had it
            return 1 if clear(record) else 0
    except FileNotFoundError:  # the owner has cleared it, or another sweep
        return 0


def _end(recorded: Mapping[int, int], groups: list[Path], deadline: float) -> list[int]:
    """Kill until nobody is left; who is at the deadline."""
    while True:
        thaw(groups)
        table = {one.pid: one for one in tasks()}
        leaders = {pid for pid, start in recorded.items() if pid in table and table[pid].start_ticks == start}
        led = {one.pid for one in table.values() if one.alive and (one.session in leaders or one.pid in leaders)}
        doomed = (led | members(groups)) - {os.getpid()}
        for pid in doomed:
            kill(pid, start_ticks=table[pid].start_ticks if pid in table else None)
        if not doomed or time.monotonic() > deadline:
            return sorted(doomed)
        time.sleep(PAUSE_SECONDS)


def _remove(group: Path, deadline: float) -> str:
    """Remove a group and those below it; what stands in the way, if anything."""
    while True:
        try:
            for folder, _, _ in os.walk(group, topdown=False):
                os.rmdir(folder)
        except FileNotFoundError:
            return ""
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                return f"{group}: cannot remove it: {error.strerror}"
            time.sleep(PAUSE_SECONDS)
        else:
            return ""


def _lines(record: Path) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(FileNotFoundError):
        for line in record.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):  # torn by the crash: what it told was not done yet
                yield json.loads(line)


def _directories(lines: Iterable[Mapping[str, Any]], kind: str) -> Iterator[Path]:
    """Those listed that are still the same directories."""
    for line in lines:
        with contextlib.suppress(KeyError, OSError):
            if identity(Path(line[kind])) == line["identity"]:
                yield Path(line[kind])


def _write(path: Path, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # never makes the file
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
