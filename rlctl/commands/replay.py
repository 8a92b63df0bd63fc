"""`rlctl replay`: a tick log through the shield again."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlctl.commands.outputs import Damages, print_json
from rlctl.envs.errors import CheckFailed, printable
from rlctl.envs.replay import log_files
from rlctl.log.reader import read_log
from rlctl.log.record import allocation_as_json
from rlctl.log.replay import Recheck, VerdictDifference, replay
from rlctl.safety.profile import Profile, load_shield
from rlctl.safety.verdict import Verdict

EXAMPLES = """examples:
  rlctl replay /var/log/rlctl                           # does the shield still rule as it did?
  rlctl replay ticks.jsonl.2 --shield heracles          # what another shield would have changed
  rlctl replay /var/log/rlctl --json

The recorded proposals are judged again. Under the shield that ruled then the verdicts must be the same: one that
differs is a finding, and the exit code 1. A replay is open loop: each tick has the readings and the allocation that
were recorded. `rlctl shadow report LOG --policy A,B` asks policies about a log.
"""

MOST_SHOWN = 20
"""Differences told in words; --json has all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("log", type=Path, metavar="LOG", help="a file, or a directory with all files of a log")
    parser.add_argument("--shield", metavar="NAME|FILE[+GUARD]", help="default: the one the log was recorded under")
    parser.add_argument("--json", action="store_true", help="all differences")


def run(args: argparse.Namespace) -> int:
    """Run the command; CheckFailed means that a verdict differs under the same shield, or that no tick is recorded."""
    profile = load_shield(args.shield) if args.shield else None
    with Damages() as damaged:
        found = replay(read_log(log_files(args.log), damaged), profile)
    if not found.ticks:
        raise CheckFailed(f"{args.log}: no tick is recorded here")
    if args.json:
        print_json(_as_json(args.log, found, profile, damaged.count))
    else:
        print("\n".join(_recheck_lines(args.log, found)))
    if found.same_shield and found.differences:
        first = found.differences[0].logged
        raise CheckFailed(
            f"{len(found.differences)} of {found.ticks} verdicts are not the shield's, the first at tick "
            f"{first.tick.index} ({first.where})"
        )
    return 0


def _recheck_lines(log: Path, found: Recheck) -> Iterator[str]:
    shield = "the shield that ruled then" if found.same_shield else "another shield than the one that ruled then"
    yield f"{log}: {found.ticks} ticks of {found.runs} run{'s' if found.runs > 1 else ''} under {shield}"
    yield f"{found.ticks - found.unknown} verdicts judged again, {len(found.differences)} differ"
    if found.unknown:
        yield f"{found.unknown} not judged: after damage, or without a beginning, what the guards remembered is unknown"
    yield from map(_in_words, found.differences[:MOST_SHOWN])
    if len(found.differences) > MOST_SHOWN:
        yield f"... and {len(found.differences) - MOST_SHOWN} more; --json has all"


def _in_words(difference: VerdictDifference) -> str:
    tick, now = difference.logged.tick, difference.verdict
    guards = _guards(now) or "no guard objects"
    then = _guards(tick.verdict) or "no guard objected"
    return (
        f"tick {tick.index} ({difference.logged.where}): asked {tick.proposed}; "
        f"then {tick.verdict.allocation} ({printable(then)}), now {now.allocation} ({guards})"
    )


def _guards(verdict: Verdict) -> str:
    return ", ".join(f"{bound.guard}: {bound.reason}" for bound in verdict.decisive)


def _as_json(log: Path, found: Recheck, profile: Profile | None, damaged: int) -> dict[str, Any]:
    return {
        "schema": 1,
        "log": str(log),
        "open_loop": True,
        "shield": profile and {"name": profile.name, "digest": profile.digest},
        "same_shield": found.same_shield,
        "runs": found.runs,
        "ticks": found.ticks,
        "damaged": damaged,
        "not_judged": found.unknown,
        "differences": [_difference_as_json(one) for one in found.differences],
    }


def _difference_as_json(difference: VerdictDifference) -> dict[str, Any]:
    decision, now = difference.logged, difference.verdict
    tick = decision.tick
    return {
        "tick": tick.index,
        "file": str(decision.path),
        "line": decision.number,
        "proposed": allocation_as_json(tick.proposed),
        "then": allocation_as_json(tick.verdict.allocation),
        "now": allocation_as_json(now.allocation),
        "guards_then": [[bound.guard, bound.reason] for bound in tick.verdict.decisive],
        "guards_now": [[bound.guard, bound.reason] for bound in now.decisive],
    }
