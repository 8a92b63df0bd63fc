"""`rlctl shadow watch|report`: policies that look on, what they would have done, and whether one may act."""

from __future__ import annotations

import argparse
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlctl.agents import catalogue
from rlctl.agents.policy import Policy
from rlctl.commands.arguments import positive
from rlctl.commands.options import distinct_policies, positive_int, refuse_given, split_names
from rlctl.commands.outputs import Damages, add_json, check_outputs, files_first, write_json
from rlctl.envs.errors import CheckFailed, ConfigError
from rlctl.envs.log_lines import log_files
from rlctl.envs.ticklog import LOG_NAME
from rlctl.log.reader import limits_in, read_log
from rlctl.log.stderr import log_to_stderr
from rlctl.log.tail import LogTail
from rlctl.loop.stopping import Request, stop_on_signals
from rlctl.report.shadow_gate import Check, allows, gate_lines, load_gate, read_qos
from rlctl.report.shadow_report import Report, WatchedTicks, alike, gather_ticks, report_lines, report_of
from rlctl.report.shadow_watch import ShadowLog, Shadows, Watched, beside, read_watched, shadow_files
from rlctl.serve.notify import notify

log = logging.getLogger("rlctl.report.shadow_watch")

POLL_SECONDS = 1.0
SUMMARY_SECONDS = 60.0

EXAMPLES = """examples:
  rlctl shadow watch /var/log/rlctl --policy ppo --policy feedforward
  rlctl shadow report /var/log/rlctl                           # what `watch` wrote beside the log
  rlctl shadow report /var/log/rlctl --policy ppo,feedforward  # or ask about what the log still has
  rlctl shadow report --shadow /var/log/rlctl-shadow/shadow.jsonl --gate

`watch` follows the tick log in a process of its own: nothing that it or its policies do reaches the loop that acts.
`report` compares the shadows with the acting policy; --gate turns it into yes (exit code 0: at least one may be
promoted) or no (1), with every reason. What their moves would do to the LC's latency the log does not say: compare
them on a profile of the host, from `rlctl calibrate`, with `rlctl bench`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="watch|report", required=True)
    _add_watch(actions.add_parser("watch", help="follow a tick log and record what policies would have done"))
    _add_report(actions.add_parser("report", help="compare them with who acted; may one be promoted?"))


def run(args: argparse.Namespace) -> int:
    """Run the command; CheckFailed means that the gate says no, or that there is nothing to report on."""
    return {"watch": _watch, "report": _report}[args.action](args)


def _add_watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", type=Path, metavar="LOG", help="the tick log's newest file, or its directory")
    _add_policy(parser, required=True)
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: shadow.jsonl beside the log")
    parser.add_argument(
        "--rotate-bytes", type=positive_int, default=16 << 20, metavar="N", help="of --out; default: 16777216"
    )
    parser.add_argument("--keep", type=positive_int, default=16, metavar="N", help="rotated files; default: 16")
    parser.add_argument("--duration", type=positive, metavar="SECONDS", help="stop by itself after this time")


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "log", nargs="?", type=Path, metavar="LOG", help="a tick log: a file, or the directory of all its files"
    )
    which = parser.add_mutually_exclusive_group()
    _add_policy(which, required=False)
    which.add_argument("--shadow", type=Path, metavar="FILE", help="what `watch` wrote; default: beside LOG")
    parser.add_argument(
        "--gate", nargs="?", const="-", metavar="FILE", help="yes or no; without FILE by the gate that ships"
    )
    parser.add_argument(
        "--bench", type=Path, metavar="FILE", help="for the gate: `rlctl bench --json` of acting and watching policies"
    )
    add_json(parser, "all of it")


def _add_policy(parser: argparse._ActionsContainer, *, required: bool) -> None:
    parser.add_argument(
        "--policy",
        type=split_names,
        action="extend",
        required=required,
        metavar="NAME|BUNDLE",
        help="who looks on: from `rlctl managers`, or a bundle's folder with a slash in it; may be given again",
    )


def _watch(args: argparse.Namespace) -> int:
    """Follow a tick log, until a signal comes or the time is over."""
    log_to_stderr(logging.INFO)
    out = args.out or beside(args.log)
    if out.is_dir():
        raise ConfigError("is a folder; name a file for --out", out)
    if out.name.startswith(LOG_NAME) or out.resolve() == args.log.resolve():
        raise ConfigError("is a tick log, and the acting loop's; name another file for --out", out)
    ends = time.monotonic() + args.duration if args.duration else float("inf")
    with stop_on_signals() as stop, contextlib.ExitStack() as leaving:
        shadows = Shadows(policies_of(args.policy))
        leaving.callback(shadows.close)
        last = _last_said(out)
        record = leaving.enter_context(contextlib.closing(ShadowLog(out, args.rotate_bytes, args.keep)))
        notify("READY=1")
        tail = _open_log(args.log, stop, ends)
        if tail is None:
            return 0
        leaving.callback(tail.close)
        _follow(tail, shadows, record, _Summary(), last, stop, ends)
    return 0


def policies_of(names: Sequence[str]) -> list[Policy]:
    """The policies of these names, no two of which may be the same."""
    return [catalogue.build(name) for name in distinct_policies("--policy", names)]


def _open_log(path: Path, stop: Request, ends: float) -> LogTail | None:
    """The log's end; waits for a log that is yet to be begun. None when told to stop before."""
    told = False
    while not stop.is_set() and time.monotonic() < ends:
        newest = path / LOG_NAME if path.is_dir() else path
        if newest.exists() or not newest.parent.is_dir():
            return LogTail(path)
        if not told:
            log.info("waiting for %s", newest)
        told = True
        stop.wait(POLL_SECONDS)
    return None


