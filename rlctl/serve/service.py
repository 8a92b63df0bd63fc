"""The service: this host opened as configured, the control loop with all that stands around it, everything put back.

Whoever opens something closes it: `serve` the host with its watchdog (`_HeldHost`) and the tick log, `control` the
metrics endpoint and the policies.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rlctl.agents.policy import Policy
from rlctl.config.sections import InnerGuardSection, LimitsSection, MetricsSection
from rlctl.config.serve import BeWeight, LogSection, ServeConfig, StarvedSection
from rlctl.envs.actions import RISE_RATIO
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import CgroupError, CgroupGone, ConfigError, HostError, PermissionMissing, RlctlError
from rlctl.envs.host.cgroup.emergency import EmergencyPlan
from rlctl.envs.host.watch import Watch
from rlctl.envs.plant import Plant
from rlctl.envs.workload import Weight
from rlctl.log.header import header_of
from rlctl.log.record import Shares, Tee, TickLog
from rlctl.loop.control import Controller, Totals
from rlctl.loop.fast_guard import FastGuard
from rlctl.loop.narrator import JsonLines, Narrator, say
from rlctl.loop.stopping import Request
from rlctl.safety.lease import Lease
from rlctl.safety.profile import Profile
from rlctl.safety.shield import Shield
from rlctl.safety.verdict import Bound
from rlctl.serve.budget import Budgets
from rlctl.serve.build import build_live, unwritable
from rlctl.serve.control_socket import SOCKET, ControlSocket, check_socket
from rlctl.serve.dry_run import DryRun
from rlctl.serve.holds import OperatorHolds
from rlctl.serve.memory import HostMemory, Learner
from rlctl.serve.notify import Heartbeat, notify
from rlctl.serve.policy_setup import Configuration, PolicySetup
from rlctl.serve.self_test import self_test
from rlctl.serve.self_usage import SelfCheck
from rlctl.serve.start_pages import let_go
from rlctl.serve.starvation import StarvationDetector

if TYPE_CHECKING:
    from rlctl.serve.metrics import Metrics

log = logging.getLogger("rlctl.serve")

PASSING = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EBUSY))
"""What keeps a file from being opened and may be over at the next start."""


def serve(configuration: Configuration, stop: Request, *, seconds: float | None = None, as_json: bool = False) -> None:
    """Control this host as configured until a stop is requested, then put everything back, whatever happened.

    Args:
        as_json: Tell events as JSON on stdout rather than as text on stderr.

    Raises:
        ConfigError: Something that the configuration names is not there or does not fit.
        HostError: The host refuses every write, or another process holds what is needed.
        PermissionMissing: Something may not be written.
    """
    config, deciders = configuration.config, configuration.deciders
    with _HeldHost(config, stop) as held:
        host, lease = held.host, held.lease
        tell_absent(host.absent)
        command = config.be.starved.command
        self_test(host, deciders.policy, lease.pid if lease else None, profile=deciders.profile, command=command)
        holds = OperatorHolds(config.state_directory, config.schedule, config.tick_seconds)
        path, group = config.state_directory / SOCKET, config.control.group
        memory = HostMemory(config.state_directory, _learned_on(config, host), guessed=not host.lc_cpus_known)
        budgets = Budgets(config.lcs, config.tick_seconds)
        learners: tuple[Learner, ...] = (*host.learned, *budgets.each)
        for learner in learners:
            memory.recall(learner)
        with (
            contextlib.closing(_tick_log(config.log)) as tick_log,
            contextlib.closing(ControlSocket(path, group, holds.answer)),
        ):
            around = Around(
                lease, host.events, lambda: host.shares, tick_log, config.metrics, config.limits, held.abandon,
                config.be.weight, holds, budgets, config.be.starved, memory, learners,
                host.watch, config.inner_guard, host.peopled, host.absent,
            )  # fmt: skip
            reloaded = configuration.reloaded
            control(host, deciders, stop, around, reloaded=reloaded, seconds=seconds, as_json=as_json)


def dry_run(
    configuration: Configuration, stop: Request, *, seconds: float | None = None, as_json: bool = False
) -> None:
    """As `serve`, but everything is only read, decided and said; what could not be done in earnest is said too."""
    config, deciders = configuration.config, configuration.deciders
    with contextlib.closing(build_live(config, dry_run=True, sleep=stop.wait)) as host:
        tell_absent(host.absent)
        _check_metrics(config.metrics)
        check_socket(config.state_directory / SOCKET, config.control.group)
        command = config.be.starved.command
        self_test(host, deciders.policy, None, dry_run=True, profile=deciders.profile, command=command)
        plant = DryRun(host, host.actuator.controls, host.actuator.plan, host.set_weight)
        holds = OperatorHolds(None, config.schedule, config.tick_seconds)
        budgets = Budgets(config.lcs, config.tick_seconds)
        quiet = config.be.starved.model_copy(update={"command": ()})
        around = Around(
            limits=config.limits, weight=config.be.weight, holds=holds, budgets=budgets, starved=quiet,
            watch=host.watch, inner=config.inner_guard, peopled=host.peopled, absent=host.absent,
        )  # fmt: skip
        control(plant, deciders, stop, around, reloaded=configuration.reloaded, seconds=seconds, as_json=as_json)
    if os.geteuid() != 0:
        with contextlib.suppress(RlctlError):  # a group that has gone meanwhile
            if refused := unwritable(config):
                more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
                log.warning("would need root: user id %d may not write %s%s", os.geteuid(), refused[0], more)


class _HeldHost:
    """The live host and its watchdog's lease, if there is one, until everything is put back. A context manager."""

    def __init__(self, config: ServeConfig, stop: Request) -> None:
        self._config, self._stop = config, stop
        self.lease: Lease | None = None
        self._abandoned = False

    def __enter__(self) -> Self:
        config, section = self._config, self._config.watchdog
        self.host = build_live(config, sleep=self._stop.wait, replan=self._replan)
        with contextlib.ExitStack() as opened:
            opened.callback(self.host.close)
            if section.enabled:
                seconds = section.lease_seconds(config.tick_seconds), section.restore_after_seconds
                self.lease = Lease(self.host.actuator.emergency_plan(), config.state_directory, *seconds)
            opened.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        lease = self.lease
        # A start that fails, after a controller that was killed, leaves BE as restricted as that one's watchdog had it.
        left_as_it_was = self.host.inherited and not self.host.applied
        if (self._abandoned or left_as_it_was) and lease and lease.pid and not lease.lost():
            if left_as_it_was:
                seconds = self._config.watchdog.restore_after_seconds
                log.error("BE stays at the safe allocation: the watchdog waits for another start for %g s", seconds)
            return
        with contextlib.ExitStack() as closing:
            if lease:
                closing.callback(lease.close)
            closing.callback(self.host.close)
            if lease:
                closing.callback(lease.leave)  # before the originals go back, or the watchdog would undo that

    def abandon(self) -> None:
        """A loop that fails sets nobody free: the watchdog keeps BE safe for a successor, or gives it back to none."""
        self._abandoned = True

    def _replan(self, plan: EmergencyPlan) -> None:
        if self.lease:  # it is made of the host's first plan
            self.lease.replan(plan)


