"""The section `ownership`: what happens when another program writes a knob of BE."""

from __future__ import annotations

from pydantic import Field

from rlctl.config.fields import Described
from rlctl.envs.host.cgroup.ownership import Foreign

__all__ = ["OwnershipSection"]


class OwnershipSection(Described):
    """What another program's write to a knob of BE is answered with; a freer value is corrected at once in any case.

    Attributes:
        foreign: A tighter value is overwritten with back-off (`reassert`), left until the other program changes it
            (`yield`), or left and said as an error (`alarm`).
        most_backoff_seconds: The longest that `reassert` leaves a tighter value alone.
    """

    foreign: Foreign = Foreign.REASSERT
    most_backoff_seconds: float = Field(default=60.0, ge=1.0, le=86_400.0)
