"""The shield of n hosts at once, for training, fleets and trials: the guards' own laws in a loop over hosts.

Host by host it answers as `Shield` does, over any history of readings. It takes no guards of your own. It leaves out
the guards of `rlctl.safety.memory_guards` and `gates.Overrun`: a simulated host has none of their readings, so
they never object.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from rlctl.envs.allocation import Limits
from rlctl.envs.allocations import Allocations, VectorLimits, apply_moves
from rlctl.envs.arrays import Array, Flags
from rlctl.envs.errors import ConfigError
from rlctl.envs.law import compiled, law
from rlctl.envs.readings import Readings
from rlctl.envs.rows import ALLOCATION, Row, Rows
from rlctl.envs.sim.physics import BLOCK
from rlctl.envs.sim.tick import SimRows, TickRows, ask, differ, pass_ticks
from rlctl.envs.telemetry import MOST_LOAD_RATIO
from rlctl.safety.gates import GateMemory, Strikes, gate_after, strikes_after
from rlctl.safety.growth import Ceiling, Pace, SlackFloor, grow, pace_after
from rlctl.safety.harm import HarmRecord, excuse_of_rate, harm_after
from rlctl.safety.profile import Profile
from rlctl.safety.trust import Trust

REMEMBERED: dict[str, Any] = {"gate": GateMemory(), "strikes": Strikes(), "pace": Pace(), "harm": HarmRecord()}
"""What the guards of a host remember; the two that hold by slack share that of the strikes."""

MEMORY = np.dtype(
    [
        (f"{guard}_{name}", "?" if isinstance(value, bool) else "i8" if isinstance(value, int) else "f8")
        for guard, memory in REMEMBERED.items()
        for name, value in memory._asdict().items()
    ]
    + [("complaint", "?")],
    align=True,
)
"""Of one host, and whether something is wrong with its readings as a whole."""

CONSTANTS = np.dtype([(name, "f8") for name in (
    "poll_seconds", "load_suspend_ratio", "load_resume_ratio", "least_gap_ratio", "slack_suspend_ratio",
    "forget_strikes_seconds", "cool_down_seconds", "slack_hold_ratio", "slack_floor_ratio", "growth_ratio_per_second",
    "growth_gap_seconds", "well_ratio_per_second", "well_seconds", "control_windows", "max_age_seconds", "min_samples",
    "gap_seconds",
)] + [("suspend_after_strikes", "i8"), ("growth_cpuset_cpus", "i8")])  # fmt: skip
"""Of a profile; `control_windows` is NaN where no guard is waived."""

EDGES = np.dtype(
    [
        ("cpus", "i8"), ("least_quota_cpus", "f8"), ("waives", "?"), ("floor_quota_cpus", "f8"),
        ("floor_cpuset_cpus", "i8"), ("ceiling_quota_cpus", "f8"), ("ceiling_cpuset_cpus", "i8"),
    ], align=True,
)  # fmt: skip
"""Of a host's limits, and what floor and ceiling make of them."""


@law
def believe(reading: Row, p: Row) -> tuple[bool, float, float]:
    """Whether something is wrong with a host's readings, and the slack and load to judge by; NaN for none.

    `Trust` has the rules: good news from sound readings only, bad news from any number at all. Of a simulated host
    tail, oldest request and load come together, of one age, or not at all; its LC always lives.
    """
    came, age = not reading["lost"], reading["age_seconds"]
    fresh = came and 0.0 <= age <= p["max_age_seconds"]
    target, tail, oldest = reading["target_seconds"], reading["tail_latency_seconds"], reading["oldest_request_seconds"]
    tail_sound = 0.0 < tail < math.inf and reading["samples"] >= p["min_samples"]
    latency_sound = fresh and 0.0 < target < math.inf and tail_sound and 0.0 <= oldest < math.inf
    slack, load = math.nan, reading["load_ratio"]
    if came and target > 0.0:
        slack = (target - (oldest if oldest > tail else tail)) / target
        if not (slack < 0.0 or (slack <= 1.0 and latency_sound)):
            slack = math.nan
    load_sound = fresh and 0.0 <= load <= MOST_LOAD_RATIO
    complaint = not (math.isfinite(reading["time_seconds"]) and latency_sound and load_sound)
    return complaint, slack, load if came and (load > p["load_suspend_ratio"] or load_sound) else math.nan


