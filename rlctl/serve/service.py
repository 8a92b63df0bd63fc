"""The service: this host opened as configured, the control loop on it, everything put back at the end."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rlctl.agents.policy import Policy
from rlctl.config.sections import MetricsSection
from rlctl.config.serve import LogSection
from rlctl.envs.allocation import Limits, most_restrictive
from rlctl.envs.errors import ConfigError, HostError, PermissionMissing, RlctlError
from rlctl.envs.host.cgroup.emergency import EmergencyPlan
from rlctl.envs.host.latency.waiting import WaitingSource
from rlctl.envs.host.live import LiveHost
from rlctl.envs.plant import Plant
from rlctl.log.record import Recorder, Tee, TickLog, header_of
from rlctl.loop.control import Controller, Totals
from rlctl.loop.fast_guard import FastGuard
from rlctl.loop.narrator import JsonLines, Narrator, say
from rlctl.loop.stopping import Request
from rlctl.safety.growth import Ceiling
from rlctl.safety.lease import Lease
from rlctl.safety.shield import Shield
from rlctl.safety.verdict import Bound
from rlctl.serve.announce import (
    lacking,
    range_in_words,
    start_screen,
    tell_absent,
    too_slow_a_rise,
    untrained_shield,
)
from rlctl.serve.auto_target import AutoTargets, TargetProposal
from rlctl.serve.budget import Budgets
from rlctl.serve.build import build_live, unwritable
from rlctl.serve.control_socket import SOCKET, ControlSocket, check_socket
from rlctl.serve.dry_run import DryRun
from rlctl.serve.holds import OperatorHolds
from rlctl.serve.memory import HostMemory, Learner, host_of
from rlctl.serve.notify import Heartbeat, notify
from rlctl.serve.policy_setup import Configuration, PolicySetup, set_weight, weight_of
from rlctl.serve.self_test import self_test
from rlctl.serve.self_usage import SelfCheck, TailCheck, release_pages
from rlctl.serve.starvation import StarvationDetector

if TYPE_CHECKING:
    from rlctl.serve.metrics import Metrics

log = logging.getLogger("rlctl.serve")

PASSING = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EBUSY))
"""What keeps a file from being opened and may be over at the next start."""


class Service:
    """One run on this host: `with` opens it, `run` controls until a stop is requested, the end of `with` closes it.

    All that is opened is closed by one ExitStack, the last first. BE's originals go back when the loop is over, and the
    claims on its groups end last of all.

    Args:
        dry_run: Only read, decide and tell: nothing is written, kept or listened to.
        as_json: Tell events as JSON on stdout rather than as text on stderr.
        open_host: Opens the host, as `build_live` does.

    Raises:
        ConfigError: At the opening: something that the configuration names is not there or does not fit.
        HostError: The host refuses every write, or another process holds what is needed.
        PermissionMissing: Something may not be written.
    """

    def __init__(
        self,
        configuration: Configuration,
        stop: Request,
        *,
        dry_run: bool = False,
        as_json: bool = False,
        open_host: Callable[..., LiveHost] = build_live,
    ) -> None:
        self._configuration, self._config = configuration, configuration.config
        self._stop, self._dry_run, self._open_host = stop, dry_run, open_host
        self._lines = JsonLines() if as_json else None
        self._lease: Lease | None = None
        self._tick_log: TickLog | None = None
        self._metrics: Metrics | None = None
        self._abandoned = False

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            self._host = self._open_host(
                self._config, dry_run=self._dry_run, sleep=self._stop.wait, replan=self._replan
            )
            # First in, so last out: whatever fails from here on, BE's originals go back or the watchdog has BE.
            opened.callback(self._give_back)
            self._open_watchdog()
            self._test()
            self._open_records(opened)
            self._open_loop(opened)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._opened.__exit__(kind, error, at)

    def run(self, seconds: float | None = None) -> Totals:
        """Control until a stop is requested or so many seconds have passed; HostError: it cannot go on."""
        controller = self._controller
        for line in start_screen(self._config, self._host):
            log.info("%s", line)
        self._announce(controller.runner.policy, self._shield)
        release_pages()
        try:
            controller.run(seconds=seconds, stop=self._stop, between=self._between_ticks)
        except Exception:
            # A loop that fails frees nobody: the watchdog keeps BE safe for a successor, or gives it back to none.
            self._abandoned = True
            raise
        self._tell_totals()
        return controller.totals

    def _open_watchdog(self) -> None:
        """Start the watchdog, with what takes BE to the safe allocation should this process die."""
        section = self._config.watchdog
        if section.enabled and not self._dry_run:
            # Its plan is worked out now, from the groups as they are: a dead controller can answer nothing.
            seconds = section.lease_seconds(self._config.tick_seconds), section.restore_after_seconds
            self._lease = Lease(self._host.actuator.emergency_plan(), self._config.state_directory, *seconds)

    def _test(self) -> None:
        """Try what the service relies on, before anything depends on it."""
        config, setup, lease = self._config, self._configuration.deciders, self._lease
        tell_absent(self._host.absent)
        if self._dry_run:
            _check_metrics(config.metrics)
            check_socket(config.state_directory / SOCKET, config.control.group)
        self_test(
            self._host,
            setup.policy,
            lease.pid if lease else None,
            dry_run=self._dry_run,
            profile=setup.profile,
            command=config.be.starved.command,
        )

    def _open_records(self, opened: contextlib.ExitStack) -> None:
        """What is known of this host from before, what operators asked for, and where they and the ticks are heard."""
        config, host = self._config, self._host
        # A dry run reads and writes no file of the state directory, which a running service may hold.
        home = None if self._dry_run else config.state_directory
        self._holds = OperatorHolds(home, config.schedule, config.tick_seconds)
        looked_at = host.watch.lcs if host.watch else {}
        waiting = {name for name, lc in looked_at.items() if isinstance(lc.source, WaitingSource)}
        self._memory = HostMemory(home, host_of(config, host, waiting), guessed=not host.lc_cpus_known)
        # Before what is learned comes back: it is of these targets.
        self._targets = AutoTargets(
            config, home, host.limits, self._take_target, dry_run=self._dry_run, waiting=waiting
        )
        for name, watch in self._targets.watches.items():
            if watch.proposal is not None:
                host.set_target(name, watch.proposal.target_seconds)
                self._memory.set_target(name, watch.proposal.target_seconds)
        self._budgets = Budgets(config.lcs, config.tick_seconds)
        self._learners: tuple[Learner, ...] = (*host.learned, host.reins, *self._budgets.each)
        # Before the first tick: what is known of a load can only lower its maximum, so it frees nobody.
        for learner in self._learners:
            self._memory.restore_state(learner)
        if home is not None:
            self._tick_log = opened.enter_context(contextlib.closing(_tick_log(config.log)))
            socket = ControlSocket(home / SOCKET, config.control.group, self._holds.answer)
            opened.enter_context(contextlib.closing(socket))

    def _open_loop(self, opened: contextlib.ExitStack) -> None:
        """The controller, with all that hears of its ticks."""
        config, host, setup = self._config, self._host, self._configuration.deciders
        plant: Plant = DryRun(host) if self._dry_run else host
        # Ahead of the shield: the plant's limits say which weight BE has.
        set_weight(plant, setup.policy, config.be.weight)
        self._shield = Shield(setup.profile, plant.limits)
        # A dry run starts no command of the operator's.
        starved = config.be.starved.model_copy(update={"command": ()}) if self._dry_run else config.be.starved
        self._starvation = StarvationDetector(starved, plant.limits.cpus, plant.tick_seconds, host.has_processes)
        recorders: list[Recorder] = [self._tick_log] if self._tick_log else []
        recorders += [Narrator(self._lines or say, plant.limits.cpus), Heartbeat()]
        recorders += [SelfCheck(config.limits), TailCheck()]
        # These take in each tick, and their bounds or events count from the next one on.
        recorders += [self._holds, self._budgets, self._starvation, self._targets]
        controller = self._controller = Controller(
            plant, setup.policy, self._shield, Tee(*recorders), self._lease,
            events=lambda: (*host.events(), *self._starvation.events()), shares=lambda: host.shares, said=self._bounds,
        )  # fmt: skip
        controller.restore_state = self._memory.restore_state
        host.reins.moves = lambda: controller.runner.policy.moves_reins
        self._open_fast_guard()
        opened.callback(notify, "STOPPING=1")
        opened.callback(lambda: controller.runner.policy.close())
        opened.callback(lambda: self._memory.keep((*controller.runner.observer.experiences, *self._learners)))
        opened.callback(self._starvation.close)
        if config.metrics and not self._dry_run:
            self._open_metrics(config.metrics, opened)

    def _open_fast_guard(self) -> None:
        """Have the fast guard answer what is seen between two ticks, if the configuration wants that."""
        watch, section, controller = self._host.watch, self._config.inner_guard, self._controller
        if watch is None or not section.enabled:
            return
        slos = {name: lc.slo for name, lc in watch.lcs.items()}
        guard = FastGuard(
            controller.plant, slos, section.most_false_alarms, self._lease, self._holds,
            self._host.note_cut, self._host.reins.tighten_cpus,
        )  # fmt: skip
        # The guard runs in the loop's own wait, so that it never writes beside a tick.
        controller.fast_guard, watch.look = guard, guard.look
        controller.recorder = Tee(guard, controller.recorder)
        log.info("fast guard looks at %s", watch)

    def _open_metrics(self, section: MetricsSection, opened: contextlib.ExitStack) -> None:
        """Metrics and their endpoint."""
        # They need libraries that nothing else does: imported only where they are wanted.
        from rlctl.serve.metrics import Metrics, ServiceFigures
        from rlctl.serve.metrics_server import MetricsServer

        controller, shield, plant = self._controller, self._shield, self._controller.plant
        figures = ServiceFigures(
            self._counts, self._budgets.each, lambda: self._starvation.starved,
            lambda: controller.fast_guard.heeded if controller.fast_guard else (),
        )  # fmt: skip
        described = controller.runner.policy.name, (shield.profile.name, shield.digest)
        self._metrics = Metrics(*described, plant.limits, plant.tick_seconds, figures)
        # /healthz allows three missed ticks.
        server = MetricsServer(self._metrics, section, fresh_seconds=3.0 * plant.tick_seconds + 1.0)
        opened.callback(server.close)
        controller.recorder = Tee(self._metrics, controller.recorder)

    def _counts(self) -> dict[str, int]:
        """Counts since the start that others than the metrics keep."""
        totals = self._controller.totals
        return {
            "policy_errors": totals.policy_errors,
            "tick_errors": totals.tick_errors,
            "log_records_dropped": self._tick_log.dropped if self._tick_log else 0,
            "watchdog_restarts": self._lease.restarts if self._lease else 0,
        }

    def _bounds(self, limits: Limits) -> tuple[Bound, ...]:
        """The most that operators, the schedule and spent error budgets allow BE."""
        holds = self._holds.bounds(limits)
        # People and the ceiling mean CPUs, whatever carries the level.
        ceiling = Ceiling(self._shield.profile.ceiling_ratio).most(limits)
        self._host.reins.most_cpus = most_restrictive(ceiling, *(one.most for one in holds))
        return (*holds, *self._budgets.bounds(limits), *self._targets.bounds(limits))

    def _take_target(self, lc: str, proposal: TargetProposal, stays: bool) -> None:
        """Hold an LC to a proposed target from the next tick on: what was learned under another one is forgotten."""
        self._host.set_target(lc, proposal.target_seconds)
        self._memory.set_target(lc, proposal.target_seconds)
        if self._controller.fast_guard is not None:
            self._controller.fast_guard.set_target(lc, proposal.target_seconds)
        self._controller.runner.observer.forget()
        most = "; ".join(str(one) for one in self._host.learned if one.lc == lc)
        milliseconds = f"{1e3 * proposal.target_seconds:g}"
        log.info(
            "LC %s: target auto %s: %s%s", lc, "(proposed)" if stays else "has a first guess", proposal,
            f"; {most}; to fix it: `--target {milliseconds}ms`, or lc.slo.target_milliseconds: {milliseconds} in the "
            "file" if stays else "",
        )  # fmt: skip

    def _announce(self, policy: Policy, shield: Shield) -> None:
        """Tell who decides from now on, before the first tick of theirs."""
        plant = self._controller.plant
        described = policy.name, shield.profile.name, shield.digest
        log.info("policy %s under shield %s (%s); %s", *described, range_in_words(plant.limits))
        doubts = untrained_shield(policy, shield), too_slow_a_rise(policy, shield, plant.tick_seconds)
        for doubt in filter(None, (*doubts, *lacking(policy, self._host.absent))):
            log.warning("%s", doubt)
        if self._metrics is not None:
            # From the first tick of theirs the metrics and the log's header carry their names.
            self._metrics.rename(*described)
        if self._tick_log is not None:
            self._tick_log.header = header_of(plant, policy, shield, self._config.named_workloads)
            self._tick_log.renew_header()

    def _between_ticks(self) -> None:
        """What has time until the next tick."""
        self._memory.keep_if_due((*self._controller.runner.observer.experiences, *self._learners))
        setup = self._configuration.take_reload()
        if setup is not None:
            self._exchange(setup)
        # What a miss costs a learned policy follows from the error budgets.
        self._controller.runner.observer.price = self._budgets.price

    def _exchange(self, setup: PolicySetup) -> None:
        """Go on with another policy, and with another shield where its constants are others."""
        controller, policy, before = self._controller, setup.policy, self._controller.runner.policy
        wanted = self._config.be.weight
        try:
            set_weight(controller.plant, policy, wanted)
        except RlctlError as error:
            log.error("not reloaded, all stays as it was: %s", error)
            policy.close()
            return
        # The shield that rules goes on if it can, since its guards know this host. Not where BE gets another CPU weight
        # by the policy: what BE has was earned beside the one before.
        rules, shield = self._shield, Shield(setup.profile, controller.plant.limits)
        weighs_the_same = weight_of(before, wanted) is weight_of(policy, wanted)
        if not weighs_the_same or (rules.digest, rules.limits) != (shield.digest, shield.limits):
            self._shield = shield
        # Announced before it decides: a log's ticks stand below the header of their policy and shield.
        log.info("reloaded: policy %s, shield %s", policy.name, self._shield.profile.name)
        self._announce(policy, self._shield)
        self._memory.keep(controller.runner.observer.experiences)
        controller.exchange(policy, self._shield)
        before.close()

    def _tell_totals(self) -> None:
        dropped = self._tick_log.dropped if self._tick_log else 0
        counts = asdict(self._controller.totals) | {"dropped_records": dropped}
        log.info(
            "leaving after %(ticks)d ticks: %(overrides)d overrides, %(policy_errors)d policy errors, "
            "%(write_errors)d write errors, %(tick_errors)d ticks that went wrong, %(missed_deadlines)d missed "
            "deadlines, %(unwatched)d ticks without a lease, %(dropped_records)d records lost",
            counts,
        )
        if self._lines:
            self._lines.write({"event": "end", **counts})

    def _replan(self, plan: EmergencyPlan) -> None:
        """Give the watchdog the plan for BE's groups of now; the lease itself is made of the first one."""
        if self._lease:
            self._lease.replan(plan)

    def _give_back(self) -> None:
        """Put BE's originals back, unless the watchdog has to keep BE safe."""
        lease, host = self._lease, self._host
        # A start that fails, after a controller that was killed, leaves BE as restricted as that one's watchdog had it.
        left_as_it_was = host.inherited and not host.applied
        if (self._abandoned or left_as_it_was) and lease and lease.pid and not lease.why_lost():
            if left_as_it_was:
                seconds = self._config.watchdog.restore_after_seconds
                log.error("BE stays at the safe allocation: the watchdog waits for another start for %g s", seconds)
            return
        with contextlib.ExitStack() as closing:
            if lease:
                closing.callback(lease.close)
            closing.callback(host.close)
            if lease:
                # Before the originals go back, or the watchdog would undo that.
                closing.callback(lease.leave)


