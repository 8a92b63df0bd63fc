"""Containers by name or id: Docker, Podman, containerd, CRI-O and runc, under both cgroup drivers.

An id is found among the control groups, where it is part of the name: `docker/ID` (cgroupfs driver),
`system.slice/docker-ID.scope` (systemd driver), `machine.slice/libpod-ID.scope`, `libpod_parent/libpod-ID`. A name is
known to the runtime only, so its command line tool is asked: for the id, or for the first process where the group may
have any name (runc with its own `cgroupsPath`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.errors import ConfigError, HostError
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.groupsearch import Found, find_groups, groups_of_process

__all__ = ["ByContainer", "find_container"]

ANSWER_SECONDS = 5.0  # a daemon that hangs must not hang the controller's start

_ID = re.compile(r"[0-9a-f]{12,64}")  # 12 digits is what `docker ps` shows
# Not `libpod-conmon-` and `crio-conmon-`: those hold the container's monitor, not the container.
_PREFIX = r"(?:(?:docker|libpod|crio|cri-containerd|nerdctl)-)?"


@dataclass(frozen=True, slots=True)
class ByContainer:
    """A container that is running, by its name, its id, or at least 12 digits of the id."""

    name: str


@dataclass(frozen=True, slots=True)
class _Tool:
    """A runtime's command.

    Attributes:
        program: Its name.
        question: Arguments ahead of the container's name.
        pid: The container's first process, from the answer; 0 when it is not running.
    """

    program: str
    question: tuple[str, ...]
    pid: Callable[[str], int]


_TOOLS = (
    _Tool("docker", ("inspect", "--type=container", "--format={{.State.Pid}}"), int),
    _Tool("podman", ("inspect", "--type=container", "--format={{.State.Pid}}"), int),
    _Tool("runc", ("state",), lambda answer: int(json.loads(answer)["pid"])),
    _Tool("crun", ("state",), lambda answer: int(json.loads(answer)["pid"])),
)
