"""Simulated scenarios: which host is simulated, how the load goes, and what the managers are told."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from pydantic import Field, field_validator

from rlctl.envs.errors import ConfigError
from rlctl.envs.sim.loads import from_config
from rlctl.envs.sim.plant import LoadModel
from rlctl.envs.sim.profile import HostProfile, load_profile
from rlctl.envs.workload import Weight
from rlctl.envs.yaml_edge import Strict

SUITE = ("thesis", "diurnal", "bursty", "flash-crowd", "noisy", "two-core")
"""What `all` means in the simulator, in the order of reports."""

CAPPED = ("capped-link", "capped-link-credits", "capped-disk")
"""What no CPU weight reaches: LC and BE share a link or a disk."""

REINED = ("capped-link-sendfile", "capped-link-halved", "capped-disk-direct", "capped-moving")
"""Hosts whose link or disk may move BE's level, which a policy that moves the CPUs alone hardly holds."""

JUDGED = (*SUITE, *CAPPED, *REINED)
"""What learners are judged on while they learn."""


class SimBeSection(Strict):
    """The best-effort work; what it is stands in the host profile.

    Attributes:
        weight: BE's CPU weight for every manager but `weights` (minimum) and `none` (equal), whose point it is.
    """

    weight: Weight = Weight.EQUAL


class SimScenario(Strict):
    """A scenario that runs on simulated hosts (`plant: sim`).

    Attributes:
        name: As `rlctl scenarios` lists it.
        description: What it shows, in one line.
        plant: `sim` makes it a simulated one.
        duration_seconds: Length of one run.
        tick_seconds: Control period: one decision per tick.
        profile: A host profile, by name or file; a file stands beside the scenario's or in the current folder.
        constants: Constants of the profile that are different here, by name.
        vary: Draw each seed's host from the profile's ranges, rather than the same host for all.
        load: Arguments of a load model of `rlctl.envs.sim.loads`; shares of the LC's maximum load.
        core_cpus: How many CPUs here stand for one core of the machine that a manager was published for.
        time_scale: Divides every published period.
        managers: Further constructor options by manager name.
        levels: Quota levels, for managers that count in them.
    """

    name: str
    description: str
    plant: Literal["sim"]
    profile: str
    load: dict[str, Any]
    be: SimBeSection = SimBeSection()
    constants: dict[str, float] = Field(default_factory=dict)
    vary: bool = False
    duration_seconds: float = Field(3000.0, gt=0.0)
    tick_seconds: float = Field(1.0, gt=0.0)
    time_scale: float = Field(1.0, gt=0.0)
    core_cpus: float = Field(1.0, gt=0.0)
    managers: dict[str, dict[str, Any]] = Field(default_factory=dict)
    levels: int = Field(20, ge=1)

    @field_validator("load")
    @classmethod
    def _is_a_load(cls, load: dict[str, Any]) -> dict[str, Any]:
        from_config(load)
        return load

    @property
    def ticks(self) -> int:
        """Number of windows, one tick each, of a run."""
        return round(self.duration_seconds / self.tick_seconds)

    @property
    def load_model(self) -> LoadModel:
        """The load over time, by seed."""
        return from_config(self.load)

    def host(self) -> HostProfile:
        """The host, with this scenario's constants.

        Raises:
            ConfigError: There is no such profile, or no such constant in it.
        """
        try:
            return load_profile(self.profile).but(**self.constants)
        except ConfigError as error:
            raise ConfigError(f"scenario {self.name}: {error}") from error

    @property
    def digest(self) -> str:
        """Hash of all that decides a result but the host's constants, which have a digest of their own."""
        text = self.model_dump_json(exclude={"name", "description", "profile", "constants"})
        return hashlib.sha256(text.encode()).hexdigest()[:12]
