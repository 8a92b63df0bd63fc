"""Everyone who can decide, by name: heuristic managers, references and learned policies, with their sources.

A manager that is to ship is one more entry of HEURISTICS; one of a user's own needs none, see `user_policy`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from rlctl.agents.managers.autorate import Autorate
from rlctl.agents.managers.barbeque import Barbeque
from rlctl.agents.managers.feedforward import Feedforward
from rlctl.agents.managers.heracles import Heracles
from rlctl.agents.managers.hipster import Hipster
from rlctl.agents.managers.koord_suppress import KoordSuppress
from rlctl.agents.managers.learned_table import LearnedTable
from rlctl.agents.managers.manager import Manager
from rlctl.agents.managers.parties import Parties
from rlctl.agents.managers.prm_eris import PrmEris
from rlctl.agents.managers.prm_hybrid import TUNED, PrmHybrid
from rlctl.agents.managers.prm_latency import PrmLatency
from rlctl.agents.managers.prm_model import PrmModel
from rlctl.agents.managers.prm_thesis import PrmThesis
from rlctl.agents.managers.references import CpuIdle, Frozen, GreedyShield, Static, Unmanaged, Weights
from rlctl.agents.managers.sideload import Sideload
from rlctl.agents.managers.table import Table
from rlctl.agents.policy import Policy
from rlctl.agents.served import bundle
from rlctl.agents.served.learned import BARE, BOLD, CAREFUL, VARIANTS, LearnedPolicy, plain_name
from rlctl.agents.user_policy import build_user_policy
from rlctl.envs import plugins
from rlctl.envs.errors import BundleError, PolicyError, meant
from rlctl.envs.level_counts import LADDER
from rlctl.envs.observation import MOST_PRICE
from rlctl.envs.workload import Weight

NOT_OPTIONS = frozenset({"name", "time_scale", "model", "trusted"})
"""Parameters that the catalogue or the scenario as a whole sets."""


@dataclass(frozen=True, slots=True)
class ManagerEntry:
    """One heuristic manager of the catalogue.

    Attributes:
        law: The control law in a line, with its constants.
        source: Paper or program in which it was published.
        preset: Constants that differ from the class's defaults, by name.
    """

    manager: type[Manager]
    law: str
    source: str
    preset: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Named:
    """Who can decide and is no manager: a bound (see `rlctl.agents.bounds`) or a learned policy of configs/bundles.

    Attributes:
        law: What it knows and does, in a line.
    """

    law: str
    source: str = "rlctl"


@dataclass(frozen=True, slots=True)
class KernelSetting(Named):
    """The kernel's own means against an interference, set by who knows; BE runs at the minimum weight.

    Attributes:
        resource: What it divides: it is a row of the live scenarios that have one.
        rate_ratio: Rate that whoever set it takes that to have, as a share of its first one; `htb@0.8` is told .8.
        follows: It is told each change of the rate; else it is set once and for all.
    """

    resource: Literal["link", "disk"] = "link"
    rate_ratio: float = 1.0
    follows: bool = False


HEURISTICS: Mapping[str, ManagerEntry] = MappingProxyType(
    {
        "none": ManagerEntry(Unmanaged, "BE unmanaged: no quota, equal weight", "reference"),
        "weights": ManagerEntry(Weights, "kernel weights only, BE at the minimum", "reference"),
        "cpu-idle": ManagerEntry(
            CpuIdle,
            "the kernel's idle class only, `cpu.idle` (simulated hosts know none: as weights)",
            "reference; Linux 5.15",
        ),
        "frozen": ManagerEntry(Frozen, "BE never runs", "reference"),
        "static": ManagerEntry(Static, "one fixed quota, 25 % of BE's CPUs", "reference"),
        "prm-eris": ManagerEntry(
            PrmEris,
            "LC + BE + 0.5 core above the LC's recorded maximum: minimum; 7 clean cycles of 2 s: +1 of 20 levels",
            "intel/platform-resource-manager 0.8, eris",
        ),
        "prm-thesis": ManagerEntry(
            PrmThesis,
            "as prm-eris but for its clause on an idle LC, and CPI above its threshold at an 18.5-s check: minimum",
            "thesis 3.1, 4.1",
        ),
        "prm-latency": ManagerEntry(
            PrmLatency,
            "every 18.5 s: latency at or above target: minimum; below: +1/50 of the host, up to 48/50",
            "thesis 3.2, 4.2",
        ),
        "prm-hybrid": ManagerEntry(
            PrmHybrid,
            "every 15 s: slack < 0 or load > .85 suspends (cool-down 300 s), load < .80 enables; "
            "slack > .10: +1 core per 2 s",
            "thesis 3.3, 4.3",
        ),
        "prm-hybrid-tuned": ManagerEntry(
            PrmHybrid,
            "as prm-hybrid with gates .95/.90, cool-down 180 s, +1/50 of the host per 2 s",
            "thesis 3.3.1",
            TUNED,
        ),
        "heracles": ManagerEntry(
            Heracles,
            "every 15 s load gates .85/.80, cool-down 300 s, slack < .10 no growth, < .05 two cores; +1 core per 2 s; "
            "where measured, DRAM bandwidth below .90 and power below .90 of the TDP; on a testbed's link a ceiling "
            "for BE every 1 s, what the LC leaves of it less 5 %",
            "Heracles, ISCA 2015",
        ),
        "parties": ManagerEntry(
            Parties,
            "slack < .05: LC +1 core, > .20: -1 core, each judged by 5 samples of 0.1 s; a failed downsize is undone "
            "and rests 10 s",
            "PARTIES, ASPLOS 2019; sc2682cornell/PARTIES",
        ),
        "sideload": ManagerEntry(
            Sideload,
            "every 1 s: quota = BE's use + idle - 20 %, at least 5 %; below 10 % margin over 10 s: frozen for 10-30 s",
            "facebookexperimental/resctl-demo, sideloader",
        ),
        "koord-suppress": ManagerEntry(
            KoordSuppress,
            "every 1 s: quota = 65 % of the CPUs - what others than BE use; +10 % a step at most, down at once",
            "koordinator-sh/koordinator, koordlet cpusuppress",
        ),
        "hipster": ManagerEntry(
            Hipster,
            "every 1 s: latency >= .8 of the target withholds a level more from BE, < .2 one less; after 300 s a "
            "Q-table by load (alpha .9, gamma .2)",
            "Hipster, HPCA 2017; nishtala/hipster",
        ),
        "barbeque": ManagerEntry(
            Barbeque,
            "every 1 s LC and BE in working modes of 1/20 of the host by value, reconfiguration, congestion, fairness "
            "(20/5/5/10); LC first: its use + 10 %, all modes while above its target",
            "BarbequeRTRM, ACM TECS 2015; derkling/barbeque, YaMS",
        ),
        "autorate": ManagerEntry(
            Autorate,
            "every tick: latency above .8 of the target takes 1 to 25 % off BE's level, on whichever rein is in hand; "
            "below it, while BE uses .75 of it, +4 % at most",
            "lynxthecat/cake-autorate",
        ),
        "feedforward": ManagerEntry(
            Feedforward, "quota = CPUs - 10 % - LC use foreseen from the load, every tick; shielded", "rlctl"
        ),
        "table": ManagerEntry(
            Table, "the largest quota that a sweep of this host found to hold .8 of the target at this load", "rlctl"
        ),
        "learned-table": ManagerEntry(
            LearnedTable,
            f"the highest of {len(LADDER)} levels that lately held .8 of the target at this load or a higher one, one "
            "more while the latency is below half of it; learned while it runs; shielded",
            "rlctl",
        ),
        "greedy-shield": ManagerEntry(GreedyShield, "asks for everything; the shield rules", "rlctl"),
    }
)
"""All managers, in the order of tables and reports."""

NAMES: tuple[str, ...] = tuple(HEURISTICS)

BOUNDS: Mapping[str, Named] = MappingProxyType(
    {
        "oracle": Named("knows plant, trace and noise: the most BE work with no window missed that frozen holds"),
        "oracle-model": Named(
            "knows plant, trace and state, not the noise to come: the most BE work at a risk of 0.0005 per window"
        ),
        "oracle-shielded": Named("oracle-model behind the shield: what the guards leave to any policy"),
    }
)
"""What no manager can beat, simulator only: not in NAMES, and not for `build`."""

SHIELDED_BOUNDS = frozenset({"oracle-shielded"})
"""Those of them that run behind the shield."""

ANSWERS: Mapping[str, KernelSetting] = MappingProxyType(
    {
        "htb": KernelSetting(
            "an HTB class for the LC on the link, set by who knows the link's first rate", "tc-htb(8)"
        ),
        "htb-wrong": KernelSetting(
            "as htb, set by who takes the link to be a third faster than it is", "tc-htb(8)", "link", 4 / 3
        ),
        "htb-oracle": KernelSetting(
            "as htb, and told each change of the link's rate as it happens", "tc-htb(8)", follows=True
        ),
        "io-max": KernelSetting(
            "BE's own cap on its writes, set by who knows the disk's rate", "cgroup-v2.rst, io.max", "disk"
        ),
        "io-max-wrong": KernelSetting(
            "as io-max, set by who takes the disk to be a third faster than it is",
            "cgroup-v2.rst, io.max",
            "disk",
            4 / 3,
        ),
    }
)
"""What the kernel can do where the bottleneck is known, live scenarios with a link or a disk only: not in NAMES, and
not for `build`."""

MOST_TOLD = 100.0
"""A larger share of a rate is a slip of the pen."""


def answer_of(name: str) -> KernelSetting | None:
    """The answer of this name, told another rate than its own after an `@`; None: there is none.

    Raises:
        PolicyError: What stands there is no share.
    """
    plain, told, share = name.partition("@")
    answer = ANSWERS.get(plain)
    if answer is None or not told:
        return answer
    try:
        rate_ratio = float(share)
    except ValueError:
        rate_ratio = 0.0
    if not 0.0 < rate_ratio <= MOST_TOLD:
        raise PolicyError(f"{name}: after the @ stands what it is told of the rate, such as {plain}@0.8")
    return replace(answer, law=f"{answer.law}; told {rate_ratio:g} of it", rate_ratio=rate_ratio)


OWN_WEIGHTS: Mapping[str, Weight] = MappingProxyType(
    {"weights": Weight.MINIMUM, "cpu-idle": Weight.IDLE, "none": Weight.EQUAL}
)
"""BE's CPU weight under those managers whose point it is; under all others it is the scenario's."""


def has_own_weight(name: str) -> bool:
    """Whether a row is a setting of the kernel and nothing else: BE's CPU weight is its own then, live too."""
    return name in OWN_WEIGHTS or answer_of(name) is not None


