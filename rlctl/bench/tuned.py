"""Constants of managers that scripts/tune-managers searched, and where: read by `rlctl bench --tuned`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import Field, model_validator

from rlctl.agents import catalogue
from rlctl.bench.sim_scenario import SimScenario
from rlctl.envs.sim.profile import HostProfile
from rlctl.envs.yaml_edge import Strict, configs_folder, load_model
from rlctl.safety.profile import Profile

SHIPPED = "tuned"
"""What `--tuned` without a file means."""


class Budget(Strict):
    """What the search spent on each manager, the same for all.

    Attributes:
        candidates: Number of sets of constants that were tried, the published one included.
        seeds: Training seeds of each scenario, the same for every candidate.
        duration_seconds: Length of the longest run; a shorter scenario runs to its end.
    """

    candidates: int = Field(ge=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    duration_seconds: float = Field(gt=0.0)


class Ground(Strict):
    """What a scenario was when constants were searched on it, so that a later change of it shows.

    Attributes:
        duration_seconds: Length of the runs.
        scenario_digest: Hash of the scenario.
        profile: Name of the host profile.
        profile_digest: Hash of the host profile.
        shield_digest: Hash of the shield's profile.
    """

    duration_seconds: float = Field(gt=0.0)
    scenario_digest: str
    profile: str
    profile_digest: str
    shield_digest: str


class Fulfilment(Strict):
    """The search's objective: QoS first, BE throughput second.

    Attributes:
        shortfall_points: QoS below frozen's less ALLOWANCE_POINTS, summed over the scenarios, in percentage points.
        be_throughput_percent: BE throughput, mean over the scenarios.
    """

    shortfall_points: float
    be_throughput_percent: float


class TunedManager(Strict):
    """One manager's constants, and what they and the published ones reached on the training seeds.

    Attributes:
        options: The tuned constants, for the manager's constructor.
        published: What the published constants reached.
        tuned: What the tuned constants reached.
    """

    options: dict[str, int | float]
    published: Fulfilment
    tuned: Fulfilment


class Tuned(Strict):
    """A file of tuned constants.

    Attributes:
        budget: What the search spent on each manager.
        shield: Safety profile of the managers that are judged behind one.
        scenarios: What the constants were searched on, by the scenario's name.
        managers: The search's result, by the manager's name.
    """

    budget: Budget
    shield: str
    scenarios: dict[str, Ground] = Field(min_length=1)
    managers: dict[str, TunedManager] = Field(min_length=1)

    @model_validator(mode="after")
    def _are_options(self) -> Tuned:
        """A mistake in an edited file is reported with the file's name, not as an unknown option of some benchmark."""
        for name, manager in self.managers.items():
            if unknown := manager.options.keys() - catalogue.options(name).keys():
                raise ValueError(f"managers.{name}: no option {', '.join(sorted(unknown))}")
        return self

    @property
    def digest(self) -> str:
        """Hash of the file's content without its comments."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]

    def options(self, manager: str) -> Mapping[str, int | float]:
        """The tuned constants of a manager; empty for one that was not tuned, which keeps its published ones."""
        return self.managers[manager].options if manager in self.managers else {}

    def misfits(self, scenario: SimScenario, host: HostProfile, shield: Profile) -> Iterator[str]:
        """A line for each thing in which a scenario differs from what the constants were searched on."""
        ground = self.scenarios.get(scenario.name)
        if ground is None:
            yield f"{scenario.name}: the constants were not tuned on this scenario"
            return
        here = ground_of(scenario.model_copy(update={"duration_seconds": ground.duration_seconds}), host, shield)
        for what in ("scenario", "profile", "shield"):
            then, now = getattr(ground, f"{what}_digest"), getattr(here, f"{what}_digest")
            if then != now:
                yield f"{scenario.name}: the constants were tuned with {what} {then}, here it is {now}"


def ground_of(scenario: SimScenario, host: HostProfile, shield: Profile) -> Ground:
    """What a scenario is: its digests and duration, with host and shield as it runs with them."""
    return Ground(
        duration_seconds=scenario.duration_seconds,
        scenario_digest=scenario.digest,
        profile=host.name,
        profile_digest=host.digest,
        shield_digest=shield.digest,
    )


def load_tuned(source: str = SHIPPED) -> Tuned:
    """The constants that ship, or those of a file by its path; ConfigError: there is no such file, or it is wrong."""
    shipped = configs_folder("managers") / f"{SHIPPED}.yaml"
    return load_model(Tuned, shipped if source == SHIPPED else Path(source))
