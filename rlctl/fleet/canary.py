"""A new bundle rolled out over a fleet in stages, beside hosts that keep the old one, and back on a regression.

Only what a real fleet knows decides: how hosts with the new bundle fare against others of their kinds, and the new
bundle's failures, overrides and drift. What the rollout cost is computed afterwards by running the same hosts without
it, which only a simulator can. As on a live host, what hosts have taught until then stays when their policy changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from rlctl import __version__
from rlctl.agents import catalogue
from rlctl.envs.arrays import Array, Flags
from rlctl.envs.errors import ConfigError
from rlctl.envs.sim.noise import uniforms
from rlctl.fleet.compare import Effect, compare, least_chance
from rlctl.fleet.config import TICK_SECONDS, CanaryPlan
from rlctl.fleet.plan import RolloutPlan
from rlctl.fleet.roster import Roster
from rlctl.fleet.simulation import SimulatedFleet, Tally
from rlctl.work.workforce import HERE, Workforce

ORDER = 6002
"""Channel of the noise generator: the order in which hosts get the new bundle."""

OLD, NEW = 0, 1
"""Places of the policies in a fleet that is rolled over."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the fleet: what the stage has come to so far.

    Attributes:
        stage: Number of the stage, from 1.
        misses: Missed windows more than among the other hosts, points; None where there are no others.
        be: BE throughput less than among the other hosts, points; None where there are no others.
        stop: Why the bundle is rolled back; empty when the rollout goes on.
    """

    minutes: float
    stage: int
    treated: int
    misses: Effect | None
    be: Effect | None
    failed_ratio: float
    override_ratio: float
    drift_ratio: float
    stop: str = ""

    def as_json(self) -> dict[str, object]:
        """All attributes by name."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value.as_json() if isinstance(value, Effect) else value for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class RolloutOutcome:
    """What came of a rollout.

    Attributes:
        ever: Hosts that ever ran the new bundle; bool, shape (hosts,).
        missed_windows: Windows that they missed from the rollout's begin to the end of what was watched.
        missed_without: Windows that the same hosts miss without the rollout.
        be_hours: BE work that they did meanwhile, in hours of BE running alone, less that without the rollout.
    """

    plan: RolloutPlan
    looks: tuple[Look, ...]
    ever: Flags
    host_minutes: float
    missed_windows: int
    missed_without: int
    be_hours: float

    @property
    def stopped(self) -> str:
        """Why the bundle was rolled back; empty when it was promoted."""
        return self.looks[-1].stop

    def as_json(self) -> dict[str, object]:
        """The result by name; equal plans give equal results, whoever simulates them."""
        plan = self.plan
        return {
            "schema": 1,
            "fleet": plan.fleet.name,
            "fleet_digest": plan.fleet.digest,
            "hosts": plan.hosts,
            "seed": plan.seed,
            "from": plan.old,
            "to": plan.new,
            "shield": plan.shield.name,
            "shield_digest": plan.shield.digest,
            "canary": plan.canary.model_dump(mode="json"),
            "rlctl": __version__,
            "promoted": not self.stopped,
            "stopped": self.stopped,
            "hosts_ever_on_new": int(self.ever.sum()),
            "host_minutes_on_new": self.host_minutes,
            "missed_windows": self.missed_windows,
            "missed_without": self.missed_without,
            "be_hours_gained": round(self.be_hours, 6),
            "looks": [look.as_json() for look in self.looks],
        }


def hosts_of_stage(roster: Roster, percent: float) -> Flags:
    """Hosts that have the new bundle in a stage: this share of each kind, at least one host, chosen by chance.

    The hosts of a later stage include those of all earlier ones.
    """
    chosen = np.zeros(len(roster.places), np.bool_)
    order = uniforms(roster.keys, 0, 1, ORDER)[0]
    for kind in np.unique(roster.kinds):
        here = np.flatnonzero(roster.kinds == kind)
        number = max(int(np.ceil(len(here) * percent / 100.0 - 1e-9)), 1)
        chosen[here[np.argsort(order[here], kind="stable")[:number]]] = True
    return chosen