@dataclass(frozen=True, slots=True)
class Around:
    """What stands around the loop on a live host; a plant without a host has nothing of it.

    Attributes:
        events: What happened to the host's groups since the last call, a line for each.
        tick_log: Takes every tick; None keeps no record.
        metrics: Section of the metrics endpoint; None listens nowhere.
        failed: Called when the loop ends with an error, before anything is closed.
        holds: What an operator asks for meanwhile.
        budgets: Error budgets of the LCs.
        starved: When BE counts as starved, and who is told.
        memory: Keeps what is learned of this host.
        learners: Who learns of it beside the policy.
        watch: Looks at the host between the ticks; None where nothing may happen there.
        inner: Section of the guard that answers its looks.
        peopled: Answers whether a process is in BE's groups.
        absent: Why there are no readings of some names.
    """

    lease: Lease | None = None
    events: Callable[[], tuple[str, ...]] = tuple
    shares: Callable[[], Shares] = dict
    tick_log: TickLog | None = None
    metrics: MetricsSection | None = None
    limits: LimitsSection = field(default_factory=LimitsSection)
    failed: Callable[[], None] = lambda: None
    weight: BeWeight = "minimum"
    holds: OperatorHolds | None = None
    budgets: Budgets = field(default_factory=lambda: Budgets({}, 1.0))
    starved: StarvedSection = field(default_factory=StarvedSection)
    memory: HostMemory = field(default_factory=lambda: HostMemory(None, {}))
    learners: tuple[Learner, ...] = ()
    watch: Watch | None = None
    inner: InnerGuardSection = field(default_factory=InnerGuardSection)
    peopled: Callable[[], bool] = lambda: True
    absent: Mapping[str, str] = field(default_factory=dict)


