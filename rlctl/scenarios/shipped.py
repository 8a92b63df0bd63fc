"""Scenarios by name or file; its key `plant` says of which kind a file is: `host` a live one, `sim` a simulated one."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from rlctl.envs.errors import ConfigError
from rlctl.envs.yaml_edge import load_yaml, validated
from rlctl.scenarios.live import LiveScenario
from rlctl.scenarios.sim import SimScenario


def shipped_scenarios() -> dict[str, LiveScenario | SimScenario]:
    """The scenarios that come with rlctl, live and simulated, by name."""
    return {path.stem: _load(path) for path in sorted(scenarios_folder().glob("*.yaml"))}


def load_scenario(name_or_file: str) -> LiveScenario | SimScenario:
    """A shipped scenario by name, or one of the user's by path.

    A host profile that is a file is looked for beside the scenario's file first, then in the current folder.

    Raises:
        ConfigError: Neither exists, or the file is wrong.
    """
    shipped = scenarios_folder() / f"{name_or_file}.yaml"
    if shipped.is_file():
        return _load(shipped)
    path = Path(name_or_file)
    if path.suffix in {".yaml", ".yml"}:
        return _load(path)
    names = ", ".join(sorted(path.stem for path in scenarios_folder().glob("*.yaml")))
    raise ConfigError(f"no scenario {name_or_file!r}; there are {names}, or give a .yaml file")


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


def scenarios_folder() -> Path:
    """The folder of the scenarios that ship."""
    return Path(str(files("rlctl") / "configs" / "scenarios"))


def _load(path: Path) -> LiveScenario | SimScenario:
    data, lines = load_yaml(path)
    if data.get("plant") == "host":
        return validated(LiveScenario, data, path, lines)
    if data.get("plant") == "sim":
        return validated(SimScenario, {**data, **_profile_beside(path, data.get("profile"))}, path, lines)
    raise ConfigError("plant: host or sim is needed: a live scenario or a simulated one", path, lines.get(("plant",)))


def _profile_beside(path: Path, profile: object) -> dict[str, str]:
    """The scenario's `profile` key with the folder of the scenario's file before it, when the profile is there."""
    if not isinstance(profile, str) or Path(profile).suffix not in {".yaml", ".yml"}:
        return {}
    beside = path.parent / profile
    return {"profile": str(beside)} if beside.is_file() else {}
