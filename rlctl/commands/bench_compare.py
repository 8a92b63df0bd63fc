"""`rlctl bench compare`: what differs between two result files of the simulator, seed by seed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from rlctl.bench.comparison import Comparison, compare_runs, correct
from rlctl.bench.sim_outcome import SimOutcome
from rlctl.commands.bench_verify import Claim, read_claims
from rlctl.envs.errors import ConfigError
from rlctl.log.progress import say
from rlctl.report.page import render
from rlctl.report.table import difference_rows

CONDITIONS = (
    *("scenario_digest", "profile_digest", "shield_digest", "duration_seconds", "adapt_seconds", "unopened"),
    "be_weight",
)
"""What must be the same, or the seeds met other hosts and a difference may not be the manager's."""


def run(args: argparse.Namespace) -> int:
    """Run the command; the table goes to stdout, what does not fit together to stderr."""
    old, new = ({claim.scenario: claim for claim in read_claims(path)} for path in (args.old, args.new))
    if alone := sorted(old.keys() ^ new.keys()):
        say(f"note: in one file only: {', '.join(alone)}")
    found = [one for name in old if name in new for one in _comparisons(old[name], new[name], args.old, args.new)]
    if not found:
        raise ConfigError(f"shares no manager on a scenario with {args.old}: there is nothing to compare", args.new)
    print(render(difference_rows("new less old", correct(found))))
    print("\n* Student's t and bootstrap leave out zero, the first after Holm's correction for all differences shown")
    return 0


def _comparisons(old: Claim, new: Claim, *files: Path) -> Iterator[Comparison]:
    """Every manager of both, on the seeds that both have: evaluation seeds are numbered from the first."""
    if other := [name for name in CONDITIONS if getattr(old, name) != getattr(new, name)]:
        say(f"note: {old.scenario}: another {', '.join(other)}: what differs may not be the manager's")
    before, after = (_outcome(claim, file) for claim, file in zip((old, new), files, strict=True))
    seeds = min(before.seeds, after.seeds)
    if before.seeds != after.seeds:
        say(f"note: {old.scenario}: {before.seeds} and {after.seeds} seeds; the first {seeds} are compared")
    for name in (name for name in before.managers if name in after.managers):
        ours, base = ({key: row[:seeds] for key, row in one.managers[name].items()} for one in (after, before))
        yield compare_runs(f"{old.scenario}: {name}", ours, base)


def _outcome(claim: Claim, file: Path) -> SimOutcome:
    try:
        return SimOutcome.of_json(claim.model_dump())
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{claim.scenario}: lacks values per seed: {error}", file) from error