def control(
    plant: Plant,
    deciders: PolicySetup,
    stop: Request,
    around: Around | None = None,
    *,
    reloaded: Callable[[], PolicySetup | None] = lambda: None,
    seconds: float | None = None,
    as_json: bool = False,
) -> Totals:
    """Control a plant until a stop is requested.

    Args:
        reloaded: Asked before every tick for others to go on with.
        as_json: Tell events as JSON on stdout rather than as text on stderr.
    """
    around, lines = around or Around(), JsonLines() if as_json else None
    _weigh(plant, deciders.policy, around.weight)  # first, for the plant's limits say which weight it is
    shield, holds = Shield(deciders.profile, plant.limits), around.holds or OperatorHolds(None, (), plant.tick_seconds)
    narrator = Narrator(lines or say, plant.limits.cpus)
    budgets = around.budgets
    starving = StarvationDetector(around.starved, plant.limits.cpus, plant.tick_seconds, around.peopled)
    told = (narrator, Heartbeat(), SelfCheck(around.limits), holds, budgets, starving)
    recorder = Tee(*([around.tick_log] if around.tick_log else []), *told)

    def events() -> tuple[str, ...]:
        return (*around.events(), *starving.events())

    def allowed(limits: Limits) -> tuple[Bound, ...]:
        return (*holds.bounds(limits), *budgets.bounds(limits))

    controller = Controller(
        plant, deciders.policy, shield, recorder, around.lease, events, around.shares, allowed,
        around.memory.recall,
    )  # fmt: skip
    _guard_between(controller, around)
    with contextlib.ExitStack() as opened:
        opened.callback(notify, "STOPPING=1")
        opened.callback(lambda: controller.seat.policy.close())
        opened.callback(lambda: around.memory.keep((controller.seat.observer.experience, *around.learners)))
        opened.callback(starving.close)
        metrics = _exposed(controller, shield, around, starving, opened)
        running = _Running(controller, around, metrics, reloaded)
        running.announce(deciders.policy, shield)
        let_go()
        try:
            controller.run(seconds=seconds, stop=stop, between=running.between_ticks)
        except Exception:
            around.failed()
            raise
        _farewell(controller.totals, around.tick_log.dropped if around.tick_log else 0, lines)
    return controller.totals


class _Running:
    """A controller, the records that name its policy and shield, and what a reload exchanges."""

    def __init__(
        self,
        controller: Controller,
        around: Around,
        metrics: Metrics | None,
        reloaded: Callable[[], PolicySetup | None],
    ) -> None:
        self._controller, self._tick_log, self._metrics = controller, around.tick_log, metrics
        self._weight, self._reloaded = around.weight, reloaded
        self._memory, self._learners, self._budgets = around.memory, around.learners, around.budgets
        self._absent = around.absent

    def announce(self, policy: Policy, shield: Shield) -> None:
        """Say who decides from now on, before the first tick of theirs."""
        plant = self._controller.plant
        described = policy.name, shield.profile.name, shield.digest, _range_in_words(plant.limits)
        log.info("policy %s under shield %s (%s); %s", *described)
        doubts = untrained_shield(policy, shield), too_slow_a_rise(policy, shield, plant.tick_seconds)
        for doubt in filter(None, (*doubts, *lacking(policy, self._absent))):
            log.warning("%s", doubt)
        if self._metrics is not None:
            self._metrics.renamed(policy.name, shield.profile.name, shield.digest)
        if self._tick_log is not None:
            self._tick_log.header = header_of(plant, policy, shield)
            self._tick_log.renew_header()

    def between_ticks(self) -> None:
        """What has time until the next tick."""
        self._memory.keep_if_due((self._controller.seat.observer.experience, *self._learners))
        self._exchange()
        self._controller.seat.observer.price = self._budgets.price

    def _exchange(self) -> None:
        """Go on with another policy and shield, if a reload brought some."""
        deciders = self._reloaded()
        if deciders is None:
            return
        controller, policy = self._controller, deciders.policy
        before = controller.seat.policy
        try:
            _weigh(controller.plant, policy, self._weight)
        except RlctlError as error:
            log.error("not reloaded, all stays as it was: %s", error)
            policy.close()
            return
        shield = _shield(deciders.profile, policy, controller, self._weight)
        log.info("reloaded: policy %s, shield %s", policy.name, shield.profile.name)
        self.announce(policy, shield)
        self._memory.keep((controller.seat.observer.experience,))
        controller.exchange(policy, shield)
        before.close()


