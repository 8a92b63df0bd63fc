"""Constants that scripts/tune-managers found, and on what: read by `rlctl bench --tuned`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path

import yaml
from pydantic import Field, model_validator

from rlctl.agents import catalogue
from rlctl.envs.sim.profile import HostProfile
from rlctl.envs.yaml_edge import Strict, load_model
from rlctl.safety.profile import Profile
from rlctl.scenarios.sim import SimScenario

__all__ = [
    "ALLOWANCE_POINTS",
    "SHIPPED",
    "Budget",
    "Found",
    "Fulfilment",
    "Ground",
    "Tuned",
    "as_yaml",
    "ground_of",
    "load_tuned",
]

ALLOWANCE_POINTS = 0.1
"""QoS below frozen's that costs nothing: less is within what three seeds can tell."""

SHIPPED = "tuned"
"""What `--tuned` without a file means."""


class Budget(Strict):
    """What each manager was given, the same for all.

    Attributes:
        candidates: Sets of constants that were tried, the published one included.
        seeds: Training seeds of each scenario, the same for every candidate.
        duration_seconds: Longest run; a shorter scenario runs to its end.
    """

    candidates: int = Field(ge=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    duration_seconds: float = Field(gt=0.0)


class Ground(Strict):
    """What a scenario was when the constants were found on it; another one now is told as out of date.

    Attributes:
        duration_seconds: Of its runs.
        scenario_digest: Hash of the scenario.
        profile: Its host profile.
        profile_digest: Hash of that.
        shield_digest: Hash of the shield's profile.
    """

    duration_seconds: float = Field(gt=0.0)
    scenario_digest: str
    profile: str
    profile_digest: str
    shield_digest: str


class Fulfilment(Strict):
    """What the search went by.

    Attributes:
        shortfall_points: QoS below frozen's less ALLOWANCE_POINTS, summed over the scenarios, in percentage points.
        be_throughput_percent: Mean over the scenarios.
    """

    shortfall_points: float
    be_throughput_percent: float


class Found(Strict):
    """One manager's constants, and what they and the published ones came to on the training seeds.

    Attributes:
        options: The constants that were found, for the manager's constructor.
        published: What the published ones came to.
        tuned: What those found came to.
    """

    options: dict[str, int | float]
    published: Fulfilment
    tuned: Fulfilment


class Tuned(Strict):
    """A file of tuned constants.

    Attributes:
        budget: What the search was given.
        shield: Safety profile of the managers that are judged behind one.
        scenarios: On what they were found, by name.
        managers: What was found, by name.
    """

    budget: Budget
    shield: str
    scenarios: dict[str, Ground] = Field(min_length=1)
    managers: dict[str, Found] = Field(min_length=1)

    @model_validator(mode="after")
    def _are_options(self) -> Tuned:
        """A slip in a file that was edited is told with the file's name, not as an option of some bench."""
        for name, one in self.managers.items():
            if unknown := one.options.keys() - catalogue.options(name).keys():
                raise ValueError(f"managers.{name}: no option {', '.join(sorted(unknown))}")
        return self

    @property
    def digest(self) -> str:
        """Hash of everything that the file says but its comments."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]

    def options(self, manager: str) -> Mapping[str, int | float]:
        """The constants of a manager; none for one that was not tuned, which keeps its published ones."""
        return self.managers[manager].options if manager in self.managers else {}

    def misfits(self, scenario: SimScenario, host: HostProfile, shield: Profile) -> Iterator[str]:
        """What differs between a scenario and that which the constants were found on, a line for each."""
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
    """What a scenario is.

    Args:
        scenario: With the duration and time scale that it runs with.
        host: Its host, with the scenario's constants in place.
        shield: The profile, already on the scenario's time scale.
    """
    return Ground(
        duration_seconds=scenario.duration_seconds,
        scenario_digest=scenario.digest,
        profile=host.name,
        profile_digest=host.digest,
        shield_digest=shield.digest,
    )


def load_tuned(source: str = SHIPPED) -> Tuned:
    """The constants that ship, or those of a file.

    Args:
        source: `tuned` or a path.

    Raises:
        ConfigError: There is no such file, or it is wrong.
    """
    shipped = Path(str(files("rlctl") / "configs" / "managers" / f"{SHIPPED}.yaml"))
    return load_model(Tuned, shipped if source == SHIPPED else Path(source))


def as_yaml(tuned: Tuned) -> str:
    """The file's text; the same for the same search, whenever it ran."""
    data = tuned.model_dump(mode="json")
    return (
        "# Written by scripts/tune-managers: constants for `rlctl bench --plant sim --tuned`, one set per manager for\n"
        "# the whole suite. shortfall_points: QoS below frozen's less "
        f"{ALLOWANCE_POINTS:g}, summed over the scenarios. Training seeds.\n"
        + yaml.safe_dump(data, sort_keys=False, width=120, default_flow_style=None)
    )
