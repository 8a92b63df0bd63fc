"""`rlctl learn-load`: the LC's maximum load, as a tick log shows it."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlctl.commands.damages import Damages
from rlctl.commands.outputs import print_json
from rlctl.envs.errors import CheckFailed
from rlctl.envs.host.max_load import MaxLoad
from rlctl.envs.ticklog import log_files
from rlctl.log.max_load import ONLY, LoggedLoad
from rlctl.log.reader import read_log

DESCRIPTION = "What `slo.max_load_rps: auto` would have learned from the ticks of a log."

EXAMPLES = """examples:
  rlctl learn-load /var/log/rlctl
  rlctl learn-load ticks.jsonl --json

Estimated at: the CPU time of requests says so, at .7 of the LC's CPUs, and no load has borne it out (`borne_out`). At
least: the target was held there, or nearly. At most: the LC missed its target there with BE at its minimum, or all its
CPUs would be busy. A log of several LCs tells of each, as if it had all CPUs of theirs.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("log", type=Path, metavar="LOG", help="a tick log: a file, or the directory of all its files")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command; CheckFailed: no tick of the log says anything of it."""
    load = LoggedLoad()
    with Damages() as damaged:
        for logged in read_log(log_files(args.log), damaged):
            load.see(logged)
    learned = {name: one for name, one in load.loads.items() if one.cautious_rps is not None}
    if not learned:
        raise CheckFailed(f"{args.log}: no tick here says how many requests came, beside their latency")
    if args.json:
        plain = {name: _as_json(one) for name, one in learned.items()}
        told: dict[str, object] = plain[ONLY] if plain.keys() == {ONLY} else {"lcs": plain}
        print_json({"schema": 1, "ticks": load.ticks, **told})
    else:
        print("\n".join(f"{one}; {load.ticks} ticks" for one in learned.values()))
    return 0


def _as_json(learned: MaxLoad) -> dict[str, object]:
    return {
        "at_least_rps": learned.cautious_rps,
        "borne_out": learned.borne_out,
        "at_most_rps": learned.highest_rps,
        "cpu_seconds_per_request": learned.cpu_seconds_per_request,
        "lc_cpus": learned.lc_cpus,
        "held_rps": learned.held_rps,
        "missed_rps": learned.missed_rps,
    }
