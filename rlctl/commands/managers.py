"""`rlctl managers` and `rlctl scenarios`: who can decide, on what; whether one keeps what every manager promises."""

from __future__ import annotations

import argparse
import inspect
from dataclasses import asdict

from rlctl.agents import catalogue
from rlctl.agents.conformance import CHECKS
from rlctl.agents.served.learned import BARE
from rlctl.commands import Command
from rlctl.commands.doctor import trouble
from rlctl.commands.outputs import print_json
from rlctl.envs import plugins
from rlctl.envs.errors import CheckFailed, PolicyError
from rlctl.safety.conformance import CHECKS as GUARD_CHECKS
from rlctl.safety.conformance import broken
from rlctl.safety.user_guard import build_user_guard

MANAGERS_EXAMPLES = """examples:
  rlctl managers
  rlctl managers --json
  rlctl managers check ./toy.py:Toy

A benchmark judges the `shielded` ones behind the shield and the others bare, as they were published;
`rlctl serve` shields every one of them. A `bound` needs the plant itself and runs in the simulator only.
A `kernel` row is a setting of the kernel without a manager, for live scenarios with a link or a disk.
A `learned` policy is shielded, its `-bare` twin is for benchmarks; the path of any other bundle's folder, with a slash
in it, names it. A class of your own is FILE.py:CLASS or an entry point in `rlctl.managers` (`plug-in`). A
guard of your own, in `rlctl.guards`, stands behind a shield: `--shield measured+FILE.py:CLASS`. `check` runs either
through odd readings and exits with 1 where it breaks a promise.
"""

SCENARIOS_EXAMPLES = """examples:
  rlctl scenarios
  rlctl scenarios --json
"""

KINDS = {"learned": "learned", "bounds": "bound", "answers": "kernel", "plugins": "plug-in", "guards": "guard"}


def add_managers_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `rlctl managers`."""
    parser.add_argument("--json", action="store_true", help="the list, or what `check` found, as JSON")
    actions = parser.add_subparsers(dest="action", metavar="[check NAME]")
    check = actions.add_parser("check", help="what every manager or guard promises, tried on one")
    check.add_argument("name", metavar="NAME|FILE.py:CLASS")
    check.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="what was found, as JSON")


def list_managers(args: argparse.Namespace) -> int:
    """`rlctl managers`; CheckFailed means that `check` found a promise that is not kept."""
    if args.action == "check":
        return _check(args.name, as_json=args.json)
    listing = {
        "managers": [_heuristic(name, entry) for name, entry in catalogue.HEURISTICS.items()],
        "learned": [_learned_row(name, policy) for name, policy in catalogue.LEARNED.items()],
        "answers": [{"name": name, **asdict(answer)} for name, answer in catalogue.ANSWERS.items()],
        "bounds": [{"name": name, **asdict(bound)} for name, bound in catalogue.BOUNDS.items()],
        "plugins": _plugin_rows("managers"),
        "guards": _plugin_rows("guards"),
    }
    if args.json:
        print_json(listing)
        return 0
    width = max(len(str(row["name"])) for rows in listing.values() for row in rows)
    for kind, rows in listing.items():
        for row in rows:
            shown = KINDS.get(kind, "shielded" if row.get("shielded") else "bare")
            note = {"bounds": "; simulator only", "answers": f"; live scenarios with a {row.get('resource')} only"}.get(
                kind, ""
            )
            lacking = f"; not here: {row['missing']}" if row.get("missing") else ""
            print(f"{row['name']:{width}}  {shown:8}  {row['law']} [{row['source']}{note}]{lacking}")
    return 0


def _check(name: str, *, as_json: bool) -> int:
    if name in catalogue.LEARNED or ("/" in name and catalogue.is_known(name)):
        raise PolicyError(f"{name} is a learned policy, which promises nothing by itself: see `rlctl evaluate`")
    if plugins.is_file(name):
        made = plugins.load("managers", name).made
        is_guard = hasattr(made, "bound") and not hasattr(made, "act")
    else:
        is_guard = not catalogue.is_known(name) and name in plugins.entries_of("guards")
    if is_guard:
        kind, found = "guard", list(broken(GUARD_CHECKS, build_user_guard(name).guard))
    else:
        catalogue.build(name)  # what cannot be made at all is told as such
        kind, found = "manager", list(broken(CHECKS, lambda: catalogue.build(name)))
    if as_json:
        checks = [{"name": check, "promise": promise, "broken": what} for check, promise, what in found]
        print_json({kind: name, "checks": checks})
    else:
        for check, promise, what in found:
            print(f"{'FAILED' if what else 'ok':6}  {check}: {promise}" + (f"\n        {what}" if what else ""))
    if failed := [check for check, _, what in found if what]:
        raise CheckFailed(f"{name} breaks {len(failed)} of {len(found)} promises: {', '.join(failed)}")
    return 0


def _plugin_rows(kind: plugins.Kind) -> list[dict[str, object]]:
    """Entry points of a group, each with its package, and why it cannot run."""
    rows: list[dict[str, object]] = []
    for name, entry in plugins.entries_of(kind).items():
        missing, law = trouble(kind, name), ""
        if kind == "managers" and catalogue.is_known(name):
            missing = "one that ships has this name; rename it"
        if not missing:
            law = (inspect.getdoc(plugins.load(kind, name).made) or "no docstring").splitlines()[0]
        rows.append({"name": name, "law": law, "source": plugins.source_of(entry), "missing": missing or None})
    return rows


def _heuristic(name: str, entry: catalogue.ManagerEntry) -> dict[str, object]:
    options = {key: _plain(value) for key, value in catalogue.options(name).items()}
    return {
        "name": name,
        "law": entry.law,
        "source": entry.source,
        "shielded": entry.manager.shielded,
        "weight": entry.manager.weight,
        "needs": list(entry.manager.needs),
        "options": options,
    }


def _learned_row(name: str, policy: catalogue.Named) -> dict[str, object]:
    shielded, missing = not name.endswith(BARE), catalogue.lacking(name) or None
    return {"name": name, **asdict(policy), "shielded": shielded, "missing": missing}


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def add_scenarios_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `rlctl scenarios`."""
    parser.add_argument("--json", action="store_true", help="everything in them, as JSON")


def list_scenarios(args: argparse.Namespace) -> int:
    """`rlctl scenarios`: live scenarios below the simulated ones."""
    from rlctl.bench.scenarios import shipped_scenarios  # with the simulator, which `managers` does without

    found = shipped_scenarios()
    if args.json:
        print_json({name: scenario.model_dump(mode="json") for name, scenario in found.items()})
        return 0
    width = max(map(len, found), default=0)
    for name, scenario in sorted(found.items(), key=lambda item: item[1].plant != "sim"):
        print(f"{name:{width}}  {scenario.plant:4}  {scenario.description}")
    return 0


FAMILY = {
    "managers": Command(add_managers_arguments, list_managers, MANAGERS_EXAMPLES),
    "scenarios": Command(add_scenarios_arguments, list_scenarios, SCENARIOS_EXAMPLES),
}
