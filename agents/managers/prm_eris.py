"""Intel PRM's CPU quota as its source has it: a utilisation check every 2 s, and nothing else.

After intel/platform-resource-manager 0.8, eris/cpuquota.py, naivectrl.py and mresource.py. The thesis describes a CPI
check as well (`prm_thesis`); in eris a CPI excursion drives the cache controller only.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlctl.agents.managers.manager import Every, Manager, Mean
from rlctl.agents.managers.options import Count, Positive, Share, TimeScale
from rlctl.agents.managers.prm_model import PrmModel
from rlctl.envs.allocation import UNLIMITED, Allocation
from rlctl.envs.telemetry import Telemetry
from rlctl.envs.workload import Weight

CORE_US = 100_000
"""Quota of one CPU in PRM's arithmetic: a period of 100 ms (cpuquota.py)."""

PERCENT_US = 1_000
"""Quota of one percent of a CPU."""

FULL = -1
"""The level above the last: no quota, only the kernel's scheduler divides the CPUs."""


class QuotaLadder:
    """Levels of BE's quota, which a number of cycles in a row without an excess climbs by one.

    Args:
        quota_max_us: CPU time that LC and BE may use together, in us per period of 100 ms.
        min_quota_cpus: Quota of level 0; 1000 us in PRM.
        levels: Number of steps up to FULL.
        cycles: Number of cycles without an excess that earn a step.
    """

    def __init__(self, quota_max_us: float, min_quota_cpus: float, levels: int, cycles: int) -> None:
        self.quota_max_us = quota_max_us
        self.min_quota_cpus = min_quota_cpus
        self.levels, self.cycles = levels, cycles
        self.minimum()

    @property
    def step_us(self) -> float:
        """Height of one level, in us per period of 100 ms."""
        return self.quota_max_us / self.levels

    def minimum(self) -> None:
        """Fall to level 0 and begin to count anew."""
        self.level, self.clean, self.quota_cpus = 0, 0, self.min_quota_cpus

    def clean_cycle(self) -> None:
        """Count a cycle without an excess; at FULL there is nothing to climb."""
        # naivectrl.py: cnt += 1; at `cycles`: cnt = 0, level += 1, and the level after the last is FULL.
        if self.level == FULL:
            return
        self.clean += 1
        if self.clean >= self.cycles:
            self.clean = 0
            self.level = FULL if self.level + 1 >= self.levels else self.level + 1
            # Written only now: a maximum that was raised meanwhile moves the next step, not this one.
            self.quota_cpus = UNLIMITED if self.level == FULL else self.level * int(self.step_us) / CORE_US

    def __str__(self) -> str:
        return "level full" if self.level == FULL else f"level {self.level}/{self.levels}"


@dataclass(kw_only=True, eq=False)
class PrmEris(Manager):
    """LC and BE together stay half a core below the LC's recorded maximum; 14 s without an excess earn BE a level.

    Args:
        model: Threshold model; without one the maximum is all CPUs of LC and BE, as with eris' lcutilmax 0.
        time_scale: Divides the period.
        core_cpus: CPUs here that stand for a core of the published machine; scales the margin.
        util_period_seconds: Period of the utilisation loop (-u).
        quota_cycles: Cycles without an excess that earn a level (-q).
        levels: Levels up to no quota at all (cpuquota.py).
        margin_ratio: Margin in cores (-k).
        enable_hold: Do not climb where the next level would be an excess (-e, off in eris).
    """

    name = "prm-eris"
    weight = Weight.MINIMUM  # cpu.shares 2, all others 200000
    needs = ("lc_cpus", "be_cpus")
    model: PrmModel | None = None
    time_scale: TimeScale = 1.0
    core_cpus: Positive = 1.0
    util_period_seconds: Positive = 2.0
    quota_cycles: Count = 7
    levels: Count = 20
    margin_ratio: Share = 0.5
    enable_hold: bool = False

    def begin(self) -> Allocation:
        """BE begins at a quota of 1000 us."""
        known = self.model.lcutilmax_percent if self.model else 0.0
        # Those of LC and BE: eris has cpu_count() * 100. Limits.cpus are BE's, of which the LC may share some.
        limits = self.limits
        all_cpus = limits.exclusive_cpus + max(limits.lc_cpus, limits.cpus - limits.exclusive_cpus)
        quota_max_us = (known or all_cpus * 100.0) * PERCENT_US
        self._ladder = QuotaLadder(quota_max_us, self.limits.min_quota_cpus, self.levels, self.quota_cycles)
        self._utilisation = Every(self.util_period_seconds / self.time_scale)
        self._lc, self._be = Mean(), Mean()
        self._why = "start at the minimum"
        return self._allocation()

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:
        """One utilisation cycle per elapsed period."""
        self._lc.add(telemetry.lc_cpus)
        self._be.add(telemetry.be_cpus)
        cycles = self._utilisation.due(telemetry.time_seconds)
        if cycles:
            self._cycle(self._lc.take(), self._be.take(), cycles)
        return self._allocation(), self._why

    @property
    def quota_max_cpus(self) -> float:
        """CPUs that LC and BE may use together, as raised so far."""
        return self._ladder.quota_max_us / CORE_US

    @property
    def remarks(self) -> tuple[str, ...]:
        """Whether the utilisation check has a model to go by."""
        if self._has_maximum:
            return ()
        return ("no threshold model: the utilisation guard is void until LC and BE together fill all CPUs",)

    @property
    def _has_maximum(self) -> bool:
        return self.model is not None and self.model.lcutilmax_percent > 0.0

    def _cycle(self, lc_cpus: float | None, be_cpus: float | None, cycles: int) -> None:
        # Without a BE container eris has nothing to control.
        if be_cpus is None:
            self._why = f"BE's use is missing: {self._ladder} kept"
            return
        # exceed = (lc == 0) or ...: an LC without activity is an excess. So is one whose use is missing: eris drops a
        # container that vanished and sums the rest to 0.
        lc_cpus = lc_cpus or 0.0
        self._raise_maximum(lc_cpus)
        if lc_cpus == 0.0:
            self._ladder.minimum()
            self._why = "no LC activity: minimum"
        else:
            self._check(lc_cpus + be_cpus, cycles)

    def _raise_maximum(self, lc_cpus: float) -> None:
        # lc_max_util follows an LC that exceeds it; eris writes it to its threshold file as well.
        self._ladder.quota_max_us = max(self._ladder.quota_max_us, lc_cpus * CORE_US)

    def _check(self, used_cpus: float, cycles: int) -> None:
        # exceed = (lc + be) * 1000 + margin > quota_max: the minimum at once.
        # hold = (lc + be) * 1000 + margin + step >= quota_max: no step, with -e only.
        ladder = self._ladder
        wanted_us = used_cpus * CORE_US + self.margin_ratio * self.core_cpus * CORE_US
        if wanted_us > ladder.quota_max_us:
            ladder.minimum()
            self._why = f"{used_cpus:.2f} CPUs and margin exceed {self.quota_max_cpus:.2f}: minimum"
        elif self.enable_hold and wanted_us + ladder.step_us >= ladder.quota_max_us:
            self._why = f"the next level would exceed {self.quota_max_cpus:.2f} CPUs: {ladder} held"
        else:
            for _ in range(cycles):
                ladder.clean_cycle()
            self._why = f"{used_cpus:.2f} of {self.quota_max_cpus:.2f} CPUs: {ladder}, {ladder.clean} clean"
        if not self._has_maximum:
            self._why += " (no model)"

    def _allocation(self) -> Allocation:
        return Allocation(self._ladder.quota_cpus, self.limits.cpus)
