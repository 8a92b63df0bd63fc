"""`rlctl managers`: who can decide."""

from __future__ import annotations

import argparse
import json

__all__ = ["add_parser", "run"]

EXAMPLES = """examples:
  rlctl managers
  rlctl managers --json

A benchmark judges the `shielded` ones behind the shield and the others bare, as they were published;
`rlctl serve` shields every one of them. A `bound` needs the plant itself and runs in the simulator only.
A `learned` policy is shielded, its `-bare` twin is for benchmarks; the path of any other bundle's folder, with a slash
in it, is a name as well.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command's arguments."""
    parser = subparsers.add_parser(
        "managers",
        help="who can decide: heuristic managers, references, learned policies",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="the list as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from rlctl.agents import catalogue

    if args.json:
        bounds = [{"name": name, "law": one.law, "source": one.source} for name, one in catalogue.BOUNDS.items()]
        learned = [_learned(name) for name in catalogue.LEARNED]
        managers = [_plain(name) for name in catalogue.NAMES]
        print(json.dumps({"managers": managers, "learned": learned, "bounds": bounds}))
        return 0
    width = max(map(len, (*catalogue.NAMES, *catalogue.LEARNED, *catalogue.BOUNDS)))
    for name, entry in catalogue.TABLE.items():
        shield = "shielded" if entry.manager.shielded else "bare"
        print(f"{name:{width}}  {shield:8}  {entry.law} [{entry.source}]")
    for name, policy in catalogue.LEARNED.items():
        reason = catalogue.lacking(name)
        print(
            f"{name:{width}}  {'learned':8}  {policy.law} [{policy.source}]"
            + (f"; not here: {reason}" if reason else "")
        )
    for name, bound in catalogue.BOUNDS.items():
        print(f"{name:{width}}  {'bound':8}  {bound.law} [{bound.source}; simulator only]")
    return 0


def _learned(name: str) -> dict[str, object]:
    from rlctl.agents import catalogue
    from rlctl.agents.learned import BARE

    one = catalogue.LEARNED[name]
    missing = catalogue.lacking(name) or None
    return {"name": name, "law": one.law, "source": one.source, "shielded": not name.endswith(BARE), "missing": missing}


def _plain(name: str) -> dict[str, object]:
    from rlctl.agents import catalogue

    entry = catalogue.TABLE[name]
    return {
        "name": name,
        "law": entry.law,
        "source": entry.source,
        "shielded": entry.manager.shielded,
        "weight": entry.manager.weight,
        "needs": list(entry.manager.needs),
        "options": {key: _json(value) for key, value in catalogue.options(name).items()},
    }


def _json(value: object) -> object:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
