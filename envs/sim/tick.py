"""A tick of simulated hosts in one loop: what is asked for, physics, sensors, reward, memory, and what policies see.

A few hosts pass their whole tick before the next ones begin. Their rows are still in the processor's cache from one law
to the next, and so is the code of a law from one host to the next. The loop is a law, too: it runs as machine code
where Numba is there, and then in a thread for each core where there are many hosts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.actions import apply_move
from rlctl.envs.allocation import Limits
from rlctl.envs.allocations import Allocations
from rlctl.envs.arrays import Array, Flags
from rlctl.envs.law import compiled, law
from rlctl.envs.observations import ObserverRows, VectorObserver, see_hosts
from rlctl.envs.readings import READING
from rlctl.envs.reward import RewardTerms, pay
from rlctl.envs.rows import ALLOCATION, Row, Rows
from rlctl.envs.sim.noise import places
from rlctl.envs.sim.physics import BLOCK, CHANNELS, ORDER, PERIOD, WINDOW, Window, step_block
from rlctl.envs.sim.plant import SimBatch
from rlctl.envs.sim.sensing import measure, read_sensor

MANY_HOSTS = 2048
"""Of fewer hosts a thread of its own costs more than it saves."""

SMALL_BYTES = 1 << 16
"""Smaller arrays are made anew at no cost."""

NO_MOVES: NDArray[np.int64] = np.zeros(0, np.int64)


class SimRows(NamedTuple):
    """What simulated hosts are: rows that a tick reads and writes.

    Attributes:
        hosts, constants, weights, sensors: As in `Hosts`, `SimHosts` and `Sensors`.
        seen: What their observations are made of.
        works: Worth of BE's work on each, shape (n,).
        from_truth: As of `pay`, which takes both.
    """

    hosts: Rows
    constants: Rows
    weights: Array
    sensors: Rows
    seen: ObserverRows
    works: Array
    from_truth: bool


class Scratch(NamedTuple):
    """What the hosts of a block are told of a period, and what they hand on in it, see `step_block`."""

    orders: Rows
    periods: Rows
    rates_rps: Array


class TickRows(NamedTuple):
    """What comes of one tick, in arrays that nothing writes to again while somebody holds them.

    Attributes:
        proposed, allocations: ALLOCATION; what was asked for, and what was in force in the period.
        overridden: Where the shield changed what was asked for.
        windows, readings: What happened, and what the sensors say of it.
        terms: Of the reward, in the order of `RewardTerms`, shape (n, 5).
    """

    proposed: Rows
    allocations: Rows
    overridden: Flags
    windows: Rows
    readings: Rows
    terms: Array
    rewards: Array
    observations: NDArray[np.float32]


@law
def ask(move: int, before: Row, limit: Row, proposed: Row) -> None:
    """What the move of a host asks for."""
    proposed["quota_cpus"], proposed["cpuset_cpus"], proposed["frozen"] = apply_move(
        move, before["quota_cpus"], before["cpuset_cpus"], before["frozen"], limit["cpus"], limit["min_quota_cpus"]
    )


@law
def copy_allocation(one: Row, other: Row) -> None:
    """Write one to another."""
    other["quota_cpus"], other["cpuset_cpus"], other["frozen"] = one["quota_cpus"], one["cpuset_cpus"], one["frozen"]


@law
def differ(one: Row, other: Row) -> bool:
    """Whether any knob is another."""
    same = one["quota_cpus"] == other["quota_cpus"] and one["cpuset_cpus"] == other["cpuset_cpus"]
    return not (same and one["frozen"] == other["frozen"])


@law
def live(rows: SimRows, tick: TickRows, scratch: Scratch, loads: Array, at: Any, number: int, own: slice) -> None:
    """Let one control period pass on a few hosts, and have their sensors read; as of `pass_ticks`."""
    # A loop reads its arrays from local variables: machine code counts references to those of a tuple in every turn.
    constants, weights, sensors, shares = rows.constants[own], rows.weights[own], rows.sensors[own], loads[own]
    allocations, windows, readings = tick.allocations[own], tick.windows[own], tick.readings[own]
    orders, rates, tick_seconds = scratch.orders, scratch.rates_rps, rows.seen.tick_seconds
    for place in range(len(constants)):
        now, order = allocations[place], orders[place]
        order["quota_cpus"], order["cpuset_cpus"] = now["quota_cpus"], float(now["cpuset_cpus"])
        order["frozen"], order["weight_ratio"] = now["frozen"], weights[place]
        # The load is a share of the LC's maximum, so that one load suits hosts of any size.
        rates[place] = shares[place] * constants[place]["max_load_rps"]
    step_block(rows.hosts[own], constants, orders, windows, scratch.periods, at, rates, number, tick_seconds)
    for place in range(len(constants)):
        # Sensors are read at the end of the period, so that what they tell is already as old as their delay has it.
        measure(sensors[place], constants[place], windows[place], tick_seconds)
        time_seconds = (number + 1) * tick_seconds
        read_sensor(sensors[place], constants[place], windows[place], readings[place], time_seconds, tick_seconds)


@law
def judge(rows: SimRows, tick: TickRows, before: Rows, opens: bool, first: int, last: int) -> None:
    """Write the rewards of some hosts; `opens` in the first step of an episode."""
    works, from_truth, readings, allocations = rows.works, rows.from_truth, tick.readings, tick.allocations
    overridden, rewards, terms = tick.overridden, tick.rewards, tick.terms
    for place in range(first, last):
        # What was in force counts, not what was asked for: a policy pays for the shield's changes by `overridden`.
        changed = differ(before[place], allocations[place])
        rewards[place] = pay(readings[place], changed, overridden[place], works[place], opens, from_truth, terms[place])


@law
def pass_ticks(
    rows: SimRows, tick: TickRows, before: Rows, moves: Any, loads: Array, at: Any, number: int, newest: int,
    begins: bool, first: int, last: int,
) -> None:  # fmt: skip
    """Let one control period pass on some hosts, each under its new allocation, and see what comes of it.

    Args:
        before: ALLOCATION; in force until now.
        moves: Indices into MOVES; where there are none, `proposed` and `allocations` are given.
        loads: Configured load of each host as a share of the LC's maximum.
        at: The period's `places`.
        number: Of the period, since the start of the run.
        newest: Place of the period in the history that policies see.
        begins: An episode begins with it.
    """
    limits, proposed, allocations = rows.seen.limits, tick.proposed, tick.allocations
    scratch = Scratch(np.empty(BLOCK, ORDER), np.empty(BLOCK, PERIOD), np.empty(BLOCK))
    # A block passes one step after the other: its rows stay in the cache, and each step's machine code too.
    for begin in range(first, last, BLOCK):
        end = min(begin + BLOCK, last)
        # 1. What the moves ask for is in force at once, where nobody rules on it.
        if len(moves) > 0:
            for place in range(begin, end):
                ask(int(moves[place]), before[place], limits[place], proposed[place])
                copy_allocation(proposed[place], allocations[place])
        # 2. The period passes: physics, then the sensors.
        live(rows, tick, scratch, loads, at, number, slice(begin, end))
        # 3. The reward of the move, from the period that it led to.
        judge(rows, tick, before, number == 1, begin, end)
        # 4. Memory and observation: what the next move is chosen by.
        see_hosts(rows.seen, tick.readings, allocations, newest, begins, tick.observations, begin, end)


class Recycled:
    """Arrays of one shape and type, each of which is taken anew once nobody else holds it or a part of it."""

    def __init__(self, shape: tuple[int, ...], kind: Any) -> None:
        self._made: list[NDArray[Any]] = []
        self._shape, self._kind = shape, np.dtype(kind)
        self._small = int(np.prod(shape)) * self._kind.itemsize < SMALL_BYTES

    def take(self) -> NDArray[Any]:
        """One of them, whatever it holds."""
        # Memory that was just let go is given back to the kernel, and every page of a new array costs a fault.
        if not self._small:
            for array in self._made:
                if sys.getrefcount(array) == _OURS:
                    return array
        fresh = np.empty(self._shape, self._kind)
        if not self._small:
            self._made.append(fresh)
        return fresh


_OURS = 3
"""References to such an array that nobody else holds: of the list, the loop, and the count itself."""


class TickLoop:
    """Has simulated hosts pass their ticks, under the moves of policies or under allocations.

    Args:
        limits: Of all hosts.
        lags, absent: As of `VectorObserver`.
        from_truth: As in `SimRows`.

    Attributes:
        observer: Holds what the hosts have shown and taught.
        latest: What came of the last tick; of none before `begin`.
    """

    def __init__(
        self, limits: Limits, tick_seconds: float, lags: Sequence[int], absent: Collection[str] = (),
        *, from_truth: bool = False,
    ) -> None:  # fmt: skip
        self.observer = VectorObserver(limits, tick_seconds, lags, absent)
        self.latest: TickRows | None = None
        self._from_truth, self._count = from_truth, 0
        self._spare: tuple[Recycled, ...] = ()

    @property
    def passed(self) -> int:
        """Periods since the episode's begin."""
        return self._batch.hosts.tick

    def new_tick(self) -> TickRows:
        """Where the next tick's outcome will be written."""
        return TickRows(*(one.take() for one in self._spare))

    def begin(self, batch: SimBatch, prices: Array, work: float) -> TickRows:
        """Hosts begin at the allocations that are in force on them; what came of their first period.

        Args:
            prices: What a violation costs on each, shape (n,); divides `work`.
        """
        if batch.count != self._count:
            self._count = batch.count
            size = self.observer.space.shape or ()
            self._spare = tuple(
                Recycled((self._count, *shape), kind)
                for shape, kind in (
                    ((), ALLOCATION), ((), ALLOCATION), ((), "?"), ((), WINDOW), ((), READING),
                    ((len(RewardTerms._fields),), "f8"), ((), "f8"), (size, "f4"),
                )
            )  # fmt: skip
        self.observer.forget(batch.count)
        self.observer.prices = prices
        self._batch, hosts = batch, batch.hosts
        self._rows = SimRows(
            hosts.rows, hosts.constant_rows, batch.weights, batch.sensors.rows, self.observer.rows, work / prices,
            self._from_truth,
        )  # fmt: skip
        # No move has led to the first period: hosts pass it under what they begin with, and nothing was overridden.
        tick = self.new_tick()
        tick.overridden[:] = False
        tick.proposed[:] = tick.allocations[:] = Allocations.of(batch.allocations).rows
        return self.step(tick, tick.allocations, begins=True)

    def step(
        self, tick: TickRows, before: Rows, moves: NDArray[np.int64] = NO_MOVES, *, begins: bool = False,
        loop: Callable[..., None] = pass_ticks, guards: tuple[Any, ...] = (),
    ) -> TickRows:  # fmt: skip
        """Let one control period pass on all hosts.

        Args:
            tick: From `new_tick`; without moves `proposed` and `allocations` are set, and `overridden` always is.
            before: ALLOCATION, in force until now.
            loop, guards: The law of a shield that rules in the same loop, and what it takes before all else.
        """
        batch, number = self._batch, self._batch.hosts.tick
        newest = self.observer.newest = 0 if begins else (self.observer.newest + 1) % self.observer.depth
        _in_parts(
            compiled(loop), self._count, *guards, self._rows, tick, before, moves, batch.load_ratio(number),
            places(number, CHANNELS), number, newest, begins,
        )  # fmt: skip
        # From here on the batch shows the new period to whoever scores it by the truth.
        batch.hosts.tick += 1
        batch.window = Window(tick.windows)
        self.latest = tick
        return tick


def _in_parts(loop: Callable[..., None], count: int, *arguments: Any) -> None:
    """Run a loop over hosts, in a thread for each core where there are many."""
    # Laws in machine code let go of the interpreter's lock.
    parts = len(os.sched_getaffinity(0)) if count >= MANY_HOSTS and not hasattr(loop, "__law__") else 1
    if parts == 1:
        loop(*arguments, 0, count)
        return
    # Hosts are independent within a tick, so that parts in any order give the same numbers.
    ends = [count * part // parts for part in range(parts + 1)]
    running = [_threads(os.getpid()).submit(loop, *arguments, *part) for part in pairwise(ends)]
    for part in running:
        part.result()


@cache
def _threads(process: int) -> ThreadPoolExecutor:  # noqa: ARG001 - threads do not outlive a fork
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), "rlctl-hosts")
