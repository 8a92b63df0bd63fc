"""Fleets as YAML: which kinds of hosts there are, in which regions, and how a new bundle is rolled out over them."""

from __future__ import annotations

import hashlib
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

from pydantic import Field, field_validator, model_validator

from rlctl.agents.training.host_kinds import HostKind, Kind, load_hosts, spelt_out
from rlctl.envs.errors import ConfigError
from rlctl.envs.sim.loads_day import DayLoad
from rlctl.envs.sim.profile import HostProfile
from rlctl.envs.workload import Weight
from rlctl.envs.yaml_edge import Strict, beside, load_yaml, shipped_or_own, validated
from rlctl.safety.profile import DEFAULT

TICK_SECONDS = 1.0
"""Control period of every host: that of the shipped policies."""

QUANTILE = 0.95
"""Quantile of every host's SLO; the simulator has one for all hosts under a clock."""


class Region(Strict):
    """A region in which hosts stand.

    Attributes:
        ahead_hours: By how much the clocks of its hosts, and so their days, are ahead.
        share: Weight of this region when hosts are drawn, relative to the other regions.
    """

    ahead_hours: float = Field(0.0, ge=-24.0, le=24.0)
    share: float = Field(gt=0.0)


class FleetKind(HostKind):
    """One kind of host in a fleet.

    Attributes:
        load: How the load goes over a day.
    """

    load: DayLoad

    @cached_property
    def drawn_from(self) -> HostProfile:
        """Its `host()`, read once."""
        return self.host()

    @cached_property
    def untrained(self) -> tuple[str, ...]:
        """What leaves the ranges of the nearest training kind: names of constants, or `weight`.

        Empty when the policies that ship have learnt on such hosts.
        """
        own = _spans(self.drawn_from, self.weight)
        leaving = [
            tuple(name for name, (low, high) in own.items() if not theirs[name][0] <= low <= high <= theirs[name][1])
            for theirs in (_spans(kind.host(), kind.weight) for kind in _training_kinds())
        ]
        return min(leaving, key=len)


class CanaryPlan(Strict):
    """How a bundle is rolled out; the shipped file says why each value is what it is.

    Attributes:
        begin_hours: When it begins.
        baseline_minutes: How long before that all hosts are watched without the bundle.
        stages_percent: Share of the hosts that have it, stage by stage.
        soak_minutes: Length of a stage.
        check_minutes: Time between two looks at the hosts.
        false_alarm_ratio: Chance that a harmless bundle is rolled back at all.
        qos_tolerance_points: QoS that the bundle may lose.
        be_tolerance_points: BE throughput that the bundle may lose.
        most_failure_ratio: Share of its ticks in which the policy may fail.
        most_override_ratio: Share of its ticks that the shield may override.
        most_drift_ratio: Share of its ticks that may be unlike its training.
        after_minutes: How long the fleet is watched after a rollback.
    """

    begin_hours: float = Field(6.0, ge=0.0)
    baseline_minutes: float = Field(60.0, gt=0.0)
    stages_percent: tuple[float, ...] = Field((1.0, 5.0, 25.0, 100.0), min_length=2)
    soak_minutes: float = Field(60.0, gt=0.0)
    check_minutes: float = Field(10.0, gt=0.0)
    false_alarm_ratio: float = Field(0.05, gt=0.0, lt=0.5)
    qos_tolerance_points: float = Field(0.0, ge=0.0)
    be_tolerance_points: float = Field(2.0, ge=0.0)
    most_failure_ratio: float = Field(0.01, gt=0.0, le=1.0)
    most_override_ratio: float = Field(0.5, gt=0.0, le=1.0)
    most_drift_ratio: float = Field(0.5, gt=0.0, le=1.0)
    after_minutes: float = Field(30.0, ge=0.0)

    @model_validator(mode="after")
    def _can_be_done(self) -> CanaryPlan:
        stages = self.stages_percent
        if stages[0] <= 0.0 or stages[-1] != 100.0 or any(one >= after for one, after in pairwise(stages)):
            raise ValueError(f"stages_percent: {list(stages)} do not rise from above 0 to 100")
        for name in ("baseline_minutes", "soak_minutes", "after_minutes"):
            if getattr(self, name) % self.check_minutes:
                raise ValueError(f"{name}: is no multiple of check_minutes ({self.check_minutes:g})")
        if 60.0 * self.check_minutes % TICK_SECONDS:
            raise ValueError(f"check_minutes: is no multiple of the {TICK_SECONDS:g}-s tick")
        if 60.0 * self.begin_hours < self.baseline_minutes + self.check_minutes:
            raise ValueError("begin_hours: the baseline would begin on the day before; begin later")
        return self


