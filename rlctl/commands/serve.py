"""`rlctl serve`: the control loop on this host, until it is told to stop."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl.config.metrics import LimitsSection, MetricsSection
from rlctl.config.serve import ServeConfig, describe, load_config
from rlctl.stopping import Request, stop_on_signals

if TYPE_CHECKING:
    from rlctl.agents.policy import Policy
    from rlctl.control import Controller, Totals
    from rlctl.envs.allocation import Limits
    from rlctl.envs.plant import Plant
    from rlctl.metrics import Metrics
    from rlctl.narrator import JsonLines
    from rlctl.record import Shares, TickLog
    from rlctl.safety.lease import Lease
    from rlctl.safety.profile import Profile
    from rlctl.safety.shield import Shield

__all__ = ["Around", "absent_in_words", "add_parser", "run", "serve"]

log = logging.getLogger("rlctl.serve")

EXCHANGED = ("policy", "fallback", "shield")
"""Sections that a reload exchanges; the others belong to what was opened at the start."""

EXAMPLES = """examples:
  rlctl serve --config serve.yaml --dry-run --duration 60   # shows what it would do, writes nothing
  rlctl serve --config serve.yaml
  rlctl serve --config serve.yaml --policy weights --json
  rlctl serve --config serve.yaml --policy ./my-policy      # a bundle; needs rlctl[serve], never torch

SIGTERM or SIGINT stops it, at once or after the tick that it is in; it then puts back what it found and exits with 0.
SIGHUP reads the file again: policy, fallback and shield are exchanged between two ticks, and a file with a mistake
changes nothing.
After a crash the watchdog takes BE to the safe allocation at once, and puts everything back when nobody returns;
`rlctl restore` does the latter by hand.
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
    parser.add_argument(
        "--strict", action="store_true", help="a bundle that is refused ends the start, fallback or not"
    )
    parser.add_argument("--dry-run", action="store_true", help="read, decide and say, but write nothing")
    parser.add_argument("--duration", type=_positive, metavar="SECONDS", help="stop by itself after this time")
    parser.add_argument("--json", action="store_true", help="changes, summaries and totals as JSON lines on stdout")


def run(args: argparse.Namespace) -> int:
    """Run the command; a stop on request is a success."""
    from rlctl.logs import log_to_stderr
    from rlctl.self_usage import bounded_memory

    config, deciders = _read(args)
    log_to_stderr(logging.INFO)
    log.info("configuration in effect:\n%s", describe(config).rstrip())
    reread = _Reread(args, config)
    bound = bounded_memory(config.limits.memory_bytes)
    with bound, stop_on_signals(reread.asked) as stop, contextlib.ExitStack() as opened:
        plant, around = _opened(config, deciders, args.dry_run, stop, opened)
        log_file = None if args.dry_run else _tick_log(config)
        opened.pop_all()  # `serve` closes them
        serve(
            plant, *deciders, log_file, stop, around, reread=reread.changed, seconds=args.duration, as_json=args.json
        )  # fmt: skip
    if args.dry_run and os.geteuid() != 0:
        _tell_root(config)
    return 0


@dataclass(frozen=True, slots=True)
class Around:
    """What stands around the loop on a live host; a plant without a host has nothing of it.

    Attributes:
        lease: The watchdog's; released on return.
        events: What happened to the host's groups since it was last asked.
        shares: How BE's applications divide what is in force.
        metrics: The endpoint, if there is to be one.
        limits: From where on rlctl itself is too dear.
    """

    lease: Lease | None = None
    events: Callable[[], tuple[str, ...]] = tuple
    shares: Callable[[], Shares] = dict
    metrics: MetricsSection | None = None
    limits: LimitsSection = field(default_factory=LimitsSection)


def serve(
    plant: Plant,
    policy: Policy,
    profile: Profile,
    tick_log: TickLog | None,
    stop: Request,
    around: Around | None = None,
    *,
    reread: Callable[[], tuple[Policy, Profile] | None] = lambda: None,
    seconds: float | None = None,
    as_json: bool = False,
) -> Totals:
    """Control a plant until a stop is requested, then restore and close it, whatever happened.

    Args:
        plant: What is controlled; closed on return.
        policy: Who decides.
        profile: The shield's constants.
        tick_log: Takes every tick; closed on return. None keeps no record.
        stop: Ends the loop.
        around: What stands around the loop.
        reread: Asked before every tick for another policy and profile to go on with.
        seconds: Ends it too.
        as_json: Tell events as JSON on stdout rather than as text on stderr.

    Raises:
        ConfigError: The metrics endpoint cannot be opened as configured.
        HostError: The host refuses every write, or another process has the endpoint's port.
    """
    from rlctl.control import Controller
    from rlctl.narrator import JsonLines, Narrator, say
    from rlctl.notify import Heartbeat, notify
    from rlctl.record import NullRecorder, Tee
    from rlctl.safety.shield import Shield
    from rlctl.self_usage import SelfCheck
    from rlctl.start_pages import let_go

    lines, around = JsonLines() if as_json else None, around or Around()
    with contextlib.ExitStack() as leaving:
        if tick_log is not None:
            leaving.callback(tick_log.close)
        giving_back = leaving.enter_context(_giving_back(plant, around.lease))
        leaving.callback(notify, "STOPPING=1")
        shield = Shield(profile, plant.limits)
        own = Tee(tick_log or NullRecorder(), Narrator(lines or say), Heartbeat(), SelfCheck(around.limits))
        controller = Controller(plant, policy, shield, own, around.lease, around.events, around.shares)
        leaving.callback(lambda: _done_with(controller.policy))
        service = _Service(controller, tick_log, _expose(controller, tick_log, around, leaving), reread)
        service.announce(policy, shield)
        _weigh(plant, policy)
        let_go()
        with _ending_as_in_a_crash(giving_back, around.lease):
            controller.run(seconds=seconds, stop=stop, between=service.exchange)
        _farewell(controller.totals, tick_log.dropped if tick_log else 0, lines)
        return controller.totals