def serve(
    configuration: Configuration,
    stop: Request,
    *,
    dry_run: bool = False,
    seconds: float | None = None,
    as_json: bool = False,
) -> None:
    """Control this host as configured until a stop is requested, then put everything back; see `Service`."""
    with Service(configuration, stop, dry_run=dry_run, as_json=as_json) as service:
        service.run(seconds)
    if dry_run and os.geteuid() != 0:
        # A group may have gone meanwhile.
        with contextlib.suppress(RlctlError):
            if refused := unwritable(configuration.config):
                more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
                log.warning("would need root: user id %d may not write %s%s", os.geteuid(), refused[0], more)


def _tick_log(section: LogSection) -> TickLog:
    try:
        return TickLog(section.directory / "ticks.jsonl", section.rotate_bytes, section.keep)
    except PermissionError as error:
        raise PermissionMissing(
            f"log.directory: {error.filename}: {error.strerror}: run as root, or name another"
        ) from error
    except OSError as error:
        place = error.filename or section.directory
        if error.errno in PASSING:
            raise HostError(f"log.directory: {place}: {error.strerror}") from error
        raise ConfigError(f"log.directory: {place}: {error.strerror}: name another") from error


def _check_metrics(section: MetricsSection | None) -> None:
    """Certificate, key and token, which a dry run does not open otherwise."""
    if section is not None:
        from rlctl.serve.metrics_server import Secrets

        try:
            Secrets(section)
        except PermissionMissing as error:
            # The user of a dry run need not be the user of the service.
            log.warning("%s: whoever serves has to read it", error)
