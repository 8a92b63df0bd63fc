"""What Heracles (ISCA'15) measures beside latency and load: DRAM bandwidth, power, and the network link.

Readings come from `Telemetry.counters`, as shares; where one is missing the loop that needs it is off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rlctl.agents.managers.manager import HAIR
from rlctl.agents.managers.readings import number
from rlctl.envs.telemetry import Missing, Reading, Why

__all__ = ["Bandwidth", "Link", "Power"]


def _numbers(counters: Mapping[str, Reading], *names: str) -> tuple[float, ...] | None:
    """All of these readings, or None when one has no number."""
    absent = Missing(Why.NOT_CONFIGURED)
    known = [value for name in names if (value := number(counters.get(name, absent))) is not None]
    return tuple(known) if len(known) == len(names) else None


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """DRAM bandwidth as a share of the peak that streaming reaches.

    The paper has an offline model of the LC's part; here that is what is measured in total less BE's.

    Attributes:
        total_ratio: Of LC and BE (`dram_bandwidth_ratio`).
        be_ratio: Of BE alone (`be_dram_bandwidth_ratio`).
    """

    total_ratio: float
    be_ratio: float

    @classmethod
    def read(cls, counters: Mapping[str, Reading]) -> Bandwidth | None:
        """The readings, or None."""
        known = _numbers(counters, "dram_bandwidth_ratio", "be_dram_bandwidth_ratio")
        return cls(*known) if known else None

    def cores_over(self, limit_ratio: float, be_cores: int) -> int:
        """Cores to take from BE: overage / BeBwPerCore, rounded up."""
        overage_ratio = self.total_ratio - limit_ratio
        if overage_ratio <= HAIR or self.be_ratio <= 0.0:
            return 0
        if overage_ratio >= self.be_ratio:
            return be_cores
        return math.ceil(overage_ratio / self.be_ratio * be_cores - HAIR)

    def cores_below(self, limit_ratio: float, be_cores: int, most: int) -> int:
        """How many cores, at most so many, BE can have more: LcBw + BeBw + BeBwPerCore each time within the limit."""
        room_ratio = limit_ratio - self.total_ratio + HAIR
        if room_ratio < 0.0:
            return 0
        if self.be_ratio * most <= room_ratio * be_cores:
            return most
        return int(room_ratio * be_cores // self.be_ratio)


@dataclass(frozen=True, slots=True)
class Power:
    """Power and the LC's frequency.

    Attributes:
        ratio: Share of the TDP (`power_ratio`).
        lc_frequency_ratio: Share of the frequency that the LC is guaranteed.
    """

    ratio: float
    lc_frequency_ratio: float

    @classmethod
    def read(cls, counters: Mapping[str, Reading]) -> Power | None:
        """The readings, or None."""
        known = _numbers(counters, "power_ratio", "lc_frequency_ratio")
        return cls(*known) if known else None

    def is_short(self, limit_ratio: float) -> bool:
        """Whether BE draws what the LC needs to run at its frequency."""
        return self.ratio > limit_ratio + HAIR and self.lc_frequency_ratio < 1.0 - HAIR


@dataclass(frozen=True, slots=True)
class Link:
    """Egress bandwidth as a share of the link.

    Attributes:
        ratio: All of it (`link_ratio`).
        lc_ratio: The LC's (`lc_link_ratio`).
    """

    ratio: float
    lc_ratio: float

    @classmethod
    def read(cls, counters: Mapping[str, Reading]) -> Link | None:
        """The readings, or None."""
        known = _numbers(counters, "link_ratio", "lc_link_ratio")
        return cls(*known) if known else None

    @property
    def be_allowed_ratio(self) -> float:
        """What HTB would let BE send: the link less the LC's part, less 5 % of the link or 10 % of that part."""
        return max(1.0 - self.lc_ratio - max(0.05, 0.10 * self.lc_ratio), 0.0)

    def __str__(self) -> str:
        return f"BE sends {max(self.ratio - self.lc_ratio, 0.0):.0%} of the link, may send {self.be_allowed_ratio:.0%}"
