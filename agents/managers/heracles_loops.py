"""What Heracles (ISCA 2015) measures beside latency and load: DRAM bandwidth, power, and the network link.

Readings come from `Telemetry.counters`, as shares; where one is missing the loop that needs it is off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from rlctl.agents.managers.manager import HAIR
from rlctl.envs.telemetry import Missing, Reading, Why, number

_ABSENT = Missing(Why.NOT_CONFIGURED)


class _Measured:
    """Two counters that one of the loops needs."""

    __slots__ = ()
    COUNTERS: ClassVar[tuple[str, str]]

    @classmethod
    def read(cls, counters: Mapping[str, Reading]) -> Self | None:
        """Both readings; None when one of them has no number."""
        numbers = [number(counters.get(name, _ABSENT)) for name in cls.COUNTERS]
        return None if None in numbers else cls(*numbers)


@dataclass(frozen=True, slots=True)
class Bandwidth(_Measured):
    """DRAM bandwidth as a share of the peak that streaming reaches.

    Attributes:
        total_ratio: What LC and BE use together.
        be_ratio: What BE uses alone.
    """

    COUNTERS: ClassVar = ("dram_bandwidth_ratio", "be_dram_bandwidth_ratio")

    total_ratio: float
    be_ratio: float

    def cores_over(self, limit_ratio: float, be_cores: int) -> int:
        """Cores to take from BE so that the total comes below the limit."""
        # overage / BeBwPerCore, rounded up, where BeBwPerCore = be_ratio / be_cores (algorithm 2).
        overage_ratio = self.total_ratio - limit_ratio
        if overage_ratio <= HAIR or self.be_ratio <= 0.0:
            return 0
        if overage_ratio >= self.be_ratio:
            return be_cores
        return math.ceil(overage_ratio / self.be_ratio * be_cores - HAIR)

    def cores_below(self, limit_ratio: float, be_cores: int, most: int) -> int:
        """How many cores more BE can have, `most` of them at most, with the total within the limit."""
        # LcBw + BeBw + BeBwPerCore <= DRAM_LIMIT for each core. The paper has LcBw from an offline model of the LC;
        # here it is what is measured in total less BE's part.
        room_ratio = limit_ratio - self.total_ratio + HAIR
        if room_ratio < 0.0:
            return 0
        if self.be_ratio * most <= room_ratio * be_cores:
            return most
        return int(room_ratio * be_cores // self.be_ratio)


@dataclass(frozen=True, slots=True)
class Power(_Measured):
    """The host's power and the LC's clock frequency.

    Attributes:
        ratio: Power as a share of the TDP.
        lc_frequency_ratio: Share of the frequency that the LC is guaranteed.
    """

    COUNTERS: ClassVar = ("power_ratio", "lc_frequency_ratio")

    ratio: float
    lc_frequency_ratio: float

    def is_short(self, limit_ratio: float) -> bool:
        """Whether BE draws what the LC needs to run at its frequency."""
        return self.ratio > limit_ratio + HAIR and self.lc_frequency_ratio < 1.0 - HAIR


@dataclass(frozen=True, slots=True)
class LinkLoop(_Measured):
    """Bandwidth sent over the network link, as a share of what the link can send.

    Attributes:
        ratio: What all send.
        lc_ratio: What the LC sends.
    """

    COUNTERS: ClassVar = ("link_ratio", "lc_link_ratio")

    ratio: float
    lc_ratio: float

    @property
    def be_allowed_ratio(self) -> float:
        """Share of the link that BE may send."""
        # be_bw = LINK - ls_bw - max(0.05 LINK, 0.10 ls_bw), which the paper sets as an HTB ceiling each second.
        return max(1.0 - self.lc_ratio - max(0.05, 0.10 * self.lc_ratio), 0.0)

    def __str__(self) -> str:
        return f"BE sends {max(self.ratio - self.lc_ratio, 0.0):.0%} of the link, may send {self.be_allowed_ratio:.0%}"


NETWORK_SECONDS = 1.0
"""Period of the network loop as published; whoever has a link to divide runs it, which a manager has not."""


def be_link_ratio(counters: Mapping[str, Reading]) -> float | None:
    """Share of the link that BE may send; None without readings."""
    link = LinkLoop.read(counters)
    return link.be_allowed_ratio if link else None
