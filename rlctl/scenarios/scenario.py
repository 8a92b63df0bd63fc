"""Scenarios as YAML: who runs on the host, how the load goes, and what the managers are told.

A file's `plant` key says which kind it is: `host` is a `Scenario`, `sim` a `rlctl.scenarios.sim_scenario.SimScenario`.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from rlctl.envs.errors import ConfigError
from rlctl.envs.testbed.memcached import Memcached
from rlctl.envs.testbed.nginx import Nginx
from rlctl.envs.testbed.session import TestbedSpec
from rlctl.envs.testbed.stress import StressConfig
from rlctl.envs.testbed.traces import Trace, shares_from_config
from rlctl.envs.workload import Weight
from rlctl.envs.yaml_edge import Strict, load_yaml, validated
from rlctl.scenarios.sim_scenario import SimScenario

__all__ = ["Scenario", "load_scenario", "shipped_scenarios"]


class LcSection(Strict):
    """The latency-critical service that the testbed starts.

    Attributes:
        kind: Which one.
        cpus: Where it runs.
    """

    kind: Literal["nginx", "memcached"]
    cpus: tuple[int, ...] = (0,)


class BeSection(Strict):
    """The best-effort job that the testbed starts.

    Attributes:
        kind: stress-ng's work: computing, streaming through memory, or both.
        workers: Processes.
        cpus: Where they run.
    """

    kind: Literal["cpu", "memory", "mixed"]
    workers: int = Field(2, ge=1)
    cpus: tuple[int, ...] = (0,)
    weight: Weight = Weight.EQUAL
    """BE's weight for every manager but `weights`, whose point it is. Equal is how containers are deployed."""


class SloSection(Strict):
    """The objective; the largest load that meets it with BE absent is searched before the first run.

    Attributes:
        target_milliseconds: Tail latency to stay below.
        quantile_percent: Which tail.
    """

    target_milliseconds: float = Field(gt=0.0)
    quantile_percent: float = Field(95.0, gt=50.0, lt=100.0)


class KneeSection(Strict):
    """Range and step of the search for the LC's maximum load (thesis 5.1.3).

    Attributes:
        start_rps: Where it begins.
        step_rps: By how much it goes on.
        top_rps: Where it ends.
    """

    start_rps: float = Field(gt=0.0)
    step_rps: float = Field(gt=0.0)
    top_rps: float = Field(gt=0.0)


class Scenario(Strict):
    """One live scenario.

    Attributes:
        name: As `rlctl scenarios` lists it.
        description: In a line.
        plant: `host`: on this very machine.
        duration_seconds: Of a run.
        tick_seconds: Control period.
        load: Arguments of a trace of `rlctl.envs.testbed.traces`, with rates as shares of the LC's maximum load.
        core_cpus: How many CPUs here stand for one core of the machine that a manager was published for; the thesis'
            host has 36 cores, so on a single shared CPU a "core" is 1/36 of it. Managers whose step is a share of the
            host need no such scaling.
        time_scale: Divides every published period, so that minutes of a paper fit a run of a minute.
        managers: Further constructor options by manager name.
    """

    name: str
    description: str
    plant: Literal["host"]
    lc: LcSection
    be: BeSection
    slo: SloSection
    knee: KneeSection
    load: dict[str, Any]
    duration_seconds: float = Field(60.0, gt=0.0)
    tick_seconds: float = Field(1.0, gt=0.0)
    time_scale: float = Field(15.0, gt=0.0)
    core_cpus: float = Field(1.0, gt=0.0)
    managers: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @field_validator("load")
    @classmethod
    def _is_a_trace(cls, load: dict[str, Any]) -> dict[str, Any]:
        shares_from_config(load)
        return load

    def testbed(self) -> TestbedSpec:
        """What the testbed has to start."""
        return TestbedSpec(
            lc={"nginx": Nginx, "memcached": Memcached}[self.lc.kind](),
            lc_cpus=self.lc.cpus,
            be=StressConfig(self.be.kind, self.be.workers),
            be_cpus=self.be.cpus,
            target_seconds=self.slo.target_milliseconds / 1e3,
            quantile=self.slo.quantile_percent / 100.0,
            tick_seconds=self.tick_seconds,
            knee_rps=(self.knee.start_rps, self.knee.step_rps, self.knee.top_rps),
        )

    @property
    def trace(self) -> Trace:
        """The load over time, as a share of the LC's maximum."""
        return shares_from_config(self.load)


def shipped_scenarios() -> dict[str, Scenario | SimScenario]:
    """The scenarios that come with rlctl, live and simulated, by name."""
    return {path.stem: _load(path) for path in sorted(_folder().glob("*.yaml"))}


def load_scenario(name_or_file: str) -> Scenario | SimScenario:
    """A shipped scenario by name, or one of the user's by path.

    A host profile that is a file is looked for beside the scenario's file first, then in the current folder.

    Raises:
        ConfigError: Neither exists, or the file is wrong.
    """
    shipped = _folder() / f"{name_or_file}.yaml"
    if shipped.is_file():
        return _load(shipped)
    path = Path(name_or_file)
    if path.suffix in {".yaml", ".yml"}:
        return _load(path)
    names = ", ".join(sorted(path.stem for path in _folder().glob("*.yaml")))
    raise ConfigError(f"no scenario {name_or_file!r}; there are {names}, or give a .yaml file")


def _load(path: Path) -> Scenario | SimScenario:
    data, lines = load_yaml(path)
    if data.get("plant") not in ("host", "sim"):
        raise ConfigError(
            "plant: host or sim is needed: a live scenario or a simulated one", path, lines.get(("plant",))
        )
    if data["plant"] == "sim":
        data = {**data, **_profile_beside(path, data.get("profile"))}
        return validated(SimScenario, data, path, lines)
    return validated(Scenario, data, path, lines)


def _profile_beside(path: Path, profile: object) -> dict[str, str]:
    """The scenario's `profile` key with the folder of the scenario's file before it, when the profile is there."""
    if not isinstance(profile, str) or Path(profile).suffix not in {".yaml", ".yml"}:
        return {}
    beside = path.parent / profile
    return {"profile": str(beside)} if beside.is_file() else {}


def _folder() -> Path:
    return Path(str(files("rlctl") / "configs" / "scenarios"))