def _follow(
    tail: LogTail,
    shadows: Shadows,
    record: ShadowLog,
    summary: _Summary,
    last: Watched | None,
    stop: Request,
    ends: float,
) -> None:
    """What the end of the log held already warms the shadows up; said is only what an earlier watch did not say.

    Without one nothing of it is: shadows that have just begun are colder than the policy that acts.
    """
    warming = [watched for decision in tail.poll() if (watched := shadows.see(decision))]
    for watched in _unsaid(warming, last):
        record.write(watched)
        summary.add(watched)
    names = ", ".join(catalogue.label(one.policy.name) for one in shadows.shadows)
    log.info("watching with %s, warm after %d ticks; answers go to %s", names, shadows.ticks, record.path)
    while True:
        summary.tell(shadows, record, tail)
        left = ends - time.monotonic()
        if left <= 0.0 or stop.wait(min(POLL_SECONDS, left)):
            break
        for decision in tail.poll():
            if watched := shadows.see(decision):
                record.write(watched)
                summary.add(watched)
    summary.tell(shadows, record, tail, last=True)


@dataclass(slots=True)
class _Summary:
    """A line now and then."""

    ticks: int = 0
    behind_seconds: float = 0.0
    same: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    _due: float = 0.0

    def add(self, watched: Watched) -> None:
        self.ticks += 1
        self.behind_seconds = max(time.time() - watched.wall_seconds, 0.0)
        limits = limits_in(watched.header)
        for name, answer in watched.answers.items():
            self.same[name] += limits is not None and alike(answer.allowed, watched.applied, limits)
            self.failed[name] += bool(answer.failed)

    def tell(self, shadows: Shadows, record: ShadowLog, tail: LogTail, *, last: bool = False) -> None:
        """Once a minute, and at the end."""
        now = time.monotonic()
        if not (last or now >= self._due):
            return
        self._due = now + SUMMARY_SECONDS
        if self.ticks or last:
            share = 100.0 / max(self.ticks, 1)
            of_each = [
                f"{catalogue.label(name)} agrees in {share * same:.1f} %, failed in {self.failed[name]}"
                for name, same in self.same.items()
            ]
            counts = {"damaged": tail.damaged, "unruled": shadows.unruled, "dropped": record.dropped}
            problems = [f"{count} {what}" for what, count in counts.items() if count]
            told = [f"{self.ticks} ticks, {self.behind_seconds:.1f} s behind", *of_each, *problems]
            log.info("%s", "; ".join(told))


def _unsaid(seen: Sequence[Watched], last: Watched | None) -> Sequence[Watched]:
    """What came after the last tick that was said; by the clock where that is no longer in sight."""
    if last is None:
        return ()
    after = [number for number, one in enumerate(seen, 1) if (one.run, one.index) == (last.run, last.index)]
    return seen[after[-1] :] if after else [one for one in seen if one.wall_seconds > last.wall_seconds]


def _last_said(out: Path) -> Watched | None:
    """The last tick that an earlier watch recorded, if there was one."""
    newest = [path for path in (out.with_name(f"{out.name}.1"), out) if path.is_file()]
    return next(iter(deque(read_watched(newest, lambda _: None), maxlen=1)), None) if newest else None


def _report(args: argparse.Namespace) -> int:
    """Compare them with who acted, and ask the gate."""
    check_outputs(args)
    if args.gate is None:
        refuse_given(args, ("bench",), "is for the gate; add --gate")
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
    asked = [] if args.policy is None else policies_of(args.policy)
    if asked:
        if (source := args.log) is None:
            raise ConfigError("--policy asks about the ticks of a LOG; name one")
    else:
        source = args.shadow or args.log
        if source is None or (args.shadow and args.log):
            raise ConfigError("name a LOG, or what `rlctl shadow watch` wrote with --shadow FILE: one of them")
        if source.name.startswith(LOG_NAME):
            source = beside(source)
    with Damages() as damaged, contextlib.closing(Shadows(asked)) as shadows:
        if asked:
            seen = map(shadows.see, read_log(log_files(source), damaged))
            found = gather_ticks(watched for watched in seen if watched is not None)
        else:
            found = gather_ticks(read_watched(shadow_files(source), damaged))
    if found is None:
        raise CheckFailed(f"{source}: no tick here that a shadow could be asked about, under a header that says how")
    return found, str(source)


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