LEARNED: Mapping[str, Named] = MappingProxyType(
    {
        "ppo": Named(
            "the shipped network, trained with PPO on simulated hosts; held to what its host has taught; shielded"
        ),
        "dqn": Named(
            "the shipped network, trained with DQN on simulated hosts; held to what its host has taught; shielded"
        ),
        **{
            name + end: Named(f"{name} {how}")
            for end, how in (
                (BARE, "without shield, mask and experience, to see how much it leans on them"),
                (BOLD, f"where a violation costs 1/{MOST_PRICE:g} of what it does in training"),
                (CAREFUL, f"where a violation costs {MOST_PRICE:g} times what it does in training"),
            )
            for name in ("ppo", "dqn")
        },
    }
)
"""Learned policies by name; not in NAMES, since a checkout may lack their bundles. The path of a bundle's folder, with
a slash in it, is a name too."""


def build(
    name: str,
    *,
    time_scale: float = 1.0,
    model: PrmModel | None = None,
    trusted: Sequence[Path] = (),
    strict: bool = False,
    **options: object,
) -> Policy:
    """A new manager, or a learned policy.

    Args:
        name: One of NAMES or LEARNED, or a bundle's folder with a slash in it, or either with an end of VARIANTS. Or
            a class of a user, `FILE.py:CLASS` or an entry point in `rlctl.managers`.
        time_scale: Divides every published period; managers without one ignore it.
        model: PRM's threshold model, for those that use one.
        trusted: Files with public keys, of which one must have signed the bundle of a learned policy.
        strict: A user's code must be in files that nobody but root and this process' user can write.

    Raises:
        PolicyError: An unknown name or option, a bound, a value that cannot be, a bundle that cannot be served, or code
            of a user that does not load.
        PermissionMissing: The bundle may not be read.
    """
    if is_plugin(name):
        return build_user_policy(name, {"time_scale": time_scale, "model": model, **options}, strict=strict)
    if _is_learned(name):
        return _build_learned(name, options, trusted)
    entry = _entry(name)
    parameters = inspect.signature(entry.manager).parameters
    for option in options:
        if option not in _options(entry):
            raise PolicyError(
                f"manager '{name}' has no option '{option}'" + meant(option, _options(entry), none="; it has none")
            )
    common = {"time_scale": time_scale, "model": model}
    constants = {**{key: value for key, value in common.items() if key in parameters}, **entry.preset, **options}
    return entry.manager(**constants)


