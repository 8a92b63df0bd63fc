"""What the testbed starts: programs, services that answer on a socket, and the work that best-effort jobs count."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rlctl.envs.errors import TestbedError
from rlctl.envs.testbed.generator import GeneratorConfig
from rlctl.envs.testbed.launch import Launcher, Process

READY_SECONDS = 10.0
PAUSE_SECONDS = 0.01
LONGEST_SOCKET_PATH_BYTES = 107  # sun_path of unix(7), without its closing zero


class Program(ABC):
    """A command that is started once and runs until it is stopped.

    Attributes:
        name: For messages and for the names of its output files.
    """

    name: str
    _process: Process | None = None

    @property
    def process(self) -> Process:
        """The process that runs.

        Raises:
            TestbedError: It has not been started, or was stopped.
        """
        if self._process is None:
            raise TestbedError(f"{self.name} does not run; start it first")
        return self._process

    def start(self, launcher: Launcher) -> None:
        """Start it in the launcher's group.

        Raises:
            TestbedError: It is not installed, runs already, or cannot be run.
        """
        if self._process is not None:
            raise TestbedError(f"{self.name} runs already; stop it first")
        self._process = launcher.start(self.name, self._command(launcher))

    @abstractmethod
    def _command(self, launcher: Launcher) -> list[str]:
        """Program and arguments; makes the files that they name."""

    def await_that(self, condition: Callable[[], bool], what: str, timeout_seconds: float = READY_SECONDS) -> None:
        """Wait for something that the program does.

        Args:
            condition: Whether it has done so; an OSError (refused, no file yet) means not yet.
            what: What that is, after "did not".

        Raises:
            TestbedError: It does not run, ended, or does not do it in time; with its last words.
        """
        deadline = time.monotonic() + timeout_seconds
        while not _succeeds(condition):
            self.check()
            if time.monotonic() > deadline:
                raise TestbedError(f"{self.name} did not {what} in {timeout_seconds:g} s: {self.process.tail()}")
            time.sleep(PAUSE_SECONDS)

    def check(self) -> None:
        """See that it still runs.

        Raises:
            TestbedError: It does not, or ended; with its last words.
        """
        if (code := self.process.exit_code) is not None:
            raise TestbedError(f"{self.name} ended with code {code}: {self.process.tail()}")

    def pids(self) -> tuple[int, ...]:
        """Its processes; empty when it does not run."""
        return () if self._process is None else self._process.pids()

    def stop(self) -> object:
        """End it and all its descendants. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.stop()
        return None


class LcProgram(Program):
    """A latency-critical service on a unix socket in a folder of its own, apart from any that the host runs.

    Args:
        address: IPv4 address and TCP port to serve at instead, in a network namespace of the testbed's.
    """

    request: bytes
    """Asks it whether it serves."""
    answer: bytes
    """Stands in its reply when it does."""
    _folder: Path | None = None

    def __init__(self, address: tuple[str, int] | None = None) -> None:
        self.address = address

    @property
    def folder(self) -> Path:
        """The folder of its files.

        Raises:
            TestbedError: It has not been started.
        """
        if self._folder is None:
            raise TestbedError(f"{self.name} has not been started")
        return self._folder

    @property
    def socket(self) -> Path:
        """The socket that it listens on."""
        return self.folder / "socket"

    def ready(self, timeout_seconds: float = READY_SECONDS) -> None:
        """Wait until it answers a request.

        Raises:
            TestbedError: It has not been started, ended, or does not answer in time; with its last words.
        """
        if self.address is not None:  # in another namespace: nobody here can talk to it
            port = self.address[1]
            self.await_that(lambda: _listens(self.process.pid, port), f"listen on port {port}", timeout_seconds)
        else:
            self.await_that(lambda: self.answer in talk(self.socket, self.request), "answer", timeout_seconds)

    @abstractmethod
    def load(self) -> GeneratorConfig:
        """What the load generator has to aim at; replace what concerns the generator itself."""

    def _aim_at_listener(self, load: GeneratorConfig) -> GeneratorConfig:
        """The load, aimed at where this service listens."""
        if self.address is None:
            return replace(load, unix_path=self.socket)
        return replace(load, address=self.address[0], port=self.address[1])

    def _make_folder(self, launcher: Launcher) -> Path:
        """A new folder below the launcher's whose path leaves room for a socket."""
        self._folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=launcher.folder))
        if len(os.fsencode(self.socket)) > LONGEST_SOCKET_PATH_BYTES:
            self._folder.rmdir()
            raise TestbedError(f"{self.socket}: too long for a unix socket; use a folder nearer to the root")
        return self._folder


