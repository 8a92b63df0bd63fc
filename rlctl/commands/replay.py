"""`rlctl replay`: a tick log through the shield again, or through other policies."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlctl.agents import catalogue
from rlctl.agents.catalogue import label
from rlctl.commands.arguments import distinct_policies, split_names
from rlctl.commands.damages import Damages
from rlctl.commands.outputs import print_json
from rlctl.envs.errors import CheckFailed, printable
from rlctl.envs.ticklog import log_files
from rlctl.log.reader import read_log
from rlctl.log.record import allocation_as_json
from rlctl.log.replay import Contender, Recheck, ReplayedDecision, VerdictDifference, replay
from rlctl.report.page import render
from rlctl.safety.profile import Profile, load_shield
from rlctl.safety.verdict import Verdict

EXAMPLES = """examples:
  rlctl replay /var/log/rlctl                           # does the shield still rule as it did?
  rlctl replay ticks.jsonl.2 --shield heracles          # what another shield would have changed
  rlctl replay /var/log/rlctl --policy ppo,feedforward  # what others would have asked for, and got
  rlctl replay /var/log/rlctl --policy ./my-policy,./toy.py:Toy --json

Without --policy the recorded proposals are judged again. Under the shield that ruled then the verdicts must be the
same: one that differs is a finding, and the exit code 1. A replay is open loop: each tick has the readings and the
allocation that were recorded, whatever a policy asks for; what would have come of it is not known.
"""

MOST_SHOWN = 20
"""Differences told in words; --json has all."""

HEADER = ("policy", "agrees %", "freer %", "tighter %", "overridden %", "frozen %", "asked CPUs", "got CPUs", "failed")

LEGEND = (
    "open loop: readings and allocations as recorded, whatever a policy asks for. agrees: it would have got what BE "
    "got,\nto 1 % of BE's CPUs; asked, got: means of what BE could use, nothing while frozen; failed: ticks without an "
    "answer"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("log", type=Path, metavar="LOG", help="a file, or a directory with all files of a log")
    parser.add_argument(
        "--policy",
        type=split_names,
        metavar="NAME|BUNDLE|FILE.py:CLASS,...",
        help="who to ask at each tick; no threshold model",
    )
    parser.add_argument("--shield", metavar="NAME|FILE[+GUARD]", help="default: the one the log was recorded under")
    parser.add_argument("--json", action="store_true", help="all differences, or every answer of every policy")


def run(args: argparse.Namespace) -> int:
    """Run the command; CheckFailed means that a verdict differs under the same shield, or that no tick is recorded."""
    profile = load_shield(args.shield) if args.shield else None
    asked = () if args.policy is None else distinct_policies("--policy", args.policy)
    contenders = [Contender(catalogue.build(name)) for name in asked]
    with Damages() as damaged:
        found = replay(read_log(log_files(args.log), damaged), profile, contenders)
    if not found.ticks:
        raise CheckFailed(f"{args.log}: no tick is recorded here")
    if args.json:
        print_json(_as_json(args.log, found, profile, contenders, damaged.count))
    else:
        print("\n".join(_comparison_lines(contenders) if contenders else _recheck_lines(args.log, found)))
    if found.same_shield and found.differences and not contenders:
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


def _comparison_lines(contenders: Sequence[Contender]) -> Iterator[str]:
    recorded = [
        ReplayedDecision(answer.logged, answer.logged.tick.verdict, answer.limits) for answer in contenders[0].answers
    ]
    rows: list[tuple[str, ...]] = [HEADER, _row("recorded", recorded)]
    rows += [_row(label(one.policy.name), one.answers) for one in contenders]
    yield render(rows)
    yield ""
    yield LEGEND
    for one in contenders:
        if failed := next((answer for answer in one.answers if answer.failed), None):
            tick = failed.logged.tick.index
            yield f"{label(one.policy.name)} failed first at tick {tick}: {printable(failed.failed)}"


def _row(name: str, answers: Sequence[ReplayedDecision]) -> tuple[str, ...]:
    one = _summary(answers)
    return (
        name,
        *(f"{one[key]:.1f}" for key in ("agrees", "freer", "tighter", "overridden", "frozen")),
        *(f"{one[key]:.3f}" for key in ("asked_cpus", "got_cpus")),
        str(one["failed"]),
    )


def _summary(answers: Sequence[ReplayedDecision]) -> dict[str, float]:
    """Shares of the ticks in percent, means in CPUs."""
    got = [one.cpus(one.verdict.allocation) for one in answers]
    then = [one.cpus(one.logged.tick.verdict.allocation) for one in answers]
    pairs = list(zip(answers, got, then, strict=True))
    return {
        "agrees": _percent([one.agrees for one in answers]),
        "freer": _percent([not one.agrees and now > past for one, now, past in pairs]),
        "tighter": _percent([not one.agrees and now < past for one, now, past in pairs]),
        "overridden": _percent([one.verdict.overridden for one in answers]),
        "frozen": _percent([one.verdict.allocation.frozen for one in answers]),
        "asked_cpus": sum(one.cpus(one.verdict.proposed) for one in answers) / len(answers),
        "got_cpus": sum(got) / len(answers),
        "failed": sum(bool(one.failed) for one in answers),
    }


def _percent(flags: Sequence[bool]) -> float:
    return 100.0 * sum(flags) / len(flags)


def _as_json(
    log: Path, found: Recheck, profile: Profile | None, contenders: Sequence[Contender], damaged: int
) -> dict[str, Any]:
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
        "policies": {one.policy.name: _contender_as_json(one.answers) for one in contenders},
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


def _contender_as_json(answers: Sequence[ReplayedDecision]) -> dict[str, Any]:
    ticks = [
        {
            "tick": answer.logged.tick.index,
            "ts": answer.logged.tick.wall_seconds,
            "asked": allocation_as_json(answer.verdict.proposed),
            "got": allocation_as_json(answer.verdict.allocation),
            "then": allocation_as_json(answer.logged.tick.verdict.allocation),
            "failed": answer.failed,
        }
        for answer in answers
    ]
    return {"percent_and_cpus": _summary(answers), "ticks": ticks}