def options(name: str) -> dict[str, object]:
    """A manager's options and their values when none is given.

    Raises:
        PolicyError: An unknown name.
    """
    if _is_learned(name):
        return {}
    entry = _entry(name)
    parameters = inspect.signature(entry.manager).parameters
    return {option: entry.preset.get(option, parameters[option].default) for option in _options(entry)}


def label(name: str) -> str:
    """What a table calls a manager: its name, its class, or its bundle's folder; of `runs/ppo/1/bundle` `ppo-1`."""
    if plugins.is_file(name):
        return name.rpartition(":")[2]
    if "/" not in name:
        return name
    folder = Path(name).resolve()
    plain, run = plain_name(folder.name), folder.parent
    if plain != "bundle":
        return folder.name
    return (f"{run.parent.name}-{run.name}" if run.name.isdigit() else run.name) + folder.name.removeprefix(plain)


def is_known(name: str) -> bool:
    """True for a name of this catalogue, a bound's and an answer's too, and for a folder's, which has a slash."""
    is_ours = name in {*HEURISTICS, *LEARNED, *BOUNDS} or bool(answer_of(name))
    return is_ours or ("/" in name and Path(plain_name(name)).is_dir())


def is_plugin(name: str) -> bool:
    """True for a class of a user: `FILE.py:CLASS`, or an entry point whose name none of ours has."""
    return plugins.is_file(name) or (not is_known(name) and name in plugins.entries_of("managers"))


