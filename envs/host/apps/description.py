"""What an application says of itself: its name, its priority and its working modes, in YAML."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from rlctl.envs.applications import WorkingMode
from rlctl.envs.yaml_edge import Strict, load_model

# Of applications that are served last: those that nobody described.
LEAST_PRIORITY = 9

MOST_MODES = 32
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}$"  # becomes part of a group's and of files' names


class Mode(Strict):
    """One working mode; see `rlctl.envs.applications.WorkingMode`.

    Attributes:
        cpus: CPU time that it asks for.
        threads: How many threads run in it.
        value: What it is worth, 0 to 1.
        memory_bytes: Soft limit of its memory; 0 is none.
    """

    cpus: float = Field(gt=0.0, le=8192.0)
    threads: int = Field(ge=1, le=1 << 16)
    value: float = Field(default=1.0, ge=0.0, le=1.0)
    memory_bytes: int = Field(default=0, ge=0, le=1 << 50)


class Description(Strict):
    """A best-effort application and its modes.

    Attributes:
        name: For people; its group is `<pid>:<name>`.
        priority: 0 is served first, 9 last.
        modes: From the least CPU time to the most.
        command: Program and arguments, for `rlctl app run` without a command of its own.
    """

    name: Annotated[str, Field(pattern=_NAME)]
    priority: int = Field(default=0, ge=0, le=LEAST_PRIORITY)
    modes: Annotated[tuple[Mode, ...], Field(min_length=1, max_length=MOST_MODES)]
    command: Annotated[tuple[str, ...], Field(min_length=1)] | None = None

    @field_validator("modes")
    @classmethod
    def _ascending(cls, modes: tuple[Mode, ...]) -> tuple[Mode, ...]:
        if any(less.cpus > more.cpus for less, more in pairwise(modes)):
            raise ValueError("modes go from the least CPU time to the most: sort them by 'cpus'")
        return modes

    @property
    def working_modes(self) -> tuple[WorkingMode, ...]:
        """The modes in the allocator's terms."""
        return tuple(WorkingMode(mode.cpus, mode.threads, mode.value, mode.memory_bytes) for mode in self.modes)


def load_description(path: Path) -> Description:
    """Read an application's description.

    Raises:
        ConfigError: It cannot be read or is wrong; says file and line.
        PermissionMissing: It may not be read.
    """
    return load_model(Description, path)
