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
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command's arguments."""
    parser = subparsers.add_parser(
        "managers",
        help="the heuristic managers and reference policies",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="the list as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from rlctl.agents import catalogue

    if args.json:
        bounds = [{"name": name, "law": one.law, "source": one.source} for name, one in catalogue.BOUNDS.items()]
        print(json.dumps({"managers": [_plain(name) for name in catalogue.NAMES], "bounds": bounds}))
        return 0
    width = max(map(len, (*catalogue.NAMES, *catalogue.BOUNDS)))
    for name, entry in catalogue.TABLE.items():
        shield = "shielded" if entry.manager.shielded else "bare"
        print(f"{name:{width}}  {shield:8}  {entry.law} [{entry.source}]")
    for name, bound in catalogue.BOUNDS.items():
        print(f"{name:{width}}  {'bound':8}  {bound.law} [{bound.source}; simulator only]")
    return 0


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
