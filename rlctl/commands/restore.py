"""`rlctl restore`: put back every knob from the journal. Works with no daemon, any number of times."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rlctl.envs.errors import HostError
from rlctl.envs.host.cgroup.journal import JOURNAL, STATE_DIR, load
from rlctl.envs.host.cgroup.restore import RestoreReport, Skipped, restore
from rlctl.envs.testbed.janitor import Swept, sweep

__all__ = ["add_parser", "run"]

EXAMPLES = """examples:
  rlctl restore --dry-run
  rlctl restore
  rlctl restore --config serve.yaml
  rlctl restore --state /var/lib/rlctl --json
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command's arguments."""
    parser = subparsers.add_parser(
        "restore",
        help="put back every knob that a controller touched",
        description="Put back the original values that a controller journalled before it changed them, and remove "
        "what a testbed that was killed has left.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--state", type=Path, metavar="DIR", help=f"default: {STATE_DIR}")
    where.add_argument("--config", type=Path, metavar="FILE", help="serve's configuration: its state_directory")
    parser.add_argument("--force", action="store_true", help="even if a controller seems to run")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    parser.add_argument("--dry-run", action="store_true", help="only list what would be put back")


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Raises:
        ConfigError: The configuration is wrong.
        HostError: Something could not be put back; the journal keeps it.
    """
    state = _state(args)
    absent = "" if (state / JOURNAL).exists() else f"no journal in {state}" + _way_out(args)
    if args.dry_run:
        return _preview(state, args.json, absent)
    report, swept = restore(state, force=args.force), sweep()
    print(json.dumps(_plain(report) | _swept(swept)) if args.json else report)
    if absent and not args.json:
        print(absent)
    if swept.cleared and not args.json:
        print(f"removed what {len(swept.cleared)} testbeds had left behind")
    for problem in swept.left:
        print(problem, file=sys.stderr)
    if not report.ok:
        raise HostError(f"{len(report.failed)} files were not put back; {report.note}")
    return 0


def _state(args: argparse.Namespace) -> Path:
    if args.config is None:
        return args.state or STATE_DIR
    from rlctl.config import load_config  # pydantic: only where a configuration is read

    return load_config(args.config).state_directory


def _way_out(args: argparse.Namespace) -> str:
    if args.state or args.config:
        return ""
    return "; if the configuration sets state_directory, give --state or --config"


def _preview(state: Path, as_json: bool, absent: str) -> int:
    entries = load(state).entries
    if as_json:
        print(json.dumps({"would_restore": [{"path": str(e.path), "original": e.original} for e in entries]}))
        return 0
    for entry in entries:
        print(f"would restore {entry.path} to {entry.original.strip()!r}")
    if not entries:
        print(absent or "nothing to do")
    return 0


def _plain(report: RestoreReport) -> dict[str, object]:
    return {
        "ok": report.ok,
        "restored": [str(path) for path in report.restored],
        "unchanged": [str(path) for path in report.unchanged],
        "equivalent": _told(report.equivalent),
        "skipped": _told(report.skipped),
        "failed": _told(report.failed),
        "note": report.note,
    }


def _swept(swept: Swept) -> dict[str, object]:
    return {"testbeds_cleared": [str(path) for path in swept.cleared], "testbeds_left": list(swept.left)}


def _told(items: Sequence[Skipped]) -> list[dict[str, str]]:
    return [{"path": str(item.path), "why": item.why} for item in items]
