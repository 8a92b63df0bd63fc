"""Scenarios by name or file; its key `plant` says of which kind a file is: `host` a live one, `sim` a simulated one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rlctl.bench.sim_scenario import SimScenario
from rlctl.envs.errors import ConfigError
from rlctl.envs.testbed.scenario import LiveScenario
from rlctl.envs.workload import Weight
from rlctl.envs.yaml_edge import beside, configs_folder, load_yaml, shipped_or_own, validate

if TYPE_CHECKING:
    from rlctl.envs.sim.sim_env import SimHost
    from rlctl.envs.sim.vector_env import SimHostVectorEnv

Scenario = TypeVar("Scenario", bound=LiveScenario | SimScenario)


def shipped_scenarios() -> dict[str, LiveScenario | SimScenario]:
    """The scenarios that come with rlctl, live and simulated, by name."""
    return {path.stem: _load(path) for path in sorted(configs_folder("scenarios").glob("*.yaml"))}


def load_scenario(name_or_file: str) -> LiveScenario | SimScenario:
    """A shipped scenario by name, or one of the user's by path.

    A host profile or a recorded load that is a file is looked for beside the scenario's file first, then in the current
    folder.

    Raises:
        ConfigError: Neither exists, or the file is wrong.
    """
    return _load(shipped_or_own(name_or_file, "scenarios", "scenario"))


def live_scenario(name_or_file: str) -> LiveScenario:
    """As `load_scenario`, for work that needs a live host.

    Raises:
        ConfigError: There is no such scenario, the file is wrong, or it is the simulator's.
    """
    scenario = load_scenario(name_or_file)
    if isinstance(scenario, SimScenario):
        raise ConfigError(f"scenario {name_or_file} runs in the simulator; give a live one, such as live-nginx")
    return scenario


def sim_scenario(name_or_file: str) -> SimScenario:
    """As `load_scenario`, for work that only the simulator can do.

    Raises:
        ConfigError: There is no such scenario, the file is wrong, or it is for the live host.
    """
    scenario = load_scenario(name_or_file)
    if isinstance(scenario, LiveScenario):
        raise ConfigError(f"scenario {name_or_file} is for the live host; give a simulated one, such as thesis")
    return scenario


def changed(scenario: Scenario, be_weight: str | None = None, **given: float | str | None) -> Scenario:
    """A scenario with BE's CPU weight and some of its other keys changed, None for those that stay.

    Raises:
        ConfigError: A run has less than two ticks then.
    """
    weighed = {} if be_weight is None else {"be": scenario.be.model_copy(update={"weight": Weight(be_weight)})}
    others = {key: value for key, value in given.items() if value is not None}
    one = cast("Scenario", scenario.model_copy(update=weighed | others))
    if one.duration_seconds < 2.0 * one.tick_seconds:
        raise ConfigError(f"a run of {one.duration_seconds:g} s has less than two ticks; make it longer")
    return one


def require_distinct(names: Sequence[str]) -> None:
    """Results go by the scenario's name; ConfigError: two have the same, as a copy has whose `name` was left."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"two scenarios have the name {twice[0]}; give the copy another in its file (key name)")


def _load(path: Path) -> LiveScenario | SimScenario:
    data, lines = load_yaml(path)
    if isinstance(load := data.get("load"), dict) and "path" in load:
        load["path"] = beside(path.parent, load["path"])
    if "profile" in data:
        data["profile"] = beside(path.parent, data["profile"])
    if data.get("plant") == "host":
        return validate(LiveScenario, data, path, lines)
    if data.get("plant") == "sim":
        return validate(SimScenario, data, path, lines)
    raise ConfigError("plant: host or sim is needed: a live scenario or a simulated one", path, lines.get(("plant",)))


def make_host(scenario: str, **options: Any) -> SimHost:
    """One simulated host of a scenario, by its name or file: `gymnasium.make("rlctl/Thesis-v0")`.

    An episode is a run of the scenario: its host, its load, its length. A seed decides all chance in it; the benchmark
    judges on evaluation seeds (`rlctl.envs.sim.seeds`), so train on others. Options are those of `SimHost`.

    Raises:
        ConfigError: There is no such scenario.
    """
    from rlctl.envs.sim.sim_env import SimHost  # with Gymnasium, as is the next

    return SimHost(**_hosts_of(scenario) | options)


def make_hosts(scenario: str, **options: Any) -> SimHostVectorEnv:
    """Many hosts of a scenario, as `make_host` has one; options as of `SimHostVectorEnv`."""
    from rlctl.envs.sim.vector_env import SimHostVectorEnv

    return SimHostVectorEnv(**_hosts_of(scenario) | options)


def _hosts_of(name_or_file: str) -> dict[str, Any]:
    """What a scenario's file says of its hosts."""
    scenario = sim_scenario(name_or_file)
    return {
        "profile": scenario.host(),
        "load": scenario.load_model,
        "vary": scenario.vary,
        "tick_seconds": scenario.tick_seconds,
        "ticks": scenario.ticks,
        "weight": scenario.be.weight,
    }