@law
def learn(m: Row, reading: Row, p: Row) -> None:
    """What the guards of a host remember after a tick; readings without a finite time teach them nothing."""
    m["complaint"], slack, load = believe(reading, p)
    now = reading["time_seconds"]
    if not math.isfinite(now):
        return
    # Each guard's memory is a tuple for its law, and a few fields of the row before and after it.
    gate = GateMemory(m["gate_closed"], m["gate_load_ratio"], m["gate_polled_seconds"], m["gate_noise_ratio"])
    suspend, poll, gap = p["load_suspend_ratio"], p["poll_seconds"], p["gap_seconds"]
    gate = gate_after(gate, now, load, suspend, p["load_resume_ratio"], p["least_gap_ratio"], poll)
    m["gate_closed"], m["gate_load_ratio"], m["gate_polled_seconds"], m["gate_noise_ratio"] = gate
    strikes = Strikes(
        m["strikes_count"], m["strikes_clean_seconds"], m["strikes_remaining_seconds"], m["strikes_slack_ratio"],
        m["strikes_seen_seconds"], m["strikes_polled_seconds"],
    )  # fmt: skip
    strikes = strikes_after(
        strikes, now, slack, p["slack_suspend_ratio"], p["suspend_after_strikes"], p["forget_strikes_seconds"],
        p["cool_down_seconds"], poll, gap,
    )  # fmt: skip
    m["strikes_count"], m["strikes_clean_seconds"], m["strikes_remaining_seconds"] = strikes[:3]
    m["strikes_slack_ratio"], m["strikes_seen_seconds"], m["strikes_polled_seconds"] = strikes[3:]
    pace = Pace(m["pace_seen_seconds"], m["pace_passed_seconds"], m["pace_well_seconds"])
    pace = pace_after(pace, now, slack, p["growth_gap_seconds"], p["well_seconds"])
    m["pace_seen_seconds"], m["pace_passed_seconds"], m["pace_well_seconds"] = pace
    if math.isnan(p["control_windows"]):
        return
    harm = HarmRecord(
        m["harm_held_windows"], m["harm_held_missed_ratio"], m["harm_held_load_ratio"], m["harm_free_windows"],
        m["harm_free_missed_ratio"], m["harm_held_seconds"], m["harm_clean_seconds"], m["harm_suspect_seconds"],
        m["harm_sentence_seconds"], m["harm_cleared"], m["harm_seen_seconds"],
    )  # fmt: skip
    # Of the link or the disks that is a share: who copies whole files needs next to no CPU for it, and is not held.
    used, sentence = reading["be_cpus"], m["harm_sentence_seconds"]
    if reading["be_used_ratio"] > used:
        used = reading["be_used_ratio"]
    harm = harm_after(
        harm, now, slack, load, used, 0.0, False, p["control_windows"], p["slack_suspend_ratio"],
        p["forget_strikes_seconds"], p["well_seconds"], gap,
    )  # fmt: skip
    if reading["fell_ratio"] > 0.0:
        harm = excuse_of_rate(harm, sentence)
    m["harm_held_windows"], m["harm_held_missed_ratio"], m["harm_held_load_ratio"] = harm[:3]
    m["harm_free_windows"], m["harm_free_missed_ratio"], m["harm_held_seconds"] = harm[3:6]
    m["harm_clean_seconds"], m["harm_suspect_seconds"], m["harm_sentence_seconds"] = harm[6:9]
    m["harm_cleared"], m["harm_seen_seconds"] = harm[9:]


