"""The service: the control loop with all that stands around it, until it is told to stop, and everything put back."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from rlctl.agents.policy import Policy
from rlctl.config.metrics import LimitsSection, MetricsSection
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import RlctlError
from rlctl.envs.plant import Plant
from rlctl.envs.workload import Weight
from rlctl.loop.control import Controller, Totals
from rlctl.loop.narrator import JsonLines, Narrator, say
from rlctl.loop.record import NullRecorder, Shares, Tee, TickLog
from rlctl.loop.stopping import Request
from rlctl.safety.lease import Lease
from rlctl.safety.profile import Profile
from rlctl.safety.shield import Shield
from rlctl.serve.deciding import untrained_shield
from rlctl.serve.notify import Heartbeat, notify
from rlctl.serve.self_usage import SelfCheck
from rlctl.serve.start_pages import let_go
from rlctl.ticklog.header import header_of

if TYPE_CHECKING:
    from rlctl.serve.metrics import Metrics

__all__ = ["Around", "serve"]

log = logging.getLogger("rlctl.serve")


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
    lines, around = JsonLines() if as_json else None, around or Around()
    with contextlib.ExitStack() as leaving:
        if tick_log is not None:
            leaving.callback(tick_log.close)
        giving_back = leaving.enter_context(_giving_back(plant, around.lease))
        leaving.callback(notify, "STOPPING=1")
        shield = Shield(profile, plant.limits)
        own = Tee(tick_log or NullRecorder(), Narrator(lines or say), Heartbeat(), SelfCheck(around.limits))
        controller = Controller(plant, policy, shield, own, around.lease, around.events, around.shares)
        leaving.callback(lambda: controller.seat.policy.close())
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
        if (found := self._reread()) is None:
            return
        controller, (policy, profile) = self._controller, found
        before, shield = controller.seat.policy, Shield(profile, controller.plant.limits)
        try:
            _weigh(controller.plant, policy)
        except RlctlError as error:
            log.error("not reloaded, all stays as it was: %s", error)
            policy.close()
            return
        self.announce(policy, shield)
        controller.exchange(policy, shield)
        before.close()


def _expose(
    controller: Controller, tick_log: TickLog | None, around: Around, leaving: contextlib.ExitStack
) -> Metrics | None:
    """Open the metrics endpoint, if there is to be one."""
    if around.metrics is None or controller.seat.shield is None:
        return None
    from rlctl.serve.metrics import Metrics, Sources  # and what they need, only where somebody is to scrape
    from rlctl.serve.metrics_server import MetricsServer

    plant, shield, lease = controller.plant, controller.seat.shield, around.lease
    name = controller.seat.policy.name
    metrics = Metrics(name, (shield.profile_name, shield.digest), plant.limits, plant.tick_seconds)
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
    if policy.weight is Weight.MINIMUM:
        plant.set_weight(policy.weight)


def _range_in_words(limits: Limits) -> str:
    cpus = "1 CPU" if limits.cpus == 1 else f"{limits.cpus} CPUs"
    quota = f"a quota of {limits.min_quota_cpus:g} CPU and more, in {limits.levels} levels"
    return f"BE may get {cpus}, {quota}; the LC has {limits.lc_cpus:g}"


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
