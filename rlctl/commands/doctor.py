"""`rlctl doctor`: what this host offers and lacks, each with its reason and what it disables."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

from rlctl.commands.outputs import print_json
from rlctl.config.serve import ServeConfig, load_config
from rlctl.envs import plugins
from rlctl.envs.errors import CheckFailed, HostError, PolicyError
from rlctl.envs.host.cgroup.journal import STATE_DIR
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import SYS_CGROUP, Capability, Layout
from rlctl.envs.host.cgroup.weights import effective_share, set_above
from rlctl.envs.host.probe import probe_host, probe_link, probe_machine, probe_resources
from rlctl.envs.workload import Weight
from rlctl.serve.workloads import Workloads

SERVE_NEEDS = ("cgroup cpu", "cgroup cpuset", "cgroup freezer", "state directory")
"""Capabilities without which `rlctl serve` cannot run; everything else only makes it know or do less."""

_EXTRAS = {
    "sklearn": ("baselines", "`rlctl fit-prm`"),
    "matplotlib": ("cli", "plots of `rlctl bench --report`"),
}

DESCRIPTION = "What this host offers and lacks, the reason of each, and what a lack disables."

EXAMPLES = """examples:
  rlctl doctor
  rlctl doctor --config serve.yaml      # and BE's share of a CPU that the LC wants too, by their weights
  rlctl doctor --json | jq '.capabilities[] | select(.present | not)'

exit code: 0 when `rlctl serve` can run here, 1 when it cannot
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--state", type=Path, default=STATE_DIR, metavar="DIR", help=f"default: {STATE_DIR}")
    parser.add_argument("--config", type=Path, metavar="FILE", help="look at the weights of its LC and BE too")
    parser.add_argument("--json", action="store_true", help="the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command; CheckFailed means that `rlctl serve` cannot run on this host."""
    layout = Layout.detect()
    found = examine(args.state, layout=layout)
    if args.config is not None:
        found += (weigh(load_config(args.config), layout),)
    missed = lacking(found)
    if args.json:
        capabilities = [asdict(capability) for capability in found]
        print_json({"can_serve": not missed, "cgroups": layout.kind, "capabilities": capabilities})
    else:
        width = max(len(capability.name) for capability in found)
        print(f"control groups: {layout.kind}", *(_row(capability, width) for capability in found), sep="\n")
        if not missed:
            print("`rlctl serve` can run here; each `no` names what it disables")
    if missed:
        raise CheckFailed("serve cannot run here: " + "; ".join(f"{c.name}: {c.reason}" for c in missed))
    return 0


def examine(
    state_dir: Path = STATE_DIR,
    *,
    layout: Layout | None = None,
    proc: Path = Path("/proc"),
    sys: Path = Path("/sys"),
    cgroup: Path = SYS_CGROUP,
) -> tuple[Capability, ...]:
    """Everything that rlctl can make use of, present or not; `state_dir` is where the journal is to live."""
    layout = layout or Layout.detect(cgroup, proc)
    extras = (_extra(module, *words) for module, words in _EXTRAS.items())
    resources = (*probe_resources(layout, proc, sys), probe_link(layout))
    own = (_plugin(kind, name) for kind in get_args(plugins.Kind) for name in plugins.entries_of(kind))
    return (*layout.describe(), *probe_machine(proc, sys, state_dir), *probe_host(proc), *resources, *extras, *own)


def weigh(config: ServeConfig, layout: Layout) -> Capability:
    """Whether the weight that BE is to have counts against the LC's, and what share of a CPU it comes to."""
    knobs, wanted = Knobs(None, dry_run=True), config.be.weight
    weight = Weight.EQUAL if wanted == "leave" else Weight(wanted)
    lost = "the LC's protection by weights: BE competes with it for the CPUs that they share"
    try:
        found = Workloads.find(config, layout, knobs, make=False)
        share, then = (effective_share(found.be, found.lc, knobs, one) for one in (None, weight))
        void = set_above(found.be, found.lc, weight, knobs)  # these knobs write nothing
    except HostError as error:
        return Capability("BE's CPU weight", False, str(error), lost)
    if share is None or then is None:
        return Capability("BE's CPU weight", False, "LC and BE are in no CPU hierarchy together", lost)
    words = f"{share:.2%} of a CPU that the LC wants too"
    words += f", {then:.2%} under `rlctl serve`" if weight.is_least else " (be.weight: leave)"
    return Capability("BE's CPU weight", weight.is_least and not void, f"{words}; {void}" if void else words, lost)


def lacking(found: Sequence[Capability]) -> tuple[Capability, ...]:
    """Those of `SERVE_NEEDS` that this host lacks."""
    return tuple(capability for capability in found if capability.name in SERVE_NEEDS and not capability.present)


def _extra(module: str, extra: str, disables: str) -> Capability:
    present = find_spec(module) is not None
    reason = "installed" if present else f"not installed: pip install 'rlctl[{extra}]'"
    return Capability(f"python {module}", present, reason, disables)


def trouble(kind: plugins.Kind, name: str) -> str:
    """Why an entry point does not load, in one line; empty when it does."""
    try:
        plugins.load(kind, name)
    except PolicyError as error:
        return f"{error}; repair or remove its package"
    return ""


def _plugin(kind: plugins.Kind, name: str) -> Capability:
    why = trouble(kind, name)
    source = plugins.source_of(plugins.entries_of(kind)[name])
    return Capability(f"plug-in {name}", not why, why or source, f"'{name}' among the {kind}")


def _row(capability: Capability, width: int) -> str:
    lost = f"; disables {capability.disables}" if capability.disables and not capability.present else ""
    return f"{'yes' if capability.present else 'no ':4}{capability.name:{width}}  {capability.reason}{lost}"