@law
def bound(m: Row, p: Row, edge: Row, quota_cpus: float, cpuset_cpus: int, frozen: bool) -> tuple[float, int, bool]:
    """The most that all guards of a host together allow, whatever is proposed; as an allocation in force is given."""
    slack, cleared = m["strikes_slack_ratio"], m["harm_cleared"] and edge["waives"]
    most_quota, most_cpuset = edge["ceiling_quota_cpus"], edge["ceiling_cpuset_cpus"]
    # SensorGuard and LoadGate leave the safe allocation, and so does a SlackGate that is not waived.
    safe, least = m["complaint"] or m["gate_closed"], False
    if not cleared:
        # SlackGate: a strike takes BE to the minimum; one too many, and the cool-down after it, suspend it.
        struck = slack < p["slack_suspend_ratio"]
        safe = safe or m["strikes_remaining_seconds"] > 0.0
        safe = safe or (struck and m["strikes_count"] >= p["suspend_after_strikes"])
        least = struck
        # SlackFloor and SlackHold. Not "below": a slack that was never seen (NaN) is too small as well.
        if not slack >= p["slack_floor_ratio"]:
            most_quota, most_cpuset = (
                min(most_quota, edge["floor_quota_cpus"]),
                min(most_cpuset, edge["floor_cpuset_cpus"]),
            )
        # GrowthRate: in force and a step more; a frozen BE resumes from the minimum.
        base_quota, base_cpuset = (edge["least_quota_cpus"], 1) if frozen else (quota_cpus, cpuset_cpus)
        well = m["pace_well_seconds"] >= p["well_seconds"]
        rate = p["well_ratio_per_second"] if well else p["growth_ratio_per_second"]
        grown = grow(
            base_quota, base_cpuset, m["pace_passed_seconds"], rate, p["growth_cpuset_cpus"], well, edge["cpus"]
        )
        most_quota, most_cpuset = min(most_quota, grown[0]), min(most_cpuset, grown[1])
        # Nothing grows: what is in force is the most, the freezer included.
        if not slack >= p["slack_hold_ratio"]:
            most_quota, most_cpuset = min(most_quota, quota_cpus), min(most_cpuset, cpuset_cpus)
            if frozen:
                return _within(most_quota, most_cpuset, edge, least or safe, True)
    return _within(most_quota, most_cpuset, edge, least or safe, safe)


@law
def _within(quota_cpus: float, cpuset_cpus: int, edge: Row, least: bool, frozen: bool) -> tuple[float, int, bool]:
    """A bound, at the minimum where BE may have no more."""
    if least:
        return min(quota_cpus, edge["least_quota_cpus"]), min(cpuset_cpus, 1), frozen
    return quota_cpus, cpuset_cpus, frozen


@law
def learn_all(memories: Rows, readings: Rows, constants: Rows) -> None:
    """What the guards of every host remember after a tick."""
    for host in range(len(memories)):
        learn(memories[host], readings[host], constants[0])


@law
def bound_all(memories: Rows, constants: Rows, edges: Rows, current: Rows, most: Rows) -> None:
    """The most that the guards of every host allow."""
    for host in range(len(memories)):
        now, row = current[host], most[host]
        quota, cpuset, frozen = now["quota_cpus"], now["cpuset_cpus"], now["frozen"]
        row["quota_cpus"], row["cpuset_cpus"], row["frozen"] = bound(
            memories[host], constants[0], edges[host % len(edges)], quota, cpuset, frozen
        )


class GuardRows(NamedTuple):
    """The guards of n hosts: MEMORY of each, CONSTANTS in one row, EDGES of each or in one row."""

    memories: Rows
    constants: Rows
    edges: Rows


@law
def pass_shielded_ticks(
    guards: GuardRows, learns: bool, known: Rows, rows: SimRows, tick: TickRows, before: Rows, moves: Any,
    loads: Array, at: Any, number: int, newest: int, begins: bool, first: int, last: int,
) -> None:  # fmt: skip
    """As `pass_ticks`, under the ruling of guards.

    Args:
        learns: They have not learned from these readings yet.
        known: READING; what is known before the tick.
    """
    memories, constants, edges = guards
    limits, proposed, allocations, overridden = rows.seen.limits, tick.proposed, tick.allocations, tick.overridden
    for begin in range(first, last, BLOCK):
        end = min(begin + BLOCK, last)
        for place in range(begin, end):
            memory, now, asked, allowed = memories[place], before[place], proposed[place], allocations[place]
            if len(moves) > 0:
                ask(int(moves[place]), now, limits[place], asked)
            if learns:
                learn(memory, known[place], constants[0])
            quota, cpuset, frozen = bound(
                memory, constants[0], edges[place % len(edges)], now["quota_cpus"], now["cpuset_cpus"], now["frozen"]
            )
            allowed["quota_cpus"] = min(asked["quota_cpus"], quota)
            allowed["cpuset_cpus"] = min(asked["cpuset_cpus"], cpuset)
            allowed["frozen"] = asked["frozen"] or frozen
            overridden[place] = differ(asked, allowed)
        pass_ticks(rows, tick, before, moves[:0], loads, at, number, newest, begins, begin, end)


