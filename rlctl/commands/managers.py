"""`rlctl managers`: who can decide, and whether one keeps what every manager promises."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from rlctl.agents import catalogue, user_manager
from rlctl.agents.conformance import broken
from rlctl.agents.served.learned import BARE
from rlctl.commands.outputs import print_json
from rlctl.envs.errors import CheckFailed, PolicyError

EXAMPLES = """examples:
  rlctl managers
  rlctl managers --json
  rlctl managers check ./toy.py:Toy

A benchmark judges the `shielded` ones behind the shield and the others bare, as they were published;
`rlctl serve` shields every one of them. A `bound` needs the plant itself and runs in the simulator only.
A `kernel` row is a setting of the kernel with nobody deciding, for live scenarios with a link or a disk.
A `learned` policy is shielded, its `-bare` twin is for benchmarks; the path of any other bundle's folder, with a slash
in it, is a name as well. A class of your own is FILE.py:CLASS, for `rlctl bench`, `rlctl replay` and `check`, which
runs it through odd readings and exits with 1 where it breaks a promise.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--json", action="store_true", help="the list, or what `check` found, as JSON")
    actions = parser.add_subparsers(dest="action", metavar="[check NAME]")
    check = actions.add_parser("check", help="what every manager promises, tried on one")
    check.add_argument("name", metavar="NAME|FILE.py:CLASS")
    check.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="what was found, as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command; CheckFailed means that `check` found a promise that is not kept."""
    if args.action == "check":
        return _check(args.name, as_json=args.json)
    listing = {
        "managers": [_heuristic(name, entry) for name, entry in catalogue.TABLE.items()],
        "learned": [_learned_row(name, policy) for name, policy in catalogue.LEARNED.items()],
        "answers": [{"name": name, **asdict(answer)} for name, answer in catalogue.ANSWERS.items()],
        "bounds": [{"name": name, **asdict(bound)} for name, bound in catalogue.BOUNDS.items()],
    }
    if args.json:
        print_json(listing)
        return 0
    width = max(len(str(row["name"])) for rows in listing.values() for row in rows)
    for kind, rows in listing.items():
        for row in rows:
            kinds = {"learned": "learned", "bounds": "bound", "answers": "kernel"}
            shown = kinds.get(kind, "shielded" if row.get("shielded") else "bare")
            note = {"bounds": "; simulator only", "answers": f"; live scenarios with a {row.get('resource')} only"}.get(
                kind, ""
            )
            lacking = f"; not here: {row['missing']}" if row.get("missing") else ""
            print(f"{row['name']:{width}}  {shown:8}  {row['law']} [{row['source']}{note}]{lacking}")
    return 0


def _check(name: str, *, as_json: bool) -> int:
    if name in catalogue.LEARNED or ("/" in name and catalogue.is_known(name)):
        raise PolicyError(f"{name} is a learned policy, which promises nothing by itself: see `rlctl evaluate`")
    user_manager.build(name)  # what cannot be made at all is told as such
    found = list(broken(lambda: user_manager.build(name)))
    if as_json:
        checks = [{"name": check, "promise": promise, "broken": what} for check, promise, what in found]
        print_json({"manager": name, "checks": checks})
    else:
        for check, promise, what in found:
            print(f"{'FAILED' if what else 'ok':6}  {check}: {promise}" + (f"\n        {what}" if what else ""))
    if failed := [check for check, _, what in found if what]:
        raise CheckFailed(f"{name} breaks {len(failed)} of {len(found)} promises: {', '.join(failed)}")
    return 0


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
