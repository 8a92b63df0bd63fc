"""A namespace of the testbed's own, of networks or of mounts, held by a process.

The kernel removes a namespace, with all its interfaces and queueing disciplines or mounts, when the last process in it
has ended. So what the janitor records of a namespace is a process, and nothing of it can be left behind.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from rlctl.envs.errors import PermissionMissing, TestbedError
from rlctl.envs.testbed.launch import SYSTEM_PROGRAMS, Launcher, find_program
from rlctl.envs.testbed.workloads import Program

COMMAND_SECONDS = 10.0  # ip, tc and mount take milliseconds

PACKAGES = {"unshare": "util-linux", "nsenter": "util-linux"}
"""Debian's package of each program that makes namespaces."""


def require_tools(packages: Mapping[str, str]) -> None:
    """Check that namespaces can be made here, and what else these programs make.

    Args:
        packages: Debian's package by program.

    Raises:
        TestbedError: A program is not installed.
        PermissionMissing: Not root.
    """
    for program, package in {**packages, **PACKAGES}.items():
        find_program(program, package)
    if os.geteuid() != 0:
        raise PermissionMissing("a namespace of its own, which this testbed has, needs root")


class Namespace(Program):
    """A network namespace with nothing in it but its loopback interface, or a copy of the host's mounts.

    Args:
        name: Tells it from others in messages.
    """

    def __init__(self, name: str, kind: Literal["net", "mount"] = "net") -> None:
        self.name, self._kind = name, kind
        self._folder = Path("/")

    @property
    def pid(self) -> int:
        """The process that holds it, which names it to `ip link ... netns`."""
        return self.process.pid

    @property
    def inside(self) -> tuple[str, ...]:
        """Put before a command, lets it run in here; the command keeps its process id and its control groups."""
        # Whoever enters another tree of mounts stands at its root: back to the folder of the testbed.
        place = (f"--wdns={self._folder}",) if self._kind == "mount" else ()
        return ("nsenter", f"--{self._kind}={self._path}", *place, "--")

    def start(self, launcher: Launcher) -> None:
        """Start its holder and wait until it is in a namespace of its own.

        Raises:
            TestbedError: The kernel grants none.
        """
        super().start(launcher)
        self._folder = launcher.folder
        self.await_that(lambda: os.readlink(self._path) != os.readlink(self._of("self")), "make its namespace")

    def run(self, commands: Iterable[Sequence[str]]) -> str:
        """Run commands in here, one after the other; what the last one says.

        Raises:
            TestbedError: One failed; with its words.
        """
        words = ""
        for command in commands:
            try:
                words = subprocess.run(
                    [*self.inside, *command], check=True, capture_output=True, text=True, errors="replace",
                    timeout=COMMAND_SECONDS,
                    env={**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{SYSTEM_PROGRAMS}"},
                ).stdout  # fmt: skip
            except subprocess.CalledProcessError as error:
                words = " ".join(error.stderr.split()) or f"code {error.returncode}"
                raise TestbedError(f"`{' '.join(command)}` in {self.name}: {words}") from error
            except (OSError, subprocess.TimeoutExpired) as error:
                raise TestbedError(f"`{' '.join(command)}` in {self.name}: {error}") from error
        return words

    @property
    def _path(self) -> str:
        return self._of(str(self.pid))

    def _of(self, process: str) -> str:
        return f"/proc/{process}/ns/{'net' if self._kind == 'net' else 'mnt'}"

    def _command(self, launcher: Launcher) -> list[str]:  # noqa: ARG002
        return ["unshare", f"--{self._kind}", "--", "sleep", "infinity"]