class BeJob(Program):
    """A best-effort job that counts what it does, from its start on, or from its first `begin`."""

    _begin_seconds = 0.0

    def start(self, launcher: Launcher) -> None:
        """Start it in the launcher's group; it may be frozen or throttled from the first instruction on.

        Raises:
            TestbedError: It is not installed, runs already, or cannot be run.
        """
        super().start(launcher)
        self._begin_seconds = time.monotonic()

    @abstractmethod
    def ready(self) -> None:
        """Wait until it is at its work, or could begin; the start takes CPU time.

        Raises:
            TestbedError: It does not get there, or ended; with its last words.
        """

    def begin(self) -> None:
        """Let it begin in earnest: a run begins, and the first allocation is in force."""

    @abstractmethod
    def stop(self) -> Work:
        """End it; what it has done. Afterwards it is gone, also when this raises.

        Raises:
            TestbedError: It does not run, had ended before, or did not report.
        """


class Transfer(BeJob):
    """A program of ours that begins at SIGUSR1 and moves bytes until it is stopped; they are its work.

    Attributes:
        opens: What it does first, for "it did not ..."; then it says `ready`.
    """

    opens: str
    _begun: Process | None = None

    def ready(self) -> None:
        """Wait until it could begin.

        Raises:
            TestbedError: It does not get there, or ended; with its last words.
        """
        self.await_that(lambda: "ready" in self.process.output.read_text(), self.opens)

    def begin(self) -> None:
        """Move bytes, and count time, from now on. Further calls change nothing."""
        if self._begun is not (process := self.process):
            os.kill(process.pid, signal.SIGUSR1)  # not reaped before `stop`, so the number is its own
            self._begun, self._begin_seconds = process, time.monotonic()

    @abstractmethod
    def _moved_bytes(self) -> int:
        """All that it has moved; asked once, while it still runs."""

    def stop(self) -> Work:
        """End it; what was moved until now. Afterwards it is gone, also when this raises.

        Raises:
            TestbedError: It does not run, or had ended before.
        """
        seconds = time.monotonic() - self._begin_seconds
        process, self._process = self.process, None
        ended = process.exit_code
        try:
            moved = float(self._moved_bytes())
        finally:
            process.stop(signal.SIGKILL)  # there is nothing to save, and a throttled one would take its time
        if ended is not None:
            raise TestbedError(f"the {self.name} ended with code {ended}: {process.tail()}")
        return Work({"bytes": moved}, seconds)


@dataclass(frozen=True, slots=True)
class Work:
    """What a BE job has done.

    Attributes:
        by_stressor: Rounds of each stressor's loops, or bytes; comparable between runs of the same job only.
        seconds: Wall-clock time from its beginning to the order to end, whatever it was allowed to do in it.
    """

    by_stressor: Mapping[str, float]
    seconds: float

    @property
    def bogo_ops(self) -> float:
        """Rounds of all stressors together, or bytes."""
        return sum(self.by_stressor.values())

    @property
    def rate(self) -> float:
        """Rounds per second of wall-clock time."""
        return self.bogo_ops / self.seconds

    def share_of(self, solo: Work) -> float:
        """Throughput relative to another run, as the mean over stressors: their rounds differ in length.

        Raises:
            ValueError: The other run has done nothing.
        """
        whole = {name: ops / solo.seconds for name, ops in solo.by_stressor.items() if ops > 0}
        if not whole:
            raise ValueError("a job that did nothing is no measure for another")
        return sum(self.by_stressor.get(name, 0.0) / self.seconds / rate for name, rate in whole.items()) / len(whole)


def talk(path: Path, request: bytes, timeout_seconds: float = 1.0) -> bytes:
    """Send a request to a unix socket and return the first piece of the reply.

    Raises:
        OSError: Nobody listens, or nobody answers in time.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_seconds)
        connection.connect(str(path))
        connection.sendall(request)
        return connection.recv(4096)


def _listens(pid: int, port: int) -> bool:
    """Whether somebody listens on a TCP port in a process's network namespace, as /proc/PID/net/tcp has it."""
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)  # 0A: TCP_LISTEN of tcp_states.h


def _succeeds(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except OSError:
        return False