def _shield(profile: Profile, policy: Policy, controller: Controller, wanted: BeWeight) -> Shield:
    """A shield of these constants: the one that rules already if it is such, since its guards know this host.

    Not where BE gets another CPU weight by the policy: what BE has was earned beside the one before.
    """
    rules, shield = controller.seat.shield, Shield(profile, controller.plant.limits)
    weighs_the_same = _weight_of(controller.seat.policy, wanted) is _weight_of(policy, wanted)
    same = rules and weighs_the_same and (rules.digest, rules.limits) == (shield.digest, shield.limits)
    return rules if rules and same else shield


def _guard_between(controller: Controller, around: Around) -> None:
    """Have somebody answer what is seen between the ticks, if the configuration wants that."""
    watch, section = around.watch, around.inner
    if watch is None or not section.enabled:
        return
    slos = {name: lc.slo for name, lc in watch.lcs.items()}
    inner = FastGuard(controller.plant, slos, section.most_false_alarms, around.lease, people=around.holds)
    controller.inner, watch.look = inner, inner.look
    controller.recorder = Tee(inner, controller.recorder)
    log.info("inner guard looks at %s", watch)


def _learned_on(config: ServeConfig, plant: Plant) -> dict[str, object]:
    """What must not have changed if what was learned of a host is to say anything of it.

    Of the workload not what every start of the same service has anew, a process id or a pod.
    """
    beside = {"error_budget_percent"}
    objectives = {name: lc.slo.model_dump(mode="json", exclude=beside) for name, lc in config.lcs.items()}
    services = {
        name: lc.workload.model_dump(mode="json")
        for name, lc in config.lcs.items()
        if lc.workload.kind in ("cgroup", "unit")
    }
    sources = {
        name: {"kind": lc.latency.kind, "window_seconds": getattr(lc.latency, "window_seconds", None)}
        for name, lc in config.lcs.items()
    }
    limits = asdict(plant.limits)
    del limits["least_weight"]  # BE's weight says it, and nobody has set that yet
    return {
        "limits": limits,
        "slo": objectives,
        "service": services,
        "latency source": sources,
        "quota period": config.quota_period_milliseconds,
        "BE's weight": config.be.weight,
        "control period": plant.tick_seconds,
    }


def _exposed(
    controller: Controller, shield: Shield, around: Around, starving: StarvationDetector, opened: contextlib.ExitStack
) -> Metrics | None:
    """Metrics with their endpoint, if there is to be one."""
    if around.metrics is None:
        return None
    from rlctl.serve.metrics import Metrics  # and what they need, only where somebody is to scrape
    from rlctl.serve.metrics_server import MetricsServer

    plant, totals, lease, tick_log = controller.plant, controller.totals, around.lease, around.tick_log

    def counted() -> dict[str, int]:
        return {
            "policy_errors": totals.policy_errors,
            "tick_errors": totals.tick_errors,
            "log_records_dropped": tick_log.dropped if tick_log else 0,
            "watchdog_restarts": lease.restarts if lease else 0,
        }

    name = controller.seat.policy.name
    described = name, (shield.profile.name, shield.digest)
    metrics = Metrics(
        *described, plant.limits, plant.tick_seconds, counted, around.budgets.each, lambda: starving.starved,
        lambda: controller.inner.heeded if controller.inner else (),
    )  # fmt: skip
    server = MetricsServer(metrics, around.metrics, fresh_seconds=3.0 * plant.tick_seconds + 1.0)
    opened.callback(server.close)
    controller.recorder = Tee(metrics, controller.recorder)
    return metrics


