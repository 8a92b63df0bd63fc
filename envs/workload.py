"""Who shares the host: one latency-critical workload with its objective, and best-effort work."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from rlctl.envs.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SLO:
    """The LC's objective: a quantile of its latency stays below a target.

    Attributes:
        quantile: Which quantile, as a ratio (0.95 is p95).
        max_load_rps: The load that counts as 1.0: the largest that meets the target with BE frozen (knee search);
            infinite where it is to be learned, see `rlctl.envs.host.max_load`.

    Raises:
        ConfigError: A target, quantile or load that cannot be.
    """

    target_seconds: float
    quantile: float = 0.95
    max_load_rps: float = 1.0

    def __post_init__(self) -> None:
        if self.target_seconds <= 0.0 or not 0.0 < self.quantile < 1.0 or self.max_load_rps <= 0.0:
            raise ConfigError(f"impossible SLO: {self}: target and load are above 0, the quantile lies between 0 and 1")


class Weight(StrEnum):
    """BE's share of contended CPU time against the LC's."""

    EQUAL = "equal"  # as containers are deployed
    MINIMUM = "minimum"  # cpu.shares 2, cpu.weight 1
    IDLE = "idle"  # cpu.idle, since Linux 5.15: BE runs when nobody else wants the CPU

    @classmethod
    def of(cls, *, least: bool) -> Self:
        """One of a host whose limits say whether BE gives way."""
        return cls.MINIMUM if least else cls.EQUAL

    @property
    def is_least(self) -> bool:
        """BE gives way to an LC that wants the same CPU."""
        return self is not Weight.EQUAL
