"""`rlctl serve`: the control loop on this host, until it is told to stop."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from rlctl.config import ServeConfig, describe, load_config

if TYPE_CHECKING:
    from rlctl.agents.policy import Policy
    from rlctl.control import Totals
    from rlctl.envs.allocation import Limits
    from rlctl.envs.plant import Plant
    from rlctl.narrator import JsonLines
    from rlctl.record import TickLog
    from rlctl.safety.profile import Profile

__all__ = ["absent_in_words", "add_parser", "run", "serve", "stop_on_signals"]

log = logging.getLogger("rlctl.serve")

EXAMPLES = """examples:
  rlctl serve --config serve.yaml --dry-run --duration 60   # shows what it would do, writes nothing
  rlctl serve --config serve.yaml
  rlctl serve --config serve.yaml --policy weights --json
  rlctl serve --config serve.yaml --policy ./my-policy      # a bundle; needs rlctl[serve], never torch

SIGTERM or SIGINT stops it after the current tick; it then puts back what it found and exits with 0. After a crash,
`rlctl restore` does the same.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command's arguments."""
    parser = subparsers.add_parser(
        "serve",
        help="the control loop on this host",
        description="Hold best-effort work to what the latency-critical service leaves, under a safety shield.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="see configs/serve/example.yaml")
    parser.add_argument(
        "--policy",
        metavar="NAME|BUNDLE",
        help="another policy than the file's: from `rlctl managers`, or a bundle's folder with a slash in it",
    )
    parser.add_argument("--dry-run", action="store_true", help="read, decide and say, but write nothing")
    parser.add_argument("--duration", type=_positive, metavar="SECONDS", help="stop by itself after this time")
    parser.add_argument("--json", action="store_true", help="changes, summaries and totals as JSON lines on stdout")


def run(args: argparse.Namespace) -> int:
    """Run the command; a stop on request is a success."""
    from rlctl.commands.config import policy_of, profile_of
    from rlctl.deciding import build_policy
    from rlctl.logs import log_to_stderr

    given = load_config(args.config)
    config = _effective(given, args.policy)
    # --policy stands on no line of the file
    policy = policy_of(given, args.config) if config is given else build_policy(config.policy)
    profile = profile_of(config, args.config)
    log_to_stderr(logging.INFO)
    log.info("configuration in effect:\n%s", describe(config).rstrip())
    with stop_on_signals() as stop:
        plant = _opened(config, policy, args.dry_run)
        log_file = None if args.dry_run else _tick_log(config, plant)
        serve(plant, policy, profile, log_file, stop, seconds=args.duration, as_json=args.json)
    if args.dry_run and os.geteuid() != 0:
        _tell_root(config)
    return 0


def serve(
    plant: Plant,
    policy: Policy,
    profile: Profile,
    tick_log: TickLog | None,
    stop: threading.Event,
    *,
    seconds: float | None = None,
    as_json: bool = False,
) -> Totals:
    """Control a plant until `stop` is set, then restore and close it, whatever happened.

    Args:
        plant: What is controlled; closed on return.
        policy: Who decides.
        profile: The shield's constants.
        tick_log: Takes every tick; closed on return. None keeps no record.
        stop: Ends the loop.
        seconds: Ends it too.
        as_json: Tell events as JSON on stdout rather than as text on stderr.

    Raises:
        HostError: The host refuses every write.
    """
    from rlctl.control import Controller
    from rlctl.envs.workload import Weight
    from rlctl.narrator import JsonLines, Narrator, say
    from rlctl.notify import Heartbeat, notify
    from rlctl.record import NullRecorder, Tee
    from rlctl.safety.shield import Shield

    lines = JsonLines() if as_json else None
    with contextlib.ExitStack() as leaving:
        if tick_log is not None:
            leaving.callback(tick_log.close)
        leaving.callback(plant.close)
        leaving.callback(notify, "STOPPING=1")
        shield = Shield(profile, plant.limits)
        range_of_be = _range_in_words(plant.limits)
        log.info("policy %s under shield %s (%s); %s", policy.name, profile.name, shield.digest, range_of_be)
        recorder = Tee(tick_log or NullRecorder(), Narrator(lines or say), Heartbeat())
        controller = Controller(plant, policy, shield, recorder)
        if policy.weight is Weight.MINIMUM:  # never raise a weight that an operator has lowered
            plant.set_weight(policy.weight)
        controller.run(seconds=seconds, stop=stop)
        _farewell(controller.totals, tick_log.dropped if tick_log else 0, lines)
        return controller.totals


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """SIGTERM and SIGINT set the event, however often they come: nothing may interrupt the restoring."""
    stop = threading.Event()

    def ask(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def absent_in_words(absent: Mapping[str, str], policy: Policy) -> Iterator[tuple[int, str]]:
    """Level and line on the readings that there will never be, and on those of them that the policy needs."""
    by_reason: dict[str, list[str]] = {}
    for name in sorted(absent):
        by_reason.setdefault(absent[name], []).append(name)
    if by_reason:
        told = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
        yield logging.INFO, f"missing readings: {told}"
    for name in policy.needs:
        if name in absent:
            yield logging.WARNING, f"policy {policy.name} needs {name}, which is missing: {absent[name]}"


def _opened(config: ServeConfig, policy: Policy, dry_run: bool) -> Plant:
    from rlctl.build import build_live  # opens the host: only for a configuration that is right
    from rlctl.dry_run import DryRun

    host = build_live(config, dry_run=dry_run)
    for level, line in absent_in_words(host.absent, policy):
        log.log(level, "%s", line)
    return DryRun(host, host.controls) if dry_run else host


def _tell_root(config: ServeConfig) -> None:
    """The last line of a dry run by somebody who could not run it in earnest."""
    from rlctl.build import unwritable
    from rlctl.envs.errors import RlctlError

    with contextlib.suppress(RlctlError):  # a group that has gone meanwhile
        if refused := unwritable(config):
            more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
            log.warning("would need root: user id %d may not write %s%s", os.geteuid(), refused[0], more)


def _range_in_words(limits: Limits) -> str:
    cpus = "1 CPU" if limits.cpus == 1 else f"{limits.cpus} CPUs"
    quota = f"a quota of {limits.min_quota_cpus:g} CPU and more, in {limits.levels} levels"
    return f"BE may get {cpus}, {quota}; the LC has {limits.lc_cpus:g}"


def _effective(config: ServeConfig, policy: str | None) -> ServeConfig:
    if policy is None or policy == config.policy.name:
        return config
    # Options belong to the manager they were written for; a model of the LC fits whoever reads it.
    section = config.policy.model_copy(update={"name": policy, "options": {}})
    return config.model_copy(update={"policy": section})


def _tick_log(config: ServeConfig, plant: Plant) -> TickLog:
    from rlctl.record import TickLog

    try:
        return TickLog(config.log.directory / "ticks.jsonl", config.log.rotate_bytes, config.log.keep)
    except OSError:
        plant.close()
        raise


def _farewell(totals: Totals, dropped: int, lines: JsonLines | None) -> None:
    log.info(
        "leaving after %d ticks: %d overrides, %d policy errors, %d write errors, %d missed deadlines, %d records lost",
        totals.ticks,
        totals.overrides,
        totals.policy_errors,
        totals.write_errors,
        totals.missed_deadlines,
        dropped,
    )
    if lines:
        lines.write({"event": "end", **asdict(totals), "dropped_records": dropped})


def _positive(text: str) -> float:
    value = float(text)
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return value
