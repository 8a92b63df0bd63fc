"""`rlctl shadow report`: shadows against the acting policy, and the promotion gate."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rlctl.agents import catalogue
from rlctl.commands.outputs import Damages, check_outputs, files_first, write_json
from rlctl.commands.shadow_watch import policies_of
from rlctl.envs.errors import CheckFailed, ConfigError
from rlctl.envs.replay import Damage, log_files
from rlctl.envs.ticklog import LOG_NAME
from rlctl.log.reader import read_log
from rlctl.report.shadow_gate import Check, allows, gate_lines, load_gate, read_qos
from rlctl.report.shadow_log import beside, read_watched, shadow_files
from rlctl.report.shadow_report import Report, WatchedTicks, gather_ticks, report_lines, report_of
from rlctl.report.shadow_watch import Shadows


def run(args: argparse.Namespace) -> int:
    """Run the command; CheckFailed means that the gate says no to every shadow, or that there is no watched tick."""
    check_outputs(args)
    gate = load_gate(None if args.gate == "-" else Path(args.gate)) if args.gate else None
    found, source = _read(args)
    report = report_of(found, source)
    qos = read_qos(args.bench) if args.bench else None
    checks = {name: allows(gate, report, name, qos) for name in report.shadows} if gate else {}
    _write(args, report, checks)
    if checks and not any(all(check.passed for check in one) for one in checks.values()):
        raise CheckFailed(f"the gate lets none of {', '.join(map(catalogue.label, checks))} be promoted")
    return 0


def _read(args: argparse.Namespace) -> tuple[WatchedTicks, str]:
    """The watched ticks, and where they are from."""
    if args.policy is not None:
        if args.log is None:
            raise ConfigError("--policy asks about the ticks of a LOG; name one")
        with Damages() as damaged:
            source, found = args.log, _read_columns(args.log, args.policy, damaged)
    else:
        source = args.shadow or args.log
        if args.shadow is None and args.log is not None and args.log.name.startswith(LOG_NAME):
            source = beside(args.log)
        if source is None:
            raise ConfigError("name a LOG, or what `rlctl shadow watch` wrote with --shadow FILE")
        with Damages() as damaged:
            found = gather_ticks(read_watched(shadow_files(source), damaged))
    if found is None:
        raise CheckFailed(f"{source}: no tick here that a shadow could be asked about, under a header that says how")
    return found, str(source)


def _read_columns(log: Path, names: Sequence[str], damaged: Callable[[Damage], None]) -> WatchedTicks | None:
    shadows = Shadows(policies_of(names))
    try:
        seen = (shadows.see(decision) for decision in read_log(log_files(log), damaged))
        return gather_ticks(watched for watched in seen if watched is not None)
    finally:
        shadows.close()


def _write(args: argparse.Namespace, report: Report, checks: Mapping[str, Sequence[Check]]) -> None:
    plain = report.as_json()
    if checks:
        plain["gate"] = {
            name: {"promote": all(check.passed for check in found), "reasons": [check.as_json() for check in found]}
            for name, found in checks.items()
        }
    lines = [*report_lines(report), *gate_lines(checks)]
    with files_first(lambda: args.json == "-" or print(*lines, sep="\n")):
        write_json(args.json, plain)