def judge(look: Look, canary: CanaryPlan, error: float) -> str:
    """Why a rollout must not go on; empty when nothing speaks against it.

    A difference to the control hosts counts when it is larger than the tolerance and chance makes one so large no more
    often than `error`. The other budgets are shares of the new bundle's own ticks.
    """
    for effect, what, most in (
        (look.misses, "more missed windows than control hosts", canary.qos_tolerance_points),
        (look.be, "less BE throughput than control hosts", canary.be_tolerance_points),
    ):
        if effect and effect.points > most and effect.chance <= error:
            beyond = f" ({most:g} are put up with)" if most else ""
            return f"{effect.points:.2f} points {what}{beyond}, by chance {effect.chance:.4f}, allowed {error:.4f}"
    for ratio, budget, what in (
        (look.failed_ratio, canary.most_failure_ratio, "without a usable answer"),
        (look.override_ratio, canary.most_override_ratio, "overridden by the shield"),
        (look.drift_ratio, canary.most_drift_ratio, "unlike its training"),
    ):
        if ratio > budget:
            return f"{100.0 * ratio:.1f} % of its ticks {what}; {100.0 * budget:g} are put up with"
    return ""


def roll_out(
    plan: RolloutPlan, workforce: Workforce = HERE, say: Callable[[str], None] = lambda _: None
) -> RolloutOutcome:
    """Roll a bundle out; `say` takes a line at each stage and look, and no number depends on who simulates.

    Raises:
        PolicyError: Either side is no manager, or a bundle that is refused; it has run nowhere then.
        ConfigError: There are so few hosts that the first stage would be all of them, or that no stage could tell.
    """
    for name in (plan.old, plan.new):
        catalogue.build(name)
    roster = Roster.drawn(plan.fleet, plan.seed, range(plan.hosts))
    if hosts_of_stage(roster, plan.canary.stages_percent[0]).all():
        raise ConfigError(f"of {plan.hosts} hosts the first stage would be all, one of each kind; give more hosts")
    stages = (hosts_of_stage(roster, percent) for percent in plan.canary.stages_percent)
    if all(stage.all() or least_chance(stage, roster.kinds) > plan.error for stage in stages):
        raise ConfigError(
            f"on {plan.hosts} hosts no stage could tell a regression by misses or BE, where a look may err by "
            f"{plan.error:.1g}: give more hosts, or in the fleet's canary fewer looks or a larger false_alarm_ratio"
        )
    return Rollout(plan, roster, workforce, say).go()