def _giving_back(plant: Plant, lease: Lease | None) -> contextlib.ExitStack:
    """Puts the originals back at its end, with the watchdog keeping out of the way and seeing to it."""
    stack = contextlib.ExitStack()
    if lease:
        stack.callback(lease.close)
    stack.callback(plant.close)
    if lease:
        stack.callback(lease.leave)  # before the originals go back, or it would undo that
    return stack


@contextlib.contextmanager
def _ending_as_in_a_crash(giving_back: contextlib.ExitStack, lease: Lease | None) -> Iterator[None]:
    """A loop that fails sets nobody free: the watchdog keeps BE safe for a successor, or gives it back if none is."""
    try:
        yield
    except Exception:
        if lease and lease.pid and not lease.lost():
            giving_back.pop_all()
        raise


class _Service:
    """A controller, what tells of it, and what a reload exchanges.

    Args:
        controller: The loop.
        tick_log, metrics: What names policy and shield.
        reread: Asked before every tick for another policy and profile.
    """

    def __init__(
        self,
        controller: Controller,
        tick_log: TickLog | None,
        metrics: Metrics | None,
        reread: Callable[[], tuple[Policy, Profile] | None],
    ) -> None:
        self._controller, self._tick_log, self._metrics, self._reread = controller, tick_log, metrics, reread

    def announce(self, policy: Policy, shield: Shield) -> None:
        """Say who decides from now on, before the first tick of theirs."""
        from rlctl.falling_back import untrained_shield
        from rlctl.ticklog.header import header_of

        plant = self._controller.plant
        told = policy.name, shield.profile_name, shield.digest, _range_in_words(plant.limits)
        log.info("policy %s under shield %s (%s); %s", *told)
        if unlike := untrained_shield(policy, shield):
            log.warning("%s", unlike)
        if self._metrics is not None:
            self._metrics.renamed(policy.name, shield.profile_name, shield.digest)
        if self._tick_log is not None:
            self._tick_log.header = header_of(plant, policy, shield)
            self._tick_log.renew_header()

    def exchange(self) -> None:
        """Go on with another policy and shield, if a reload found some."""
        from rlctl.envs.errors import RlctlError
        from rlctl.safety.shield import Shield

        if (found := self._reread()) is None:
            return
        controller, (policy, profile) = self._controller, found
        before, shield = controller.policy, Shield(profile, controller.plant.limits)
        try:
            _weigh(controller.plant, policy)
        except RlctlError as error:
            log.error("not reloaded, all stays as it was: %s", error)
            _done_with(policy)
            return
        self.announce(policy, shield)
        controller.exchange(policy, shield)
        _done_with(before)


class _Reread:
    """Reads the configuration again when a signal asks for it; a mistake in it changes nothing.

    Args:
        args: Of the command.
        config: In effect.
    """

    def __init__(self, args: argparse.Namespace, config: ServeConfig) -> None:
        self.asked = Request()
        self._args, self._config = args, config

    def changed(self) -> tuple[Policy, Profile] | None:
        """What to go on with, if a signal asked for it and the file is right."""
        if not self.asked.is_set():
            return None
        self.asked.clear()
        try:
            config, deciders = _read(self._args, self._config.tick_seconds)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a new file, the loop goes on with the old one
            log.error("not reloaded, all stays as it was: %s", error)
            return None
        fixed = [name for name in type(config).model_fields if name not in EXCHANGED]
        if changed := [name for name in fixed if getattr(config, name) != getattr(self._config, name)]:
            log.warning("%s: changed, which takes effect at the next start", ", ".join(changed))
        self._config = self._config.model_copy(update={name: getattr(config, name) for name in EXCHANGED})
        log.info("reloaded: policy %s, shield %s", deciders[0].name, deciders[1].name)
        return deciders


