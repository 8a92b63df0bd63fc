"""`rlctl serve`: the control loop on this host, until it is told to stop."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl.commands.arguments import positive
from rlctl.config.serve import ServeConfig, describe, load_config
from rlctl.loop.stopping import Request, stop_on_signals

if TYPE_CHECKING:
    from rlctl.agents.policy import Policy
    from rlctl.config.metrics import MetricsSection
    from rlctl.envs.host.cgroup.emergency import EmergencyPlan
    from rlctl.envs.plant import Plant
    from rlctl.loop.record import TickLog
    from rlctl.safety.profile import Profile
    from rlctl.serve.serving import Around

__all__ = ["DESCRIPTION", "EXAMPLES", "absent_in_words", "add_arguments", "run"]

log = logging.getLogger("rlctl.serve")

EXCHANGED = ("policy", "fallback", "shield")
"""Sections that a reload exchanges; the others belong to what was opened at the start."""

DESCRIPTION = "Hold best-effort work to what the latency-critical service leaves, under a safety shield."

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="see configs/serve/example.yaml")
    parser.add_argument(
        "--policy",
        metavar="NAME|BUNDLE",
        help="another policy than the file's: from `rlctl managers`, or a bundle's folder with a slash in it",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="a bundle that is refused ends the start even where the file has a fallback section",
    )
    parser.add_argument("--dry-run", action="store_true", help="read, decide and say, but write nothing")
    parser.add_argument("--duration", type=positive, metavar="SECONDS", help="stop by itself after this time")
    parser.add_argument("--json", action="store_true", help="changes, summaries and totals as JSON lines on stdout")


def run(args: argparse.Namespace) -> int:
    """Run the command; a stop on request is a success."""
    from rlctl.serve.self_usage import bounded_memory
    from rlctl.serve.serving import serve
    from rlctl.work.logs import log_to_stderr

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
    from rlctl.agents.served.refused import Refused
    from rlctl.envs.errors import BundleError
    from rlctl.serve.deciding import build_policy, fallback_of, policy_of, profile_of

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
    from rlctl.safety.lease import Lease
    from rlctl.serve.build import build_live  # opens the host: only for a configuration that is right
    from rlctl.serve.dry_run import DryRun
    from rlctl.serve.self_test import self_test
    from rlctl.serve.serving import Around

    lease: Lease | None = None

    def replan(plan: EmergencyPlan) -> None:
        if lease:  # it is made of the host's first plan
            lease.replan(plan)

    host = build_live(config, dry_run=dry_run, sleep=stop.wait, replan=replan)
    opened.callback(host.close)
    for level, line in absent_in_words(host.absent, deciders[0]):
        log.log(level, "%s", line)
    if dry_run:
        _look_at(config.metrics)
        self_test(host, deciders[0], None, dry_run=True, profile=deciders[1])
        return DryRun(host, host.controls, host.plan), Around(limits=config.limits)
    section = config.watchdog
    if section.enabled:
        seconds = section.lease_seconds(config.tick_seconds), section.restore_after_seconds
        lease = Lease(host.emergency_plan(), config.state_directory, *seconds)
        opened.callback(lease.close)
        opened.callback(host.close)  # before the watchdog is released, which sees to it that this is done
        opened.callback(lease.leave)
    self_test(host, deciders[0], lease.pid if lease else None, profile=deciders[1])
    return host, Around(lease, host.events, lambda: host.shares, config.metrics, config.limits)


def _look_at(section: MetricsSection | None) -> None:
    """Certificate, key and token, which a dry run does not open otherwise."""
    from rlctl.envs.errors import PermissionMissing

    if section is not None:
        from rlctl.serve.metrics_server import check_files

        try:
            check_files(section)
        except PermissionMissing as error:  # the user of a dry run need not be who serves
            log.warning("%s: whoever serves has to read it", error)


def _tell_root(config: ServeConfig) -> None:
    """The last line of a dry run by somebody who could not run it in earnest."""
    from rlctl.envs.errors import RlctlError
    from rlctl.serve.build import unwritable

    with contextlib.suppress(RlctlError):  # a group that has gone meanwhile
        if refused := unwritable(config):
            more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
            log.warning("would need root: user id %d may not write %s%s", os.geteuid(), refused[0], more)


def _effective(config: ServeConfig, policy: str | None) -> ServeConfig:
    if policy is None or policy == config.policy.name:
        return config
    # Options belong to the manager they were written for; a model of the LC fits whoever reads it.
    section = config.policy.model_copy(update={"name": policy, "options": {}})
    return config.model_copy(update={"policy": section})


def _tick_log(config: ServeConfig) -> TickLog:
    from rlctl.envs.errors import ConfigError, PermissionMissing
    from rlctl.loop.record import TickLog

    try:
        return TickLog(config.log.directory / "ticks.jsonl", config.log.rotate_bytes, config.log.keep)
    except PermissionError as error:
        raise PermissionMissing(
            f"log.directory: {error.filename}: {error.strerror}: run as root, or name another"
        ) from error
    except OSError as error:
        raise ConfigError(f"log.directory: {error.filename}: {error.strerror}: name another") from error