@dataclass
class Rollout:
    """A rollout under way, with the time that hosts ran the new bundle, summed over them."""

    plan: RolloutPlan
    roster: Roster
    workforce: Workforce
    say: Callable[[str], None]
    looks: list[Look] = field(default_factory=list)
    host_minutes: float = 0.0

    def __post_init__(self) -> None:
        """All hosts begin on the old policy."""
        policies = (self.plan.old, self.plan.new)
        self.fleet = SimulatedFleet(self.plan, self.roster, policies, self.workforce)
        self.ever = np.zeros(self.plan.hosts, np.bool_)
        self._missed, self._be_work = np.zeros(self.plan.hosts), np.zeros(self.plan.hosts)

    def go(self) -> RolloutOutcome:
        """Run all stages, or as many as pass and a roll-back."""
        c = self.plan.canary
        self.fleet.watch(c.check_minutes)
        baseline = self.fleet.watch(c.baseline_minutes)
        for number, percent in enumerate(c.stages_percent, 1):
            if not self._stage(number, percent, baseline):
                self._roll_back()
                break
        else:
            self.say(f"{_clock(self.fleet.minutes)}  promoted: all {self.plan.hosts} hosts have it")
        missed_without, be_without = self._without()
        ever = self.ever
        return RolloutOutcome(
            self.plan,
            tuple(self.looks),
            ever,
            self.host_minutes,
            int(self._missed[ever].sum()),
            int(missed_without.sum()),
            float((self._be_work[ever] - be_without).sum()) * TICK_SECONDS / 3600.0,
        )

    def _stage(self, number: int, percent: float, baseline: Tally) -> bool:
        """Run one stage; True when nothing spoke against the bundle."""
        c, plan = self.plan.canary, self.plan
        treated = hosts_of_stage(self.roster, percent)
        self.fleet.put_under(NEW, treated & ~self.ever)
        self.ever = treated
        blind = least_chance(treated, self.roster.kinds) > plan.error and not treated.all()
        self.say(
            f"{_clock(self.fleet.minutes)}  stage {number}: {int(treated.sum())} of {plan.hosts} hosts"
            + ("; too few to tell a regression by misses or BE" if blind else "")
        )
        watched: list[Tally] = []
        for _ in range(round(c.soak_minutes / c.check_minutes)):
            watched.append(self._watched(c.check_minutes))
            minutes = len(watched) * c.check_minutes
            look = self._look(number, treated, Tally.total(watched), minutes, baseline)
            self.looks.append(look)
            self.say(_line(look))
            if look.stop:
                return False
        return True

    def _look(self, stage: int, treated: Flags, tally: Tally, minutes: float, baseline: Tally) -> Look:
        plan, c = self.plan, self.plan.canary
        ticks, before = 60.0 * minutes / TICK_SECONDS, 60.0 * c.baseline_minutes / TICK_SECONDS
        misses, be = (
            100.0 * (getattr(tally, name) / ticks - getattr(baseline, name) / before) for name in ("missed", "be_work")
        )

        def against_others(worse: Array, most: float) -> Effect | None:
            if treated.all():
                return None
            return compare(worse, treated, self.roster.kinds, plan.error, most, seed=len(self.looks))

        failed, overridden, strange = (
            float(getattr(tally, name)[treated].mean()) / ticks for name in ("failed", "overridden", "strange")
        )
        look = Look(
            self.fleet.minutes,
            stage,
            int(treated.sum()),
            against_others(misses, c.qos_tolerance_points),
            against_others(-be, c.be_tolerance_points),
            failed,
            overridden,
            strange,
        )
        return replace(look, stop=judge(look, c, plan.error))

    def _roll_back(self) -> None:
        self.fleet.put_under(OLD, self.ever)
        self.say(f"{_clock(self.fleet.minutes)}  rolled back on {int(self.ever.sum())} hosts: {self.looks[-1].stop}")
        if after := self.plan.canary.after_minutes:
            self._watched(after, on_new=False)

    def _watched(self, minutes: float, *, on_new: bool = True) -> Tally:
        tally = self.fleet.watch(minutes)
        self._missed += tally.missed
        self._be_work += tally.be_work
        self.host_minutes += minutes * int(self.ever.sum()) * on_new
        return tally

    def _without(self) -> tuple[Array, Array]:
        """Windows missed and BE work done by the hosts that ever had the new bundle, had they kept the old one."""
        c, places = self.plan.canary, np.flatnonzero(self.ever)
        roster = Roster.drawn(self.plan.fleet, self.plan.seed, places)
        twin = SimulatedFleet(self.plan, roster, (self.plan.old,), self.workforce)
        twin.watch(c.check_minutes)
        twin.watch(c.baseline_minutes)
        tally = twin.watch(self.fleet.minutes - twin.minutes)
        return tally.missed, tally.be_work


def _line(look: Look) -> str:
    words = [f"{_clock(look.minutes)}    "]
    for effect, what in ((look.misses, "missed windows"), (look.be, "BE given up")):
        if effect:
            words.append(f"{what} {effect.points:+.2f} [{effect.low:+.2f}, {effect.high:+.2f}] points;")
    ratios = (("no answer", look.failed_ratio), ("overridden", look.override_ratio), ("drift", look.drift_ratio))
    return " ".join([*words, ", ".join(f"{what} {100.0 * ratio:.1f} %" for what, ratio in ratios)])


def _clock(minutes: float) -> str:
    return f"{int(minutes) // 60:02d}:{int(minutes) % 60:02d}"
