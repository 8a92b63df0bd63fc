"""How much each contribution counts in the allocator's metric."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

from rlctl.envs.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """As BarbequeRTRM's shipped configuration has them; in its source all four default to 0. Only ratios matter.

    Attributes:
        value: Of what a working mode is worth to the user.
        reconfiguration: Of leaving an application as and where it is.
        congestion: Of clusters that are not close to saturation.
        fairness: Of modes within the fair part of what is there.

    Raises:
        ConfigError: A weight that is no number from 0 up, or none above 0.
    """

    value: float = 20.0
    reconfiguration: float = 5.0
    congestion: float = 5.0
    fairness: float = 10.0

    def __post_init__(self) -> None:
        parts = astuple(self)
        if not all(_is_weight(part) for part in parts) or not 0.0 < sum(parts) < math.inf:
            raise ConfigError(f"the allocator's weights are numbers from 0 up and not all 0, not {self}")

    @property
    def normalised(self) -> tuple[float, float, float, float]:
        """Value, reconfiguration, congestion and fairness, with a sum of 1."""
        total = self.value + self.reconfiguration + self.congestion + self.fairness
        return self.value / total, self.reconfiguration / total, self.congestion / total, self.fairness / total


def _is_weight(part: object) -> bool:
    return isinstance(part, (int, float)) and not isinstance(part, bool) and math.isfinite(part) and part >= 0.0


AS_PUBLISHED = Weights()
