"""The reins of a live host: which one is in hand, and how a level of BE becomes settings of the kernel."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rlctl.envs.allocation import Allocation, most_restrictive
from rlctl.envs.errors import RlctlError, in_one_line
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.events import Events
from rlctl.envs.host.reins.carried_rate import CALM_RATIO
from rlctl.envs.reins import FELL, LINK_CARRIED, LINK_SENT, OTHERS, USE, Rein, ReinLaw, level_ratio, on_cpus
from rlctl.envs.telemetry import Missing, Reading, Telemetry, Value, Why

log = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 3
"""Writes to a rein that fail, until this host has it no more: an interface that has gone does not come back."""


class SharedRein(Protocol):
    """A rein that holds BE to a share of what it is taken to carry."""

    @property
    def most(self) -> Any:
        """The most that was ever seen, for another run."""

    @property
    def is_known(self) -> bool:
        """Whether it has been found what it holds."""

    def prepare(self) -> None:
        """Before BE is held by it for the first time. RlctlError: this host has not what it takes."""

    def read_use(self, now_seconds: float) -> Mapping[str, float]:
        """Counters of the window since the last call, by name, see `rlctl.envs.reins`."""

    def judge(self, *, missed: bool, calm: bool, ran_ratio: float) -> None:
        """Learn from the window that was read last, in which this rein held BE above the least level.

        Args:
            missed: The LC missed its target, and waited for nothing else that is known.
            calm: It held the target by far.
            ran_ratio: Share of the window in which BE ran.
        """

    def hold(self, ratio: float | None) -> None:
        """Hold BE to a share in (0, 1], where 1 is everything that the LC does not feel; None: it is free.

        RlctlError: The kernel does not take it.
        """

    def follow(self, be_groups: Sequence[Group]) -> None:
        """Other groups are BE's from now on."""

    def restore_state(self, most: Any) -> None:
        """Go on with a `most` of an earlier run; ValueError: it is none."""

    def close(self) -> None:
        """Put everything back that was touched; BE is free then."""