def _weight_of(policy: Policy, wanted: BeWeight) -> Weight | None:
    """BE's weight by the configuration, or the policy's own where that is less; None: it is left as it is."""
    if wanted == "leave":
        return None
    return Weight.IDLE if Weight.IDLE in (wanted, policy.weight) else Weight.MINIMUM


def _weigh(plant: Plant, policy: Policy, wanted: BeWeight) -> None:
    """Give BE the weight of `_weight_of`."""
    if (weight := _weight_of(policy, wanted)) is None:
        log.info("BE keeps the CPU weight that it has (be.weight: leave)")
        if policy.weight is not Weight.EQUAL:
            log.warning("policy %s reckons with %s CPU weight for BE", policy.name, policy.weight)
        return
    log.info("BE's CPU weight: %s, unless a group has less (be.weight: %s)", weight, wanted)
    try:
        plant.set_weight(weight)
    except CgroupError as error:
        if weight is Weight.MINIMUM or isinstance(error, CgroupGone):
            raise
        log.warning("%s: BE gets the minimum CPU weight instead", error)
        plant.set_weight(Weight.MINIMUM)


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
        except PermissionMissing as error:  # the user of a dry run need not be who serves
            log.warning("%s: whoever serves has to read it", error)


def tell_absent(absent: Mapping[str, str]) -> None:
    """Log the readings that there will never be."""
    by_reason: dict[str, list[str]] = {}
    for name in sorted(absent):
        by_reason.setdefault(absent[name], []).append(name)
    if by_reason:
        reasons = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
        log.info("missing readings: %s", reasons)


def lacking(policy: Policy, absent: Mapping[str, str]) -> Iterator[str]:
    """A line for each reading that a policy needs and will never have."""
    for name in policy.needs:
        if name in absent:
            yield f"policy {policy.name} needs {name}, which is missing: {absent[name]}"


def untrained_shield(policy: Policy, shield: Shield) -> str:
    """That a learned policy never met this shield in training, in one line; empty where it did or nothing is known.

    No reason to refuse it: the shield's word is the last one, whoever it was that the policy learned with.
    """
    met = policy.trained_with
    if not met or shield.digest in met:
        return ""
    now = f"{shield.profile.name} ({shield.digest})"
    return f"policy {policy.name} was trained with shield {', '.join(met.values())}, not with {now}"


def too_slow_a_rise(policy: Policy, shield: Shield, tick_seconds: float) -> str:
    """That the shield allows less growth in a tick than a move of a masked policy asks for; empty where it does not.

    Such a policy is not told of moves that the shield would cut, and so never asks for more than small levels.
    """
    gap_seconds = shield.profile.growth_gap_seconds  # of a longer tick no more counts
    grown = shield.profile.growth_ratio_per_second * min(tick_seconds, gap_seconds)
    if not policy.masked or grown >= RISE_RATIO:
        return ""
    least = RISE_RATIO / shield.profile.growth_ratio_per_second
    longer = f"tick_seconds of {least:.2g} or more" if least <= gap_seconds else "another shield"
    return (
        f"policy {policy.name} rises by {100 * RISE_RATIO:g} % of BE's CPUs a tick, and shield {shield.profile.name} "
        f"allows {100 * grown:.2g}: BE stays small; take {longer}, or another policy"
    )


def _range_in_words(limits: Limits) -> str:
    cpus = "1 CPU" if limits.cpus == 1 else f"{limits.cpus} CPUs"
    quota = f"a quota of {limits.min_quota_cpus:g} CPU and more, in {limits.levels} levels"
    return f"BE may get {cpus}, {quota}; the LC has {limits.lc_cpus:g}"


def _farewell(totals: Totals, dropped: int, lines: JsonLines | None) -> None:
    counts = asdict(totals) | {"dropped_records": dropped}
    log.info(
        "leaving after %(ticks)d ticks: %(overrides)d overrides, %(policy_errors)d policy errors, %(write_errors)d "
        "write errors, %(tick_errors)d ticks that went wrong, %(missed_deadlines)d missed deadlines, "
        "%(dropped_records)d records lost",
        counts,
    )
    if lines:
        lines.write({"event": "end", **counts})