class Fleet(Strict):
    """A fleet of hosts, described by what they are drawn from.

    Attributes:
        name: Name in tables.
        description: What the fleet is, in a line.
        hosts: Number of hosts unless a command says otherwise.
        hours: Simulated time unless a command says otherwise.
        shield: Name or file of the safety profile, for policies that are judged behind a shield.
        machine_cpus: CPUs of the standard machine that BE's work is counted in.
        regions, kinds: What hosts are drawn from; in a file, a kind may be `like` another.
        canary: How a bundle is rolled out.
    """

    name: str
    description: str = ""
    hosts: int = Field(500, ge=1)
    hours: float = Field(24.0, gt=0.0)
    shield: str = DEFAULT
    machine_cpus: float = Field(36.0, gt=0.0)
    regions: dict[str, Region] = Field(min_length=1)
    kinds: tuple[FleetKind, ...] = Field(min_length=1)
    canary: CanaryPlan = Field(default_factory=lambda: CanaryPlan.model_validate({}))

    @model_validator(mode="before")
    @classmethod
    def _spelt_out(cls, data: Any) -> Any:
        return spelt_out(data, _training_kind, ": no kind before it, nor one of training")

    @field_validator("kinds")
    @classmethod
    def _are_hosts(cls, kinds: tuple[FleetKind, ...]) -> tuple[FleetKind, ...]:
        for kind in kinds:
            try:
                quantile = kind.drawn_from.lc.quantile_ratio
            except ConfigError as error:
                raise ValueError(str(error)) from error
            if quantile != QUANTILE:
                raise ValueError(f"{kind.name}: quantile_ratio is {quantile:g}; a fleet's hosts all have {QUANTILE:g}")
        return kinds

    @property
    def digest(self) -> str:
        """Hash of all that decides which hosts there are and how loaded they are."""
        text = self.model_dump_json(exclude={"name", "description", "hosts", "hours", "machine_cpus", "canary"})
        hosts = "".join(kind.drawn_from.digest for kind in self.kinds)
        return hashlib.sha256((text + hosts).encode()).hexdigest()[:12]


def load_fleet(source: str = "default") -> Fleet:
    """A shipped fleet by name, or a user's by path, with profiles beside it; ConfigError: none, or wrong, with line."""
    path = shipped_or_own(source, "fleet", "fleet")
    data, lines = load_yaml(path)
    for kind in data["kinds"] if isinstance(data.get("kinds"), list) else ():
        if isinstance(kind, dict) and "profile" in kind:
            kind["profile"] = beside(path.parent, kind["profile"])
    return validated(Fleet, data, path, lines)


def _training_kind(name: str) -> dict[str, Any] | None:
    taken = {"profile", "constants", "ranges", "weight"}
    return next((kind.model_dump(include=taken) for kind in _training_kinds() if kind.name == name), None)


@cache
def _training_kinds() -> tuple[Kind, ...]:
    return load_hosts().kinds


def _spans(host: HostProfile, weight: Weight) -> dict[str, tuple[float, float]]:
    """Every constant's range, and the weight as one; without a range it is the value alone."""
    equal = float(weight is Weight.EQUAL)
    return {name: (value, value) for name, value in host.values().items()} | host.ranges | {"weight": (equal, equal)}
