"""Intel PRM as the thesis describes it (3.1, 4.1): the utilisation check, and a CPI check that resets the quota."""

from __future__ import annotations

from dataclasses import dataclass

from rlctl.agents.managers.manager import Every, Mean
from rlctl.agents.managers.options import Positive
from rlctl.agents.managers.prm_eris import PrmEris
from rlctl.envs.allocation import Allocation
from rlctl.envs.telemetry import Telemetry

STAND_IN = "lc_cpu_seconds_per_request"


@dataclass(kw_only=True, eq=False)
class PrmThesis(PrmEris):
    """The sub-monitor is `PrmEris` without the clause on an idle LC; the main-monitor looks at the LC's CPI.

    Args:
        metric_period_seconds: Period of the main-monitor; 20 s - 1.5 s (3.1).
    """

    name = "prm-thesis"
    metric_period_seconds: Positive = 18.5
    _stood_in = False  # before it begins

    def begin(self) -> Allocation:
        """BE begins at a quota of 1000 us (4.1)."""
        self._metrics = Every(self.metric_period_seconds / self.time_scale)
        self._cpi, self._per_request, self._use = Mean(), Mean(), Mean()
        self._stood_in = False
        return super().begin()

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:
        """The sub-monitor, then the main-monitor: either may take BE to the minimum."""
        self._cpi.add(telemetry.cpi)
        self._per_request.add(telemetry.lc_cpu_seconds_per_request)
        self._use.add(telemetry.lc_cpus)
        super().decide(telemetry)
        if self._metrics.due(telemetry.time_seconds):
            self._detect(self._use.take(), self._cpi.take(), self._per_request.take())
        return self._allocation(), self._why

    @property
    def remarks(self) -> tuple[str, ...]:
        """Whether it has a model, and whether it ran on the stand-in."""
        missing = "" if self.model and self.model.bins else "no CPI threshold: only the utilisation check ran"
        stood_in = (
            "no CPI, or no threshold of it: ran on LC CPU seconds per request, a stand-in" if self._stood_in else ""
        )
        return super().remarks + tuple(remark for remark in (missing, stood_in) if remark)

    def _cycle(self, lc_cpus: float | None, be_cpus: float | None, cycles: int) -> None:
        # A reading that is missing lets either monitor pass over its cycle (ours: the thesis does not say).
        if lc_cpus is None or be_cpus is None:
            self._why = f"a utilisation is missing: {self._ladder} kept"
            return
        self._raise_maximum(lc_cpus)
        self._check(lc_cpus + be_cpus, cycles)

    def _detect(self, use_cpus: float | None, cpi: float | None, per_request: float | None) -> None:
        """Compare the LC's CPI with the threshold of its utilisation."""
        # CPI above the model's threshold for the LC's utilisation: quota to the minimum (3.1). On a host without a PMU
        # CPU seconds per request stand in for CPI, with thresholds fitted on them. Without a model nothing is compared.
        if self.model is None or use_cpus is None:
            return
        bin_ = self.model.threshold(use_cpus * 100.0)
        upper = bin_.upper if bin_ else {}
        for metric, value in (("cpi", cpi), (STAND_IN, per_request)):
            if value is None or (threshold := upper.get(metric)) is None:
                continue
            self._stood_in |= metric == STAND_IN
            if value > threshold:
                self._ladder.minimum()
                self._why = f"{metric} {value:.4g} above {threshold:.4g}: minimum"
            return
