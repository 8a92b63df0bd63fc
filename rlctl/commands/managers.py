"""`rlctl managers`: who can decide."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rlctl.envs.errors import ConfigError

__all__ = ["add_parser", "run"]

EXAMPLES = """examples:
  rlctl managers
  rlctl managers --json

`shield` is what a benchmark does by default; `rlctl serve` shields every one of them.
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

    found = [_row(name) for name in catalogue.NAMES]
    if args.json:
        print(json.dumps({"managers": found}))
        return 0
    width = max(len(str(row["name"])) for row in found)
    for row in found:
        shield = {True: "shield", False: "bare", None: ""}[row["shielded"]]
        print(f"{row['name']:{width}}  {shield:6}  {row['summary']}")
    return 0


def _row(name: str) -> dict[str, Any]:
    from rlctl.agents import catalogue

    try:
        policy = catalogue.build(name)
    except ConfigError as error:  # one that needs a fitted model, or a simulator, before it can say anything
        return {"name": name, "shielded": None, "weight": None, "needs": [], "summary": str(error)}
    summary = (type(policy).__doc__ or "").strip().partition("\n")[0].rstrip(".")
    return {
        "name": name,
        "shielded": policy.shielded,
        "weight": policy.weight,
        "needs": list(policy.needs),
        "summary": summary,
    }