def _read(args: argparse.Namespace, tick_seconds: float | None = None) -> tuple[ServeConfig, tuple[Policy, Profile]]:
    """The configuration in effect, and who decides by it.

    Args:
        args: Of the command.
        tick_seconds: The control period, where it is settled.

    Raises:
        ConfigError: The file, its policy or its shield profile is wrong.
        PermissionMissing: One of them may not be read.
    """
    from rlctl.agents.refused import Refused
    from rlctl.commands.config import fallback_of, policy_of, profile_of
    from rlctl.deciding import build_policy
    from rlctl.envs.errors import BundleError

    given = load_config(args.config)
    config = _effective(given, args.policy)
    try:  # --policy stands on no line of the file
        policy = policy_of(given, args.config) if config is given else build_policy(config.policy)
    except BundleError as error:
        # Whoever wrote a fallback into the file wants BE controlled, whatever becomes of the bundle; at a reload the
        # policy that is there is better still, and whoever types --policy sees what is wrong.
        if tick_seconds is not None or config is not given or args.strict or "fallback" not in given.model_fields_set:
            raise
        log.error("policy %s is refused, %s decides in its place: %s", config.policy.name, config.fallback.name, error)
        policy = Refused(config.policy.name, str(error))
    chain = fallback_of(config, policy, args.config, tick_seconds or config.tick_seconds)
    return config, (chain, profile_of(config, args.config))


def _expose(
    controller: Controller, tick_log: TickLog | None, around: Around, leaving: contextlib.ExitStack
) -> Metrics | None:
    """Open the metrics endpoint, if there is to be one."""
    if around.metrics is None or controller.shield is None:
        return None
    from rlctl.metrics import Metrics, Sources
    from rlctl.metrics_server import MetricsServer
    from rlctl.record import Tee

    plant, shield, lease = controller.plant, controller.shield, around.lease
    metrics = Metrics(controller.policy.name, (shield.profile_name, shield.digest), plant.limits, plant.tick_seconds)
    metrics.sources = Sources(
        policy_errors=lambda: controller.totals.policy_errors,
        tick_errors=lambda: controller.totals.tick_errors,
        dropped_records=lambda: tick_log.dropped if tick_log else 0,
        watchdog_restarts=lambda: lease.restarts if lease else 0,
    )
    fresh_seconds = 3.0 * plant.tick_seconds + 1.0
    leaving.enter_context(MetricsServer(metrics, around.metrics, fresh_seconds=fresh_seconds))
    controller.recorder = Tee(metrics, controller.recorder)
    return metrics


def _weigh(plant: Plant, policy: Policy) -> None:
    """Give BE the weight that a policy runs with; never raise one that an operator has lowered."""
    from rlctl.envs.workload import Weight

    if policy.weight is Weight.MINIMUM:
        plant.set_weight(policy.weight)


def _done_with(policy: Policy) -> None:
    from rlctl.agents.fallback import Fallback

    if isinstance(policy, Fallback):
        policy.close()


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


def _opened(
    config: ServeConfig, deciders: tuple[Policy, Profile], dry_run: bool, stop: Request, opened: contextlib.ExitStack
) -> tuple[Plant, Around]:
    """The host and what stands around the loop on it; `opened` closes both if something goes wrong on the way."""
    from rlctl.build import build_live  # opens the host: only for a configuration that is right
    from rlctl.dry_run import DryRun
    from rlctl.safety.lease import Lease
    from rlctl.self_test import self_test

    host = build_live(config, dry_run=dry_run)
    opened.callback(host.close)
    host.sleep = stop.wait
    for level, line in absent_in_words(host.absent, deciders[0]):
        log.log(level, "%s", line)
    if dry_run:
        self_test(host, deciders[0], None, dry_run=True, profile=deciders[1])
        return DryRun(host, host.controls), Around(limits=config.limits)
    lease, section = None, config.watchdog
    if section.enabled:
        seconds = section.lease_seconds(config.tick_seconds), section.restore_after_seconds
        lease = Lease(host.emergency_plan(), config.state_directory, *seconds)
        opened.callback(lease.close)
        opened.callback(host.close)  # before the watchdog is released, which sees to it that this is done
        opened.callback(lease.leave)
        host.regrouped = lease.replan
    self_test(host, deciders[0], lease.pid if lease else None, profile=deciders[1])
    return host, Around(lease, host.events, lambda: host.shares, config.metrics, config.limits)


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


def _tick_log(config: ServeConfig) -> TickLog:
    from rlctl.record import TickLog

    return TickLog(config.log.directory / "ticks.jsonl", config.log.rotate_bytes, config.log.keep)


def _farewell(totals: Totals, dropped: int, lines: JsonLines | None) -> None:
    log.info(
        "leaving after %d ticks: %d overrides, %d policy errors, %d write errors, %d ticks that went wrong, "
        "%d missed deadlines, %d records lost",
        totals.ticks,
        totals.overrides,
        totals.policy_errors,
        totals.write_errors,
        totals.tick_errors,
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