class BatchShield:
    """The guards of n hosts, and what they remember.

    It opens no file and reads no clock. It learns from each object of readings once; to rule or mask again on the same
    object changes nothing. Apply one ruling for each.

    A clock that goes back, stops or is no number is treated as `Shield` treats it, host by host.

    Args:
        limits: Range of allocations, of all hosts or of each.

    Attributes:
        memories: MEMORY, shape (n,).

    Raises:
        ConfigError: The profile has a guard of a user's own.
    """

    def __init__(self, profile: Profile, limits: Limits | VectorLimits, count: int) -> None:
        if profile.own:
            raise ConfigError(f"guard {profile.own[0].name} rules on one host only; name a shield without it here")
        self.profile = profile
        self.limits = limits
        self.count = count
        self._constants, self._edges = _constants(profile), _edges(profile, limits)
        self._learn, self._bound = compiled(learn_all), compiled(bound_all)
        self.reset()

    def reset(self) -> None:
        """Forget everything: all hosts begin."""
        self._latest: tuple[Readings, Allocations, Allocations] | None = None
        self._learnt: Readings | Rows | None = None
        self.memories = np.zeros(self.count, MEMORY)
        for guard, memory in REMEMBERED.items():
            for name, value in memory._asdict().items():
                self.memories[f"{guard}_{name}"] = value
        self.memories["gate_noise_ratio"] = self.profile.load_suspend_ratio - self.profile.load_resume_ratio

    def rule(self, readings: Readings, current: Allocations, proposed: Allocations) -> Allocations:
        """What may be written: the greatest lower bound of the proposals and all guards' bounds.

        With proposals within the hosts' limits it is within them too, for no guard's bound is below `Limits.minimum`.

        Args:
            readings: Readings of this tick, in whatever state; never changed afterwards.
        """
        most = self._bounds(readings, current)
        return Allocations(
            np.minimum(proposed.quota_cpus, most.quota_cpus),
            np.minimum(proposed.cpuset_cpus, most.cpuset_cpus),
            proposed.frozen | most.frozen,
        )

    def loop(self, readings: Rows) -> tuple[Callable[..., None], tuple[Any, ...]]:
        """The law by which hosts pass a tick under its ruling, see `rlctl.envs.sim.vector_env.VectorShield`."""
        learns, self._learnt = readings is not self._learnt, readings
        return pass_shielded_ticks, (GuardRows(self.memories, self._constants, self._edges), learns, readings)

    def mask(self, readings: Readings, current: Allocations) -> Flags:
        """Which moves are allowed on each host: bool, shape (n, len(MOVES))."""
        return apply_moves(current, self.limits).at_most(self._bounds(readings, current)).T

    def _bounds(self, readings: Readings, current: Allocations) -> Allocations:
        """The most that all guards allow; the mask and the ruling of one tick share it."""
        # By identity: the same objects are the same tick, and guards learn from a tick once.
        if self._latest and self._latest[0] is readings and self._latest[1] is current:
            return self._latest[2]
        # Memory moves on before the bounds: a guard judges by what it has just seen.
        # Readings that stand in rows are told by these, as in `loop`.
        rows = readings.rows
        told = rows if rows is readings.lost.base else readings
        if told is not self._learnt:
            self._learn(self.memories, rows, self._constants)
            self._learnt = told
        most = np.empty(self.count, ALLOCATION)
        self._bound(self.memories, self._constants, self._edges, current.rows, most)
        self._latest = readings, current, Allocations.of_rows(most)
        return self._latest[2]


def _constants(profile: Profile) -> Rows:
    """One row of CONSTANTS."""
    rows = np.zeros(1, CONSTANTS)
    for name in CONSTANTS.names or ():
        constant = getattr(profile, name)
        rows[name] = math.nan if constant is None else constant
    return rows


def _edges(profile: Profile, limits: Limits | VectorLimits) -> Rows:
    """EDGES of each host, or one row where all have the same limits."""
    floor = SlackFloor(profile, Trust(profile.max_age_seconds, profile.min_samples))
    ceiling = Ceiling(profile.ceiling_ratio)

    @cache
    def edge(of: Limits) -> tuple[float, ...]:
        least, most = floor.floor(of), ceiling.most(of)
        bounds = least.quota_cpus, least.cpuset_cpus, most.quota_cpus, most.cpuset_cpus
        return of.cpus, of.min_quota_cpus, of.least_weight, *bounds

    return np.array([edge(one) for one in (limits.each if isinstance(limits, VectorLimits) else (limits,))], EDGES)