class Reins:
    """The reins of one host, of which one is in hand. A sensor of their use, and a learner of what they can carry.

    What carries a level is written first, what is freed last, and nothing after a write that failed. So BE is never
    freer than the level on the rein in hand. Freezing, and the least level, hold on the CPUs under each rein. A rein
    whose writes fail again and again is this host's no more.

    Args:
        cpu: The CPUs' rein and the freezer, whose groups the others follow.
        others: Those that this host has beside it.

    Attributes:
        absent: Why this host has not a rein that it was to have.
        in_hand: What carries BE's level.
        moves: Says whether another rein than the CPUs' may be taken, for who decides now.
        cpus: What BE has of the CPUs, as last read.
        most_cpus: The most that it may have of them, whatever carries the level.
    """

    name = "reins"
    provides = (LINK_CARRIED, LINK_SENT, OTHERS, *FELL.values(), *USE.values())

    def __init__(
        self, cpu: BeActuator, others: Mapping[Rein, SharedRein] | None = None, events: Events | None = None
    ) -> None:
        self._cpu, self._others, self._events = cpu, dict(others or {}), events or Events()
        self._law = ReinLaw((Rein.CPU, *self._others))
        self._followed: dict[Rein, tuple[Group, ...]] = {}
        self._carried = cpu.limits.full  # level on the rein in hand, as far as that is known
        self._unfreed, self._lost = set[Rein](), set[Rein]()
        self._failures = Counter[Rein]()
        self.absent: dict[Rein, RlctlError] = {}
        self.in_hand = Rein.CPU
        self.moves: Callable[[], bool] = lambda: False
        self.cpus = self.most_cpus = cpu.limits.full

    @property
    def all(self) -> tuple[Rein, ...]:
        """Those that this host has, as far as they were found."""
        return Rein.CPU, *(rein for rein, other in self._others.items() if other.is_known)

    def read_level(self) -> Allocation:
        """The level that is in force."""
        self.cpus = self._cpu.read()
        return self._level()

    def tighten_cpus(self, most: Allocation) -> None:
        """People allow no more of the CPUs, from the next write on."""
        self.most_cpus = most_restrictive(self.most_cpus, most)

    def apply(self, allocation: Allocation, *, new_tick: bool = True) -> Allocation:
        """Write a level and read it back; what is in force.

        Args:
            new_tick: A tick has passed: another rein may be taken.

        Raises:
            RlctlError: A write failed, as of `BeActuator.apply`; what restricts was tried all the same.
        """
        wanted = self._cpu.limits.clip(allocation)
        if new_tick:
            self._take(self._law.in_hand if self.moves() else Rein.CPU)
        on = most_restrictive(on_cpus(wanted, self.in_hand, self._cpu.limits), self.most_cpus)
        if on.frozen or on.at_most(self.cpus):
            # The CPUs are held, or BE is stopped. Should that fail the rein in hand may be held more, and no less.
            try:
                self.cpus = self._cpu.apply(on, new_tick=new_tick)
            except RlctlError:
                self._carry(most_restrictive(wanted, self._carried))
                raise
            self._carry(wanted)
        else:
            # BE is freed there: only once the rein in hand holds it.
            self._carry(wanted)
            self.cpus = self._cpu.apply(on, new_tick=new_tick)
        self._free()
        return self._level()

    def look(self, telemetry: Telemetry, level: Allocation, ran_ratio: float = 1.0) -> None:
        """Choose by a window which rein the next tick takes, and have the one in hand learn from it.

        Arguments are as of `ReinLaw.look`.
        """
        self._law.look(telemetry, level, self._cpu.limits, ran_ratio)
        other, missed, latency = self._others.get(self.in_hand), telemetry.missed, telemetry.latency_ratio
        if other is None or missed is None or self._cpu.limits.is_least(level):
            return
        if not (missed or ran_ratio < 1.0) or self._law.suspect in (None, self.in_hand):
            other.judge(missed=missed, calm=latency is not None and latency <= CALM_RATIO, ran_ratio=ran_ratio)

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """What was used of each, as shares."""
        readings: dict[str, Reading] = {}
        for rein, other in self._others.items():
            try:
                self._follow(rein)
                readings |= {name: Value(share) for name, share in other.read_use(now_seconds).items()}
            except RlctlError as error:
                if rein in {self.in_hand, *self._unfreed} - self._lost:  # else the CPUs hold BE, whatever it sends
                    readings[USE[rein]] = Missing(Why.GONE, in_one_line(error))
        return readings

    def close(self) -> None:
        """Put everything but the CPUs back, which the journal does. Idempotent."""
        for rein, other in self._others.items():
            try:
                other.close()
            except RlctlError as error:
                log.error("rein %s is not put back: %s", rein, in_one_line(error))
        self._others.clear()

    def state_dict(self) -> Mapping[str, Any]:
        """What levels are shares of, and the rein that was in hand; empty where there is but the CPUs'."""
        mosts = {str(rein): other.most for rein, other in self._others.items() if other.most}
        return {"in_hand": str(self.in_hand), "most": mosts} if mosts else {}

    def restore_state(self, memory: Mapping[str, Any]) -> None:
        """Go on with that; ValueError: it is none."""
        in_hand, mosts = Rein(memory["in_hand"]), dict(memory["most"])
        for rein, other in self._others.items():
            if rein in mosts:
                other.restore_state(mosts[rein])
        if in_hand in self.all:
            self._law.in_hand = in_hand

    def _level(self) -> Allocation:
        """What is in force: where two reins hold BE, the tighter of them."""
        return self.cpus if self.in_hand is Rein.CPU else most_restrictive(self.cpus, self._carried.but(frozen=False))

    def _take(self, rein: Rein) -> None:
        if rein is self.in_hand:
            return
        try:
            if rein is not Rein.CPU:
                self._others[rein].prepare()
        except RlctlError as error:
            self._drop(rein, in_one_line(error))
        else:
            self._unfreed = (self._unfreed | {self.in_hand}) - {Rein.CPU, rein}
            log.info("BE is held by its %s from now on, not by its %s", rein, self.in_hand)
            self.in_hand, self._carried = rein, self._cpu.limits.full

    def _carry(self, wanted: Allocation) -> None:
        """Have the rein in hand carry a level, or raise; the CPUs carry theirs by themselves."""
        if self.in_hand is Rein.CPU:
            return
        self._write(self.in_hand, level_ratio(wanted, self._cpu.limits.cpus))
        self._carried = wanted

    def _free(self) -> None:
        """Free the reins that are no more in hand; one that cannot be is tried again in the next tick."""
        for rein in tuple(self._unfreed):
            try:
                self._write(rein, None)
                self._unfreed.discard(rein)
            except RlctlError as error:  # BE has less than it may
                if rein not in self._lost:
                    log.warning("rein %s is not freed yet: %s", rein, in_one_line(error))

    def _write(self, rein: Rein, ratio: float | None) -> None:
        try:
            if ratio is not None:  # to free needs no groups
                self._follow(rein)
            self._others[rein].hold(ratio)
        except RlctlError as error:
            self._failures[rein] += 1
            if self._failures[rein] == FAILURES_IN_A_ROW:
                self._drop(rein, in_one_line(error))
            raise
        self._failures[rein] = 0

    def _drop(self, rein: Rein, why: str) -> None:
        """Go on without a rein: the CPUs carry the level from the next write on."""
        self._law.drop(rein)
        self._lost.add(rein)
        self._events.tell("rein-lost", f"rein {rein} is lost, the CPUs hold BE: {why}", logging.ERROR)

    def _follow(self, rein: Rein) -> None:
        """Have a rein hold the groups of now; again at the next call where it cannot hold all of them."""
        if (groups := self._cpu.groups) != self._followed.get(rein):
            self._others[rein].follow(groups)
            self._followed[rein] = groups