def is_variant(name: str) -> bool:
    """True for a learned policy that is built as an end of VARIANTS says, such as `ppo-bold` or `./mine-bare`."""
    return _is_learned(name) and bool(_variant(name))


def lacking(name: str) -> str:
    """Why a learned policy that should ship cannot run here, with the way out; empty when nothing is known against it.

    A bundle that is there and does not fit is not lacking: `build` says what is wrong with it.
    """
    if name not in LEARNED:
        return ""
    folder = folder_of(name)
    if (folder / bundle.CARD).exists():
        return ""
    algorithm = folder.name
    return (
        f"this checkout has no bundle {folder}; make one with `rlctl train --algo {algorithm} --out DIR` and give its "
        "folder as the name"
    )


def folder_of(name: str) -> Path:
    """Where a learned policy's bundle is.

    Args:
        name: One of LEARNED, or a folder; with an end of VARIANTS behind it, unless the folder's own name ends so.
    """
    if name in LEARNED:
        # From the package, not from `rlctl.configs`: a folder without __init__ has no single place to look in.
        return Path(str(files("rlctl") / "configs" / "bundles" / plain_name(name)))
    return Path(name) if Path(name).exists() else Path(plain_name(name))


def _is_learned(name: str) -> bool:
    return name in LEARNED or "/" in name


def _build_learned(name: str, options: Mapping[str, object], trusted: Sequence[Path]) -> LearnedPolicy:
    if options:
        raise PolicyError(f"'{name}' is a learned policy and takes no option '{next(iter(options))}'")
    if reason := lacking(name):
        raise BundleError(f"{name}: {reason}")
    if ":" in name and not folder_of(name).exists():
        raise PolicyError(f"no bundle '{name}'{_of_class(name)}")
    return LearnedPolicy(bundle.load(folder_of(name), trusted), name=name, **_variant(name))


def _variant(name: str) -> Mapping[str, Any]:
    """How a learned policy of this name is built beside its bundle; an end of its folder's own name says nothing."""
    return VARIANTS.get(name.removeprefix(plain_name(name)), {}) if folder_of(name) != Path(name) else {}


def _entry(name: str) -> ManagerEntry:
    if name in BOUNDS:
        raise PolicyError(f"'{name}' is a bound, simulator only; give it to `rlctl bench --plant sim`")
    if answer := answer_of(name):
        raise PolicyError(
            f"'{name}' is a setting of the kernel; give it to `rlctl bench`, with a live scenario that has a "
            f"{answer.resource}"
        )
    if name not in HEURISTICS:
        if Path(name).is_dir():
            raise PolicyError(f"no manager '{name}'; a bundle's folder has a slash in it: ./{name}")
        known = (*NAMES, *LEARNED, *plugins.entries_of("managers"))
        way_out = meant(name, known)
        raise PolicyError(f"no manager '{name}'{way_out}" + ("" if way_out.endswith("?") else _of_class(name)))
    return HEURISTICS[name]


def _of_class(name: str) -> str:
    """A name that nobody has may be a class without its file, or a file without its `.py`."""
    file, _, wanted = name.rpartition(":" if ":" in name or "/" in name else ".")
    example = f", here {file}.py:{wanted}" if file.strip("./") and wanted.isidentifier() else ""
    return f"; a class of your own is FILE.py:CLASS{example}"


def _options(entry: ManagerEntry) -> tuple[str, ...]:
    return tuple(key for key in inspect.signature(entry.manager).parameters if key not in NOT_OPTIONS)
