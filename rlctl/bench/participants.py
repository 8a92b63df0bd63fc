"""Who takes part in a benchmark: policies as a scenario wants them, PRM's threshold model, and searched constants."""

from __future__ import annotations

import hashlib
import platform
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from pydantic import Field, model_validator

from rlctl.agents import catalogue
from rlctl.agents.managers.prm_model import PrmModel
from rlctl.agents.managers.references import KernelAnswer
from rlctl.agents.policy import Policy
from rlctl.bench.sim_scenario import SimScenario
from rlctl.envs import plugins
from rlctl.envs.errors import ConfigError, PolicyError
from rlctl.envs.sim.profile import HostProfile
from rlctl.envs.testbed.scenario import LiveScenario
from rlctl.envs.yaml_edge import Strict, configs_folder, load_model
from rlctl.log.kept import write_ticks
from rlctl.log.record import Tick
from rlctl.safety.profile import Profile

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
