"""The section `be.applications`: BE as applications that share its budget."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from rlctl.config.fields import Described, GroupPath, Name
from rlctl.envs.host.apps.channel import SOCKET
from rlctl.envs.host.apps.groups import PARENT
from rlctl.envs.host.apps.population import PERIOD_SECONDS
from rlctl.envs.host.apps.registry import DIRECTORY

DISCOVERED = "discovered"
"""As `platform`: the one that `rlctl partition apply` finds by itself."""


class ApplicationsSection(Described):
    """BE is one group, and the applications below it share its budget.

    Attributes:
        group: BE's group, made when it is not there; with a platform it is the managed device's, and not set here.
        platform: A platform whose partitions stand: its clusters hold the applications. See `rlctl partition`.
        directory: Holds the registrations of `rlctl app`.
        socket: Where applications are told their modes.
        period_seconds: They are placed anew at least so often.
        leftover: What the allocator leaves of the budget goes to those placed (`share`), or to nobody (`idle`).
    """

    group: GroupPath = f"/{PARENT}"
    platform: Name | None = None
    directory: Path = DIRECTORY
    socket: Path = SOCKET
    period_seconds: float = Field(default=PERIOD_SECONDS, ge=0.1, le=3600.0)
    leftover: Literal["share", "idle"] = "share"

    @property
    def platform_source(self) -> str | None:
        """The platform's name or file; None is the one that `rlctl partition apply` finds by itself."""
        return None if self.platform == DISCOVERED else self.platform

    @field_validator("group")
    @classmethod
    def _one_group(cls, group: str) -> str:
        if any(letter in group for letter in "*?["):
            raise ValueError(f"{group!r} is no group below the root; write it as in /proc/PID/cgroup")
        return group
