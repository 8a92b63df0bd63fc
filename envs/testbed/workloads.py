"""What an LC service and a BE job of the testbed promise, and how long one waits for them."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rlctl.envs.errors import TestbedError
from rlctl.envs.testbed.generator import GeneratorConfig
from rlctl.envs.testbed.launch import Launcher, Process

__all__ = ["Job", "Service", "Work", "await_ready", "make_socket_folder", "talk"]

READY_SECONDS = 10.0
PAUSE_SECONDS = 0.01
LONGEST_SOCKET_PATH_BYTES = 107  # sun_path of unix(7), without its closing zero


class Service(Protocol):
    """A latency-critical service that the testbed starts."""

    def start(self, launcher: Launcher) -> None:
        """Start it.

        Raises:
            TestbedError: It is not installed, or cannot be run.
        """
        ...

    def ready(self, timeout_seconds: float = READY_SECONDS) -> None:
        """Wait until it answers a request.

        Raises:
            TestbedError: It ended, or does not answer in time; with its last words.
        """
        ...

    def pids(self) -> tuple[int, ...]:
        """Its processes; empty when it does not run."""
        ...

    def load(self) -> GeneratorConfig:
        """What the load generator has to aim at; replace what concerns the generator itself."""
        ...

    def stop(self) -> None:
        """End it. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Work:
    """What a BE job has done.

    Attributes:
        bogo_ops: Rounds of its loops, all stressors together; comparable between runs of the same job only.
        seconds: Wall-clock time from its start to the order to end, whatever it was allowed to do in it.
        by_stressor: Rounds of each stressor.
    """

    bogo_ops: float
    seconds: float
    by_stressor: Mapping[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Rounds per second."""
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


class Job(Protocol):
    """Best-effort work that the testbed starts."""

    def start(self, launcher: Launcher) -> None:
        """Start it.

        Raises:
            TestbedError: It is not installed, or cannot be run.
        """
        ...

    def pids(self) -> tuple[int, ...]:
        """Its processes; empty when it does not run."""
        ...

    def stop(self) -> Work:
        """Thaw it, end it, count its work.

        Raises:
            TestbedError: It does not run, or did not tell.
        """
        ...


def await_ready(process: Process, answers: Callable[[], bool], timeout_seconds: float) -> None:
    """Wait until a service answers.

    Args:
        process: The service.
        answers: Asks it; an OSError (refused, no socket yet) means not yet.
        timeout_seconds: Limit.

    Raises:
        TestbedError: It ended, or does not answer in time; with its last words.
    """
    deadline = time.monotonic() + timeout_seconds
    while not _succeeds(answers):
        if process.exit_code is not None:
            raise TestbedError(f"{process.name} ended with code {process.exit_code}: {process.tail()}")
        if time.monotonic() > deadline:
            raise TestbedError(f"{process.name} did not answer in {timeout_seconds:g} s: {process.tail()}")
        time.sleep(PAUSE_SECONDS)


def _succeeds(answers: Callable[[], bool]) -> bool:
    try:
        return answers()
    except OSError:
        return False


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


def make_socket_folder(launcher: Launcher, prefix: str, socket_name: str) -> Path:
    """A new folder below the launcher's whose path leaves room for a socket.

    Raises:
        TestbedError: It does not.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{prefix}-", dir=launcher.folder))
    if len(os.fsencode(folder / socket_name)) > LONGEST_SOCKET_PATH_BYTES:
        folder.rmdir()
        raise TestbedError(f"{folder / socket_name}: too long for a unix socket; use a folder nearer to the root")
    return folder
