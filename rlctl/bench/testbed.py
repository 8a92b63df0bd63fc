"""Managers side by side on a live testbed: who runs in which order, and one run."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from rlctl import __version__
from rlctl.agents import catalogue
from rlctl.agents.managers.heracles_loops import NETWORK_SECONDS, be_link_ratio
from rlctl.agents.managers.prm_model import PrmModel
from rlctl.agents.managers.table import Levels, read_table
from rlctl.agents.policy import Policy
from rlctl.bench.participants import NEEDS_MODEL, fitted, policy_for
from rlctl.bench.score import LiveRun, held_percent, idle
from rlctl.bench.sweep import bench_sweep, needs_sweep, swept_levels, table_options
from rlctl.config.sections import InnerGuardSection
from rlctl.envs.experience import SafeLevelMemory
from rlctl.envs.host.max_load import MaxLoad
from rlctl.envs.reins import LINK_CARRIED, LINK_SENT, OTHERS
from rlctl.envs.telemetry import Missing, Telemetry, number_or_nan
from rlctl.envs.testbed.generator_source import LAG
from rlctl.envs.testbed.scenario import LiveScenario
from rlctl.envs.testbed.session import Testbed
from rlctl.envs.testbed.workloads import Work
from rlctl.envs.workload import Weight
from rlctl.log.kept import MemoryRecorder
from rlctl.log.progress import say
from rlctl.log.record import Tee, header_of
from rlctl.loop.control import Controller
from rlctl.loop.fast_guard import FastGuard
from rlctl.safety.profile import Profile
from rlctl.safety.shield import Shield

FRESH_SECONDS = 90.0
"""A maximum load that was found so long ago is searched anew before the next repeat: on a busy machine it moves."""

LATE_RATIO = 0.1
"""Of the target: who sends later measures itself."""

AROUND = 8
"""Ticks before and after another rein is taken that are looked at."""

LEAD_TICKS = 3
"""So many windows of a run, before BE comes, count for nobody where services go on: they are a controller's start."""

LESS_RATIO = 0.95
"""A maximum load that is searched anew on the same quiet host is no nearer to the one before."""


