"""Who takes part in a benchmark, live or simulated: policies as a scenario wants them, and PRM's threshold model."""

from __future__ import annotations

import platform
import re
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from rlctl.agents import catalogue
from rlctl.agents.managers.prm_model import PrmModel
from rlctl.agents.managers.references import KernelAnswer
from rlctl.agents.policy import Policy
from rlctl.bench.sim_scenario import SimScenario
from rlctl.envs import plugins
from rlctl.envs.errors import ConfigError, PolicyError
from rlctl.envs.testbed.scenario import LiveScenario
from rlctl.log.record import Tick, write_ticks

CORE_STEPPED = frozenset({"prm-eris", "prm-thesis", "prm-hybrid", "heracles", "parties"})
"""Managers whose published constants are in cores, and so take `core_cpus`."""

NEEDS_MODEL = frozenset({"prm-eris", "prm-thesis"})
"""Managers that are nothing without PRM's threshold model."""

MODEL_WAY_OUT = (
    "scikit-learn, which fits their model, is not installed: pip install 'rlctl[baselines]', or in a checkout "
    "scripts/install cli,baselines"
)
"""The way out for managers that need it."""

PERIOD_SECONDS = 18.5
"""PRM's interval, over which the records are averaged (eris)."""


def refuse_files(names: Iterable[str], who: str) -> None:
    """Raise PolicyError where a file that others may have written names code to run."""
    for name in filter(plugins.is_file, names):
        raise PolicyError(f"{who} names {name}: code of a file runs only when --managers or --policy names it")


def policy_for(
    name: str,
    scenario: LiveScenario | SimScenario,
    model: PrmModel | None = None,
    tuned: Mapping[str, object] = MappingProxyType({}),
) -> Policy:
    """A new policy of this name, as the scenario wants it.

    Args:
        name: The manager's name, a bundle's folder with a slash in it, or FILE.py:CLASS.
        scenario: Holds options that win over all others.

    Raises:
        ConfigError: The scenario sets what is not a manager's to set, or knows no idle class.
        PolicyError: An unknown manager or option, a bundle that cannot be served, or a file whose code fails.
    """
    refuse_files(scenario.managers, f"scenario {scenario.name}")
    if isinstance(scenario, LiveScenario):
        if answer := catalogue.answer_of(name):
            return KernelAnswer(name=name, law=answer.law)
    elif name == "cpu-idle":
        raise ConfigError(f"cpu-idle: {no_idle_class(live=False)}; leave it out")
    options = {**tuned, **scenario.managers.get(name, {})}
    if refused := catalogue.NOT_OPTIONS & options.keys():
        raise ConfigError(f"scenario {scenario.name}: managers.{name} may not set {', '.join(sorted(refused))}")
    if name in CORE_STEPPED or catalogue.is_plugin(name):
        options.setdefault("core_cpus", scenario.core_cpus)
    return catalogue.build(name, time_scale=scenario.time_scale, model=model, **options)


def lacking_library(names: Collection[str]) -> tuple[str, ...]:
    """Those managers that need scikit-learn, each once, when it is not installed."""
    needing = tuple(name for name in dict.fromkeys(names) if name in NEEDS_MODEL)
    return needing if needing and find_spec("sklearn") is None else ()


def no_idle_class(*, live: bool, release: str = platform.release()) -> str:
    """Why `cpu-idle` would show nothing here; empty where the kernel has `cpu.idle`."""
    if not live:
        return "the simulated hosts know no idle class: it would be the row of weights again"
    version = [int(number) for number in re.findall(r"\d+", release)[:2]]
    return "" if version >= [5, 15] else f"cpu.idle came with Linux 5.15, this is {release}"


def left_out(names: Collection[str], *, live: bool) -> dict[str, str]:
    """Those that cannot run here, with the reason: PRM without scikit-learn, a learned policy without its bundle."""
    missing = dict.fromkeys(lacking_library(names), MODEL_WAY_OUT)
    if "cpu-idle" in names and (why := no_idle_class(live=live)):
        missing["cpu-idle"] = why
    return missing | {name: reason for name in names if (reason := catalogue.lacking(name))}


def require_library(names: Collection[str]) -> None:
    """Check that scikit-learn is there for those managers that need it; ConfigError: it is not installed."""
    if lacking := lacking_library(names):
        raise ConfigError(f"{' and '.join(lacking)}: {MODEL_WAY_OUT}")


def refuse_models(names: Collection[str]) -> None:
    """Refuse, by a ConfigError, managers that need a threshold model where none is recorded."""
    if needing := sorted(NEEDS_MODEL & set(names)):
        raise ConfigError(f"{', '.join(needing)}: a threshold model of the host is needed, and none is recorded here")


def fitted(ticks: Sequence[Tick], lc_cpus: float, time_scale: float) -> PrmModel:
    """PRM's threshold model of ticks with the LC alone; ConfigError: no scikit-learn is installed, or BE ran in all."""
    from rlctl.agents.training.fit_prm import fit, read_rows

    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        write_ticks(Path(file.name), ticks)
        rows = read_rows(Path(file.name))
    return fit(rows, lc_cpus=lc_cpus, interval_seconds=PERIOD_SECONDS / time_scale)
