"""A network namespace of the testbed's own, held by a process.

The kernel removes a namespace, with all its interfaces and queueing disciplines, when the last process in it has ended.
So what the janitor records of a namespace is a process, and nothing of it can be left behind.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence

from rlctl.envs.errors import PermissionMissing, TestbedError
from rlctl.envs.testbed.launch import Launcher, find_program
from rlctl.envs.testbed.workloads import Program

COMMAND_SECONDS = 10.0  # ip and tc take milliseconds

PACKAGES = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "sysctl": "procps"}
"""Debian's package of each program that makes namespaces and links."""


def require_tools() -> None:
    """Check that namespaces and links can be made here.

    Raises:
        TestbedError: A program is not installed.
        PermissionMissing: Not root.
    """
    for program, package in PACKAGES.items():
        find_program(program, package)
    if os.geteuid() != 0:
        raise PermissionMissing("a network namespace of its own, which this testbed has, needs root")


class Namespace(Program):
    """A network namespace with nothing in it but its loopback interface.

    Args:
        name: Tells it from others in messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def pid(self) -> int:
        """The process that holds it, which names it to `ip link ... netns`."""
        return self.process.pid

    @property
    def inside(self) -> tuple[str, ...]:
        """Put before a command, lets it run in here; the command keeps its process id and its control groups."""
        return ("nsenter", f"--net={self._path}", "--")

    def start(self, launcher: Launcher) -> None:
        """Start its holder and wait until it is in a namespace of its own.

        Raises:
            TestbedError: The kernel grants none.
        """
        super().start(launcher)
        self.await_that(lambda: os.readlink(self._path) != os.readlink("/proc/self/ns/net"), "make its namespace")

    def run(self, commands: Iterable[Sequence[str]]) -> str:
        """Run commands in here, one after the other; what the last one says.

        Raises:
            TestbedError: One failed; with its words.
        """
        words = ""
        for command in commands:
            try:
                words = subprocess.run(
                    [*self.inside, *command], check=True, capture_output=True, text=True, timeout=COMMAND_SECONDS
                ).stdout
            except subprocess.CalledProcessError as error:
                words = " ".join(error.stderr.split()) or f"code {error.returncode}"
                raise TestbedError(f"`{' '.join(command)}` in {self.name}: {words}") from error
            except (OSError, subprocess.TimeoutExpired) as error:
                raise TestbedError(f"`{' '.join(command)}` in {self.name}: {error}") from error
        return words

    @property
    def _path(self) -> str:
        return f"/proc/{self.pid}/ns/net"

    def _command(self, launcher: Launcher) -> list[str]:  # noqa: ARG002
        return ["unshare", "--net", "--", "sleep", "infinity"]