@dataclass(frozen=True, slots=True)
class LivePlan:
    """What to measure on a live testbed.

    Attributes:
        repeats: Rounds: in each every manager runs once, in an order of its own.
        profile: Constants of the shield for shielded policies, already on the scenario's time scale.
        threshold_model: PRM's model; None where it is not needed or not recorded yet.
        levels: What `table` looks up; none where it is not needed or not swept yet.
        adapt_seconds: So long who learns of the host, or is shielded, watches it before it is measured.
    """

    scenario: LiveScenario
    managers: tuple[str, ...]
    repeats: int
    profile: Profile
    threshold_model: PrmModel | None = None
    levels: Levels = ()
    adapt_seconds: float = 0.0

    def order(self, repeat: int) -> tuple[str, ...]:
        """Managers of one round, in a fresh order, which is the same wherever it is asked for.

        After as many rounds as managers, twice as many where these are odd, each has had each place as often. And each
        other one came as often before it, whose queue or cache it would inherit (Williams, 1949).
        """
        drawn = np.random.default_rng(0).permutation(self.managers)
        turn, back = (repeat, 0) if len(drawn) % 2 == 0 else divmod(repeat, 2)
        # 0, 1, -1, 2, -2, ...: neighbours lie each time further apart, so no turn of it has one of these pairs again.
        places = [turn + ((place + 1) // 2) * (1 if place % 2 else -1) for place in range(len(drawn))]
        return tuple(str(drawn[place % len(drawn)]) for place in (places[::-1] if back else places))

    def policy(self, name: str) -> Policy:
        """A new policy of this name, as this scenario wants it."""
        swept = table_options(name, self.scenario, self.levels)
        return policy_for(name, self.scenario, self.threshold_model, swept)

    def weight(self, name: str) -> Weight:
        """BE's CPU weight: the scenario's, but for `none` and the answers of the kernel, who are that alone."""
        own = catalogue.OWN_WEIGHTS.get(name, Weight.MINIMUM)
        return own if catalogue.has_own_weight(name) else self.scenario.be.weight

    def adapts(self, name: str) -> bool:
        """Whether its runs are those of a service that goes on: policy and guards remember."""
        policy = self.policy(name)
        return self.adapt_seconds > 0.0 and (policy.learns or policy.shielded)

    @property
    def weights(self) -> dict[str, str]:
        """BE's CPU weight under each manager, for the tables."""
        return {name: str(self.weight(name)) for name in self.managers}

    def described(self, load: str) -> str:
        """What a table has to say beneath it, with a phrase on the maximum load."""
        scenario = self.scenario
        adapted = [name for name in self.managers if self.adapts(name)]
        before = f"{', '.join(adapted)} had watched the host for {self.adapt_seconds:g} s before; " if adapted else ""
        own = [f"{name}: {self.weight(name)}" for name in self.managers if catalogue.has_own_weight(name)]
        others = f" ({', '.join(own)})" if own else ""
        return (
            f"{scenario.name}: {self.repeats} x {scenario.duration_seconds:g} s, interleaved; "
            f"p{scenario.slo.quantile_percent:g} <= {scenario.slo.target_milliseconds:g} ms over "
            f"{scenario.tick_seconds:g}-s windows; {load}; "
            f"{'' if scenario.source is None else f'policies told by {scenario.source}, at a TCP port; '}"
            f"BE weight {scenario.be.weight}{others}; "
            f"shield {self.profile.name} ({self.profile.digest}) for those shielded: "
            f"{', '.join(name for name in self.managers if self.policy(name).shielded) or 'none'}; "
            f"{before}published periods / {scenario.time_scale:g}; a published core is {scenario.core_cpus:g} CPU. "
            "Intervals: Wilson over windows (which are not independent), Student's t over repeats."
        )


@dataclass(frozen=True, slots=True)
class Alone:
    """What begins a repeat, since a host's speed drifts: BE running alone, and the LC's maximum load with BE absent."""

    work: Work
    max_load_rps: float
    host: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of a manager, and what a reader of the manager's row must know."""

    run: LiveRun
    remarks: tuple[str, ...]


NO_LOAD = MaxLoad("", 0.0).state_dict()
"""Of a maximum load that nobody told and nothing taught yet."""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """A manager that has run on the testbed before, as a service that goes on.

    Attributes:
        before: Its last run, after which policy and guards remember what they saw; None before the first.
        remark: How it did while nothing counted, in words.
    """

    before: LiveRun | None = None
    remark: str = ""

    @property
    def reins(self) -> Mapping[str, object]:
        """What levels of the link and the disks were shares of."""
        return self.before.reins if self.before else {}

    def go_on(self, experience: SafeLevelMemory, shield: Shield | None) -> None:
        """Give policy and guards what they remembered."""
        if (run := self.before) is None:
            return
        if run.experience.get(experience.name):
            experience.restore_state(run.experience[experience.name])
        if shield:
            shield.resume(run.guards, run.ticks[-1].telemetry)


NEW = EarlierRun()
"""One that begins from nothing."""


@dataclass(frozen=True)
class OnTestbed:
    """What a host does: it starts its testbed, and then measures one thing at a time."""

    plan: LivePlan
    testbed: Callable[[LiveScenario, Callable[[str], None]], AbstractContextManager[Testbed]] = Testbed

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Callable[[str], Alone | Measured]]:
        """Yields what runs a manager by its name; the empty name is what begins a repeat, which comes first.

        Those that learn of the host watch it once, in front of the first repeat, each under a load that was just
        searched. What they learned, and what was swept for `table`, goes along where the maximum is another one later:
        it is in shares of what the LC bears.
        On a cluster its messages go to the worker's log, which `rlctl -v` shows on the driver.
        """
        with self.testbed(self.plan.scenario, say) as bed:
            plan, alone = with_levels(with_model(self.plan, bed), bed), Work({}, 0.0)
            services = {name: NEW for name in plan.managers if plan.adapts(name)}

            def search() -> None:
                if time.monotonic() - bed.searched_seconds > FRESH_SECONDS:
                    bed.search()

            def begin() -> Alone:
                nonlocal alone
                search()
                alone = bed.solo()
                return Alone(alone, bed.slo.max_load_rps, this_host())

            def step(manager: str) -> Alone | Measured:
                if not manager:
                    for name, known in services.items():
                        if known is NEW:
                            search()
                            services[name] = watch(plan, bed, name)
                    return begin()
                service, policy = services.get(manager, NEW), plan.policy(manager)
                run = run_once(plan, bed, policy, alone, service)
                if manager in services:
                    services[manager] = replace(service, before=run)
                return Measured(run, tuple(filter(None, (*policy.remarks, service.remark, *gaps(run), *moves(run)))))

            yield step


def gaps(run: LiveRun) -> Iterator[str]:
    """Where figures of a run are not what they seem: no answer, no latency, late ticks, a late client."""
    ticks = run.ticks
    if why := [tick.fallback for tick in ticks if tick.fallback]:
        yield f"no answer in {len(why)} of {len(ticks)} ticks, in which BE was frozen: {why[0]}"
    tails = [each.latency_seconds for each in run.telemetry if not idle(each)]
    if lost := [tail for tail in tails if isinstance(tail, Missing)]:
        missed = f"no latency in {len(lost)} of {len(ticks)} windows, which count as missed and in no worst one"
        yield f"{missed}: {lost[0].detail or lost[0].why}"
    lags = [lag for each in run.telemetry if (lag := _counter(each, LAG)) > LATE_RATIO * each.target_seconds]
    if lags:
        late_ms = 1e3 * max(lags)
        yield f"the load generator sent late (p95 up to {late_ms:.2g} ms) in {len(lags)} of {len(ticks)} windows"
    if run.telemetry[0] is not ticks[0].telemetry:
        agree = sum(tick.telemetry.missed is seen.missed for tick, seen in zip(ticks, run.telemetry, strict=True))
        yield f"its source put {agree} of {len(ticks)} windows on the same side of the target as the client"
    if late := ticks[-1].missed_deadlines:
        yield f"{late} deadlines missed: as many windows are longer than a period"


def moves(run: LiveRun) -> Iterator[str]:
    """When another rein was taken, with what was missed until then, and what BE sent on the link around it."""
    first = run.ticks[0].telemetry.time_seconds
    for place, tick in enumerate(run.ticks[2:], 2):  # in the first one a rein that was in hand before is taken again
        if (rein := tick.telemetry.rein) == (before := run.ticks[place - 1].telemetry.rein):
            continue
        around = run.ticks[max(place - AROUND, 0) : place], run.ticks[place + 1 :][:AROUND]
        sent = [[rate for one in part if not math.isnan(rate := _sent_mbit(one.telemetry))] for part in around]
        means = f"; it sent {' and '.join(f'{fmean(part):.1f}' for part in sent)} Mbit/s" if all(sent) else ""
        late = sum(one.telemetry.missed is not False for one in around[0])
        yield (
            f"{tick.telemetry.time_seconds - first:.0f} s into a run BE was held by its {rein}, not by its {before}: "
            f"{late} of the {min(place, AROUND)} windows before were missed"
            f"{means and f'{means} in {AROUND} s before and after'}"
        )


def _sent_mbit(telemetry: Telemetry) -> float:
    """What BE sent on the link; nan where nobody counts it."""
    all_ratio, others, carried = (_counter(telemetry, name) for name in (LINK_SENT, OTHERS, LINK_CARRIED))
    return (all_ratio - others) * carried * 8e-6


def _counter(telemetry: Telemetry, name: str) -> float:
    return number_or_nan(telemetry.counter(name))


def this_host() -> dict[str, str]:
    """What a reader must know of where it was measured."""
    return {"kernel": platform.release(), "machine": platform.machine(), "rlctl": __version__}


def with_model(plan: LivePlan, bed: Testbed) -> LivePlan:
    """The plan with PRM's threshold model, recorded while the LC runs alone if a manager needs one.

    Raises:
        ConfigError: scikit-learn is not installed.
    """
    if not NEEDS_MODEL & set(plan.managers):
        return plan
    scenario, recorder = plan.scenario, MemoryRecorder()
    say(f"recording the LC alone for PRM's threshold model, {scenario.duration_seconds:g} s ...")
    bed.settle(scenario.trace)
    bed.follow(scenario.trace)
    Controller(bed.plant, catalogue.build("frozen"), None, recorder).run(seconds=scenario.duration_seconds)
    return replace(plan, threshold_model=fitted(recorder.ticks, bed.plant.limits.lc_cpus, scenario.time_scale))


def with_levels(plan: LivePlan, bed: Testbed) -> LivePlan:
    """The plan with what `table` looks up, swept on this very testbed if it takes part: a host's capacity moves."""
    scenario = plan.scenario
    if not needs_sweep(plan.managers, scenario):
        file = scenario.managers.get("table", {}).get("file") if "table" in plan.managers else None
        if file and (swept_rps := read_table(file).max_load_rps) < LESS_RATIO * (here_rps := bed.slo.max_load_rps):
            say(f"{file} was swept with {swept_rps:g} rps, here it is {here_rps:g}: its loads are others")
        return plan
    plan_of_sweep = bench_sweep(scenario)
    minutes = plan_of_sweep.measuring_seconds / 60.0
    say(f"sweeping the host for `table`, {len(plan_of_sweep.points)} cells, about {minutes:.0f} min ...")
    return replace(plan, levels=swept_levels(scenario, bed))


def watch(plan: LivePlan, bed: Testbed, name: str) -> EarlierRun:
    """A manager after one long run that does not count; load and link go through a run's time again and again."""
    say(f"{name} watches the host, {plan.adapt_seconds:g} s ...")
    run = run_once(plan, bed, plan.policy(name), seconds=plan.adapt_seconds)
    cold = f"QoS {held_percent(run):.1f} %"
    return EarlierRun(run, f"had watched the host for {plan.adapt_seconds:g} s before: {cold}")


def run_once(
    plan: LivePlan,
    bed: Testbed,
    policy: Policy,
    alone: Work | None = None,
    service: EarlierRun = NEW,
    seconds: float | None = None,
) -> LiveRun:
    """One manager, once: settle, start BE, control for the scenario's duration, count BE's work.

    Args:
        alone: What its work is compared with; without it the ratio is nan.
        service: What goes on; it begins at the safe allocation all the same, some windows before BE comes.
        seconds: How long, where it is not as long as the scenario.
    """
    plant, scenario = bed.plant, plan.scenario
    plant.set_weight(Weight.EQUAL)  # a lower one leaves the idle class of the run before
    plant.set_weight(plan.weight(policy.name))  # before anybody reads the limits, which say which it is
    shield = Shield(plan.profile, plant.limits) if policy.shielded else None
    recorder = MemoryRecorder(header_of(plant, policy, shield))
    controller = Controller(plant, policy, shield, recorder)
    controller.restore_state = lambda experience: service.go_on(experience, shield)
    lead, begun = LEAD_TICKS if plan.adapt_seconds and alone else 0, (0.0, 0.0)

    def begin() -> None:
        """BE comes, at the level that the controller has come to, and from here on all counts."""
        nonlocal begun
        if controller.totals.ticks != lead:
            return
        level = plant.current
        bed.start_be()
        plant.apply(level)
        bed.follow(scenario.trace, scenario.duration_seconds)
        recorder.ticks.clear()
        recorder.header = {}  # what the guards remember there is of a tick that is gone
        begun = sum(os.times()[:4]), time.monotonic()  # with what it ran, as Heracles' tc
        plant.reset()

    bed.settle(scenario.trace)
    for one in plant.learned:  # by the manager itself, not by the one before
        one.restore_state(service.before.experience[one.name] if service.before else NO_LOAD)
    reined = bed.reins(service.reins) if policy.moves_reins else contextlib.nullcontext()
    with divide_resource(policy.name, scenario, bed), reined as reins, fast_guard(scenario, bed, shield) as guard:
        if guard:
            controller.fast_guard, controller.recorder = guard, Tee(recorder, guard)
        ticks = lead + max(round((seconds or scenario.duration_seconds) / scenario.tick_seconds), 1)
        controller.run(ticks=ticks, between=begin)
        cpu_seconds, monotonic_seconds = begun
        used_ratio = (sum(os.times()[:4]) - cpu_seconds) / (time.monotonic() - monotonic_seconds)
        work = bed.stop_be()
        learners: list[SafeLevelMemory | MaxLoad] = [*controller.runner.observer.experiences, *plant.learned]
        experience = {one.name: one.state_dict() for one in learners}
        known = reins.state_dict() if reins else {}
    guards = shield.state if shield else {}
    done_ratio = work.share_of(alone) if alone else math.nan
    return LiveRun(
        policy.name, tuple(recorder.ticks), done_ratio, used_ratio, recorder.header, experience, guards, known
    )


@contextlib.contextmanager
def fast_guard(scenario: LiveScenario, bed: Testbed, shield: Shield | None) -> Iterator[FastGuard | None]:
    """The guard between the ticks for as long as the context lasts, where this scenario has one; None: it has none."""
    watch = bed.plant.watch if shield and scenario.fast_guard else None
    if watch is None:
        yield None
        return
    guard = FastGuard(bed.plant, {"lc": bed.slo}, InnerGuardSection().most_false_alarms, note_cut=bed.plant.note_cut)
    watch.look = guard.look
    try:
        yield guard
    finally:
        watch.look = None


def divide_resource(name: str, scenario: LiveScenario, bed: Testbed) -> AbstractContextManager[None]:
    """Link or disk as the kernel divides it: as its answer was told, or as Heracles' network loop sets it, told too.

    That loop is faster than a tick, like the published one; its period is divided like all others.
    """
    if name == "heracles" and scenario.link:
        return bed.ceiling(be_link_ratio, NETWORK_SECONDS / scenario.time_scale)
    if (answer := catalogue.answer_of(name)) is None:
        return contextlib.nullcontext()
    return bed.divide_resource(answer.resource, answer.rate_ratio, follows=answer.follows)
