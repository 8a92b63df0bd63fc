"""What a YAML block of a page is checked against."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import yaml

from rlctl.agents.training.host_kinds import load_hosts
from rlctl.agents.training.recipe import ALGORITHMS, load_recipe
from rlctl.agents.training.search.space import load_space
from rlctl.bench.participants import load_tuned
from rlctl.bench.scenarios import load_scenario
from rlctl.config.serve import ServeConfig
from rlctl.envs.host.apps.registry import load_description
from rlctl.envs.host.partition.platform import PlatformFile
from rlctl.envs.sim.profile import load_profile as load_plant
from rlctl.envs.yaml_edge import load_model, load_yaml, validate
from rlctl.report.shadow_gate import load_gate
from rlctl.safety.profile import Profile
from rlctl.safety.profile import load_profile as load_safety

LC = {
    "workload": {"kind": "cgroup", "path": "/lc"},
    "slo": {"target_milliseconds": 10, "max_load_rps": 100},
    "latency": {"kind": "jsonl", "path": "/lc.jsonl"},
}
BE = {"workloads": [{"kind": "cgroup", "path": "/be"}]}


def _serve(path: Path) -> None:
    """A configuration, or parts of one: what is missing of `lc` and `be` is filled in."""
    data, lines = load_yaml(path)
    lc, be = data.get("lc", {}), data.get("be", {})
    least = {} if "applications" in be else BE
    validate(ServeConfig, data | {"lc": LC | lc if isinstance(lc, dict) else lc, "be": least | be}, path, lines)


def _safety(path: Path) -> None:
    """A profile, or some keys in place of those of one that ships."""
    data, lines = load_yaml(path)
    shipped = {} if "name" in data else load_safety("responsive").model_dump()
    validate(Profile, shipped | data, path, lines)


def _training(path: Path) -> None:
    data, _ = load_yaml(path)
    fitting = [name for name in ALGORITHMS if _takes(name, path)]
    if not fitting:
        load_recipe(next((name for name in ALGORITHMS if name in str(data)), "ppo"), path)


def _takes(algorithm: str, path: Path) -> bool:
    from rlctl.envs.errors import ConfigError

    try:
        load_recipe(algorithm, path)
    except ConfigError:
        return False
    return True


SCHEMAS: dict[str, Callable[[Path], object]] = {
    "serve": _serve,
    "scenario": lambda path: load_scenario(str(path)),
    "safety": _safety,
    "plant": lambda path: load_plant(str(path)),
    "training": _training,
    "hosts": load_hosts,
    "tuning": lambda path: load_space("ppo", load_recipe("ppo"), path),
    "platform": lambda path: load_model(PlatformFile, path),  # whether it fits a host, the host decides
    "shadow": load_gate,
    "managers": lambda path: load_tuned(str(path)),
    "application": load_description,
    "yaml": lambda path: list(yaml.safe_load_all(path.read_text())),
}
"""By the name that a fence gives; each raises what is wrong."""


def check(schema: str, text: str, page: str, line: int) -> str:
    """What is wrong with a block's text, or nothing.

    Args:
        schema: One of SCHEMAS.
        text: The block.
        page: Where it stands.
        line: Of its opening fence: what is said is then the line of the page.
    """
    if schema not in SCHEMAS:
        return f"no schema {schema!r}; there are {', '.join(SCHEMAS)}"
    with tempfile.TemporaryDirectory(prefix="rlctl-docs-") as folder:
        path = Path(folder) / "block.yaml"
        path.write_text("\n" * line + text)
        try:
            SCHEMAS[schema](path)
        except Exception as error:  # noqa: BLE001 - whatever a loader has against it
            return str(error).replace(str(path), page)
    return ""
