"""`rlctl shadow report`: shadows against who acted, by the log and in the simulator, and the promotion gate."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rlctl.agents import catalogue
from rlctl.agents.policy import Policy
from rlctl.commands.damages import Damages
from rlctl.commands.outputs import check_outputs, files_first, write_json
from rlctl.commands.shadow_watch import policies_of
from rlctl.envs import whole_file
from rlctl.envs.errors import CheckFailed, ConfigError, RlctlError
from rlctl.envs.sim.profile import load_profile
from rlctl.envs.ticklog import LOG_NAME, Damage, log_files
from rlctl.log.reader import read_log
from rlctl.shadow.columns import Columns, Subject, columns
from rlctl.shadow.gate import Check, allows, load_gate
from rlctl.shadow.log import beside, read_watched, shadow_files
from rlctl.shadow.report import Report, report_of
from rlctl.shadow.tables import gate_lines, report_lines
from rlctl.shadow.twin import Simulation, Twin, load_trace, simulate
from rlctl.shadow.watching import Shadows
from rlctl.work.progress import progress, say

NO_PROFILE = "name this host's profile with --profile; `rlctl calibrate --out FILE` makes one"


def run(args: argparse.Namespace) -> int:
    """Run the command; CheckFailed means that the gate says no to every shadow, or that there is no watched tick."""
    check_outputs(args)
    gate = load_gate(None if args.gate == "-" else Path(args.gate)) if args.gate else None
    found, source = _read(args)
    simulation, why = _simulated(args, found)
    report = report_of(found, source, simulation, why)
    checks = {name: allows(gate, report, name) for name in report.shadows} if gate else {}
    _write(args, report, found, checks)
    if checks and not any(all(check.passed for check in one) for one in checks.values()):
        raise CheckFailed(f"the gate lets none of {', '.join(map(catalogue.label, checks))} be promoted")
    return 0


def _read(args: argparse.Namespace) -> tuple[Columns, str]:
    """The watched ticks, and where they are from."""
    if args.policy is not None:
        if args.log is None:
            raise ConfigError("--policy asks about the ticks of a LOG; name one")
        with Damages() as damaged:
            source, found = args.log, _asked(args.log, args.policy, damaged)
    else:
        source = args.shadow or args.log
        if args.shadow is None and args.log is not None and args.log.name.startswith(LOG_NAME):
            source = beside(args.log)
        if source is None:
            raise ConfigError("name a LOG, or what `rlctl shadow watch` wrote with --shadow FILE")
        with Damages() as damaged:
            found = columns(read_watched(shadow_files(source), damaged))
    if found is None:
        raise CheckFailed(f"{source}: no tick here that a shadow could be asked about, under a header that says how")
    return found, str(source)


def _asked(log: Path, names: Sequence[str], damaged: Callable[[Damage], None]) -> Columns | None:
    shadows = Shadows(policies_of(names))
    try:
        seen = (shadows.see(decision) for decision in read_log(log_files(log), damaged))
        return columns(watched for watched in seen if watched is not None)
    finally:
        shadows.close()


def _simulated(args: argparse.Namespace, found: Columns) -> tuple[Simulation | None, str]:
    """All policies in the simulator, or why not."""
    if args.profile is None:
        return None, NO_PROFILE
    subject, trace = found.subject, load_trace(found)
    if trace is None:
        return None, "the load was never measured"
    twin = Twin(load_profile(args.profile), subject, trace)
    builders, why = _builders(subject, args.config)
    if why:
        return None, why
    with progress(len(builders), "policies simulated") as advance:
        runs = {
            name: simulate(build, twin, args.seeds, lambda name=name: advance(catalogue.label(name) or "acting"))  # type: ignore[misc]
            for name, build in builders.items()
        }
    acting = runs.pop("")
    return Simulation(twin.host, args.seeds, acting, runs, (*twin.remarks, *_weights(builders, twin))), ""


def _weights(builders: Mapping[str, Callable[[], Policy]], twin: Twin) -> Iterator[str]:
    """What was measured at one weight says little of a policy that runs with another."""
    weights = {name: twin.weight_of(build()) for name, build in builders.items()}
    others = [catalogue.label(name) for name, weight in weights.items() if weight is not weights[""]]
    if others:
        yield (
            f"{twin.subject.acting} ran with BE at {weights['']} CPU weight, as all readings of the log did; "
            f"{', '.join(others)} would not: only the simulator knows of that"
        )


def _builders(subject: Subject, config: Path | None) -> tuple[dict[str, Callable[[], Policy]], str]:
    """What makes the acting policy (under the name "") and the shadows; or why one cannot be made as it was."""
    wanted = {"": subject.acting_hash} | {name: its_hash for name, (its_hash, _) in subject.shadows.items()}
    builders: dict[str, Callable[[], Policy]] = {
        name: (lambda name=name: catalogue.build(name))  # type: ignore[misc]
        for name in subject.shadows
    }
    builders[""] = _acting(subject, config)
    for name, build in sorted(builders.items()):
        who = f"acting policy {subject.acting}" if not name else f"shadow {catalogue.label(name)}"
        way = "; its options stand in the serve configuration: --config FILE" if not name and config is None else ""
        try:
            made = build().digest
        except RlctlError as error:
            return {}, f"{who} cannot be made here: {error}{way}"
        if made != wanted[name]:
            return {}, f"{who} is not the one of the log any more ({made}, then {wanted[name]}){way}"
    return builders, ""


def _acting(subject: Subject, config: Path | None) -> Callable[[], Policy]:
    if config is None:
        return lambda: catalogue.build(subject.acting)
    from rlctl.config.serve import load_config
    from rlctl.serve.deciders import build_policy

    section = load_config(config).policy
    return lambda: build_policy(section)


def _write(args: argparse.Namespace, report: Report, found: Columns, checks: Mapping[str, Sequence[Check]]) -> None:
    lines, plain = "\n".join([*report_lines(report), *gate_lines(checks)]), _as_json(report, checks)
    with files_first(lambda: args.json == "-" or print(lines)):
        write_json(args.json, plain)
        if args.report:
            from rlctl.shadow.plots import figures  # matplotlib

            whole_file.write_json(args.report / "result.json", plain)
            whole_file.write_whole(args.report / "table.md", lines + "\n")
            for name, data in figures(report, found).items():
                (args.report / name).write_bytes(data)
            say(f"report: {args.report / 'table.md'}")


def _as_json(report: Report, checks: Mapping[str, Sequence[Check]]) -> dict[str, object]:
    plain = report.as_json()
    if checks:
        plain["gate"] = {
            name: {"promote": all(check.passed for check in found), "reasons": list(map(_check_as_json, found))}
            for name, found in checks.items()
        }
    return plain


def _check_as_json(check: Check) -> dict[str, object]:
    """JSON has no infinity and no NaN: null."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in asdict(check).items()
    }
