"""Starts commands inside control groups, with nothing inherited from the controller, and ends them for certain."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from rlctl.envs.closing import Closing
from rlctl.envs.errors import RlctlError, TestbedError
from rlctl.envs.host import launch_barrier
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.decode import MOST_CPUS
from rlctl.envs.testbed import leftovers
from rlctl.envs.testbed.janitor import Janitor

GRACE_SECONDS = 1.0
KILL_SECONDS = 10.0  # for a starved process to run the last of its code
PAUSE_SECONDS = 0.005
TAIL_BYTES = 2000
POSTGRESQL = Path("/usr/lib/postgresql")  # Debian's, which has a folder for each version
SYSTEM_PROGRAMS = os.pathsep.join(  # not on every user's PATH
    ("/usr/local/sbin", "/usr/sbin", "/sbin", *map(str, sorted(POSTGRESQL.glob("*/bin"), reverse=True)))
)


def find_program(name: str, package: str) -> str:
    """Path of a program.

    Raises:
        TestbedError: It is not installed; names the Debian package.
    """
    program = shutil.which(name) or shutil.which(name, path=SYSTEM_PROGRAMS)
    if program is None:
        raise TestbedError(f"{name} is not installed: apt-get install {package}")
    return program


class Process:
    """A command that was started; made by `Launcher.start`.

    It leads a session of its own, so that all its descendants are known for as long as it is not reaped.

    Attributes:
        name: For messages and the names of its output files.
        pid: Its process id, which nobody else gets before `stop`.
    """

    def __init__(self, name: str, popen: subprocess.Popen[bytes], folder: Path, group: Group | None) -> None:
        self.name = name
        self.pid = popen.pid
        self.output, self.errors = _log_files(folder, name)
        self._popen = popen
        self._directories = () if group is None else group.directories

    @property
    def exit_code(self) -> int | None:
        """As `subprocess` has it, negative for a signal; None while it runs."""
        if self._popen.returncode is not None:
            return self._popen.returncode
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def release(self) -> None:
        """Let a held command begin. Idempotent.

        Raises:
            TestbedError: It has died.
        """
        assert self._popen.stdin is not None
        if self._popen.stdin.closed:
            return
        try:
            with self._popen.stdin as barrier:
                barrier.write(b"\n")
        except OSError as error:
            raise TestbedError(f"{self.name} ended before it had begun: {self.tail()}") from error

    def pids(self) -> tuple[int, ...]:
        """It and its descendants that are alive."""
        return tuple(sorted(leftovers.session(self.pid))) if self._popen.returncode is None else ()

    def tail(self) -> str:
        """The last lines it wrote, as one line for a message."""
        words = [_last(path) for path in (self.output, self.errors)]
        return " | ".join(line for text in words for line in text.splitlines()[-3:]) or "it said nothing"

    def wait(self, timeout_seconds: float) -> int | None:
        """Wait for it to end by itself; the exit code, or None if it still runs."""
        deadline = time.monotonic() + timeout_seconds
        while self.exit_code is None and time.monotonic() < deadline:
            time.sleep(PAUSE_SECONDS)
        return self.exit_code

    def stop(self, number: signal.Signals = signal.SIGTERM, grace_seconds: float = GRACE_SECONDS) -> int:
        """Ask it to end, thaw it, kill what is left of its session, reap it. Idempotent.

        In this order a frozen command meets the signal before it does anything else.

        Returns:
            Its exit code: -9 if it had to be killed.

        Raises:
            TestbedError: It does not die (stuck in the kernel).
        """
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)  # not reaped, so the number is its own
            leftovers.thaw(self._directories)
            self.wait(grace_seconds)
            _kill(self.name, self.pids, self._directories)
            self._popen.wait()
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        return self._popen.returncode


class Launcher(Closing):
    """Starts commands in one control group; a context manager that stops them all.

    Start from a thread that lives as long as the commands shall: the kernel ends them when the thread that started
    them does (PR_SET_PDEATHSIG).

    Args:
        folder: Working directory of the commands; takes their output. The janitor makes and removes one.
        group: Where they go; None leaves them in this process's groups.
        janitor: Records the commands, so that they end also when this process dies.
        inside: Put before every command, such as what enters a network namespace and becomes the command there.
        storage: Folder, as they see it, for data of which it matters on which disk they are; None where it does not.
    """

    def __init__(
        self,
        folder: Path,
        group: Group | None = None,
        janitor: Janitor | None = None,
        inside: Sequence[str] = (),
        storage: Path | None = None,
    ) -> None:
        self.folder, self.storage = folder, storage
        self.group = group
        self._inside = tuple(inside)
        self._janitor = janitor
        self._processes: list[Process] = []

    def start(self, name: str, command: Sequence[str]) -> Process:
        """Start a command. It runs its first instruction when it is in the group in every hierarchy.

        It gets normal scheduling, no niceness, every CPU that its cpuset allows (now and later), and a session of its
        own. Signals are the default ones, standard input is empty, and its output goes to two files of the folder.

        Raises:
            TestbedError: It cannot be run.
            CgroupError: The group does not take it.
        """
        process = self._begin(name, command)
        with self._failing(process):
            if self.group is not None:
                self.group.attach(process.pid)
            process.release()
        return process

    def close(self) -> None:
        """Stop all that was started, the last one first, and kill whoever else is in the group. Idempotent.

        Raises:
            TestbedError: A process does not die.
        """
        with contextlib.ExitStack() as stopping:
            if self.group is not None:  # processes that left their session, as daemons do, are still in it
                groups = self.group.directories
                stopping.callback(_kill, self.group.name, lambda: leftovers.members(groups), groups)
            for process in self._processes:
                stopping.callback(process.stop)
            self._processes.clear()

    def _begin(self, name: str, command: Sequence[str]) -> Process:
        process = Process(name, self._open(name, command), self.folder, self.group)
        self._processes.append(process)
        with self._failing(process):
            if self._janitor is not None:
                self._janitor.note_process(process.pid)
            _make_ordinary(process.pid)
        return process

    @contextlib.contextmanager
    def _failing(self, process: Process) -> Iterator[None]:
        """What goes wrong before a command begins ends it."""
        try:
            yield
        except (OSError, RlctlError) as error:
            process.stop(signal.SIGKILL)
            if isinstance(error, RlctlError):
                raise
            raise TestbedError(f"{process.name} ended before it had begun: {process.tail()}") from error

    def _open(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """The command behind the barrier."""
        output, errors = _log_files(self.folder, name)
        held = [sys.executable, "-I", "-S", launch_barrier.__file__, str(os.getpid()), *self._inside, *command]
        try:
            with output.open("wb") as out, errors.open("wb") as err, _interrupts_waiting():
                return subprocess.Popen(
                    held, bufsize=0, cwd=self.folder, stdin=subprocess.PIPE, stdout=out, stderr=err,
                    start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            raise TestbedError(f"cannot start {name}: {error.strerror}: {error.filename}") from error


@contextlib.contextmanager
def _interrupts_waiting() -> Iterator[None]:
    """A child that is begun here meets SIGINT only when it no longer is a Python that makes an exception of it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _make_ordinary(pid: int) -> None:
    """Undo what a child inherits from a controller that is real-time, niced or pinned.

    A real-time task may not even join a v1 CPU group. An affinity mask survives the move into another cpuset (kernels
    since 6.2), so it has to be the full one.
    """
    os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
    with contextlib.suppress(PermissionError):  # less nice than now: root only
        os.setpriority(os.PRIO_PROCESS, pid, 0)
    os.sched_setaffinity(pid, range(MOST_CPUS))  # CPUs that are not there are ignored


def _kill(whose: str, alive: Callable[[], Collection[int]], groups: Sequence[Path]) -> None:
    """Kill until none is alive; the groups are thawed for it, as a frozen process of v1 does not even die."""
    deadline = time.monotonic() + KILL_SECONDS
    while pids := alive():
        if time.monotonic() > deadline:
            raise TestbedError(f"{whose}: processes {sorted(pids)} do not die: frozen, or stuck in the kernel")
        leftovers.thaw(groups)
        for pid in pids:
            leftovers.kill(pid)
        time.sleep(PAUSE_SECONDS)


def _log_files(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.out", folder / f"{name}.err"


def _last(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""
