"""`rlctl restore`: put back every knob from the journal. Works with no daemon, any number of times."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from rlctl.commands.arguments import add_state, state_of
from rlctl.envs.errors import HostError, printable
from rlctl.envs.host.cgroup.journal import JOURNAL, boot_id, load
from rlctl.envs.host.cgroup.kernel import KernelFiles
from rlctl.envs.host.cgroup.restore import restore
from rlctl.envs.host.partition.record import Stage, Undone, current_record, undo
from rlctl.envs.testbed.leftovers import sweep

DESCRIPTION = """Put back the original values that a controller journalled before it changed them, and remove what a
testbed that was killed has left. A partition that was left half built or half undone is taken down; one that stands
is not."""

EXAMPLES = """examples:
  rlctl restore --dry-run
  rlctl restore
  rlctl restore --config serve.yaml
  rlctl restore --state /var/lib/rlctl --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_state(parser)
    parser.add_argument("--force", action="store_true", help="even if a controller seems to run")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    parser.add_argument("--dry-run", action="store_true", help="only list what would be put back")


def run(args: argparse.Namespace) -> int:
    """Run the command; HostError means that something could not be put back, and that the journal keeps it."""
    state = state_of(args)
    absent = "" if (state / JOURNAL).exists() else f"no journal in {state}" + _way_out(args)
    if args.dry_run:
        return _preview(state, args.json, absent)
    report, swept = restore(state, force=args.force), sweep()
    undone = _unfinished_partition(state, args.force)
    if args.json:
        testbeds = {"testbeds_cleared": swept.cleared, "testbeds_left": swept.left}
        told = {"ok": report.ok and undone.ok, **asdict(report), **testbeds, "partition": undone.as_json()}
        print(json.dumps(told, default=str))
    else:
        print(report)
        if undone.note or undone.removed:
            print(f"partition: {undone}")
        if absent and not undone.removed:
            print(absent)
        if swept.cleared:
            print(f"removed what {len(swept.cleared)} testbeds had left behind")
    for problem in swept.left:
        print(printable(problem), file=sys.stderr)
    if not report.ok:
        raise HostError(f"{len(report.failed)} files were not put back; {report.note}")
    if not undone.ok:
        raise HostError(f"{undone.failed[0]}; {undone.note}")
    return 0


def _unfinished_partition(state: Path, force: bool) -> Undone:
    """Take down a partition that was left half built or half undone; one that stands was asked for, and stays."""
    recorded = current_record(state)
    if recorded is None:
        return Undone()
    if recorded.stage is Stage.STANDING:
        return Undone(note="stands; `rlctl partition undo` takes it down")
    return undo(state, kernel=KernelFiles(), force=force)


def _way_out(args: argparse.Namespace) -> str:
    if args.state or args.config:
        return ""
    return "; if the configuration sets state_directory, give --state or --config"


def _preview(state: Path, as_json: bool, absent: str) -> int:
    recorded, partition = load(state), current_record(state)
    entries = recorded.entries if recorded.is_of(boot_id()) else ()  # after a reboot there is nothing to put back
    unfinished = partition is not None and partition.stage is not Stage.STANDING
    testbeds = sweep(dry_run=True).cleared
    if as_json:
        would = [{"path": entry.path, "original": entry.original} for entry in entries]
        told = {"would_restore": would, "would_undo_partition": unfinished, "would_clear_testbeds": testbeds}
        print(json.dumps(told, default=str))
        return 0
    if unfinished:
        print("would take down the partition that was left half done")
    for entry in entries:
        print(printable(f"would restore {entry.path}") + f" to {entry.original.strip()!r}")
    if testbeds:
        print(f"would remove what {len(testbeds)} testbeds have left behind")
    if not entries and not unfinished and not testbeds:
        print(absent or "nothing to do")
    return 0
