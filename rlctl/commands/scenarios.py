"""`rlctl scenarios`: the scenarios that ship."""

from __future__ import annotations

import argparse

from rlctl.bench.scenarios import shipped_scenarios
from rlctl.commands.outputs import print_json

EXAMPLES = """examples:
  rlctl scenarios
  rlctl scenarios --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--json", action="store_true", help="everything in them, as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command: live scenarios below the simulated ones."""
    found = shipped_scenarios()
    if args.json:
        print_json({name: scenario.model_dump(mode="json") for name, scenario in found.items()})
        return 0
    width = max(map(len, found), default=0)
    for name, scenario in sorted(found.items(), key=lambda item: item[1].plant != "sim"):
        print(f"{name:{width}}  {scenario.plant:4}  {scenario.description}")
    return 0
