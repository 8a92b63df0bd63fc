"""Simulated hosts under managers that now and then try a neighbouring move, recorded as transitions.

Each host has a manager in the network's place. The host follows the allowed move that is nearest to what the manager
asks for (`nearest_move`). In a share of the ticks it is one of that move's neighbours (`around`): the next quota up or
down, or to keep what is in force. All of it under the shield, on training seeds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from rlctl.agents import catalogue
from rlctl.agents.policy import Policy
from rlctl.agents.policy_runner import PolicyRunner
from rlctl.agents.training.host_kinds import Hosts, first_seed, present, readings_without
from rlctl.agents.training.live.bounded import around
from rlctl.agents.training.nearest_move import nearest_move
from rlctl.agents.training.offline.writer import Recording
from rlctl.agents.training.trial import Course
from rlctl.bench.participants import policy_for
from rlctl.bench.sim_scenario import SimScenario
from rlctl.envs.actions import decode
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.allocations import Allocations, useful_moves
from rlctl.envs.observation import Observation
from rlctl.envs.reward import WORK
from rlctl.envs.sim.loads_training import training_load
from rlctl.envs.sim.plant import SimBatch
from rlctl.envs.sim.seeds import training
from rlctl.envs.telemetry import Telemetry
from rlctl.learn.plan import course_of
from rlctl.learn.transitions import TransitionBuilder, TransitionStep, recording_of_builders
from rlctl.safety.profile import Profile
from rlctl.safety.shield import Shield

RUN_SEED = 1 << 18
"""Whose training seeds recordings take, with their own added: far from those of training runs."""


@dataclass(frozen=True, slots=True)
class RecordingPlan:
    """One kind of host and load to record on.

    Attributes:
        policy: Makes a manager by its name.
        work: What BE's work is worth by a violation to those who learn on such hosts.
    """

    course: Course
    seeds: tuple[int, ...]
    policy: Callable[[str], Policy]
    absent: tuple[str, ...] = ()
    work: float = WORK


def grounds_of_scenarios(
    scenarios: list[SimScenario], seeds: int, safety: Profile, most_seconds: float | None = None
) -> Iterator[RecordingPlan]:
    """A ground for each scenario, `most_seconds` long at most, on the first training seeds and its time scale."""
    for one in scenarios:
        seconds = min(one.duration_seconds, most_seconds or one.duration_seconds)
        course = course_of(one, safety, round(seconds / one.tick_seconds))
        yield RecordingPlan(course, tuple(map(training, range(seeds))), partial(policy_for, scenario=one))


def grounds_of_hosts(hosts: Hosts, count: int, seed: int) -> Iterator[RecordingPlan]:
    """A ground for each kind, `count` hosts in all, spread by the shares; another seed meets other hosts."""
    first = first_seed(RUN_SEED + seed % RUN_SEED, count)
    for kind, number in present(hosts, count):
        ticks, seeds = hosts.episode_steps + 1, tuple(range(first, first + number))
        course = Course(kind.name, kind.host(), training_load, kind.weight, ticks, safety=kind.shield(), vary=True)
        yield RecordingPlan(course, seeds, catalogue.build, kind.absent, kind.work)


def record(ground: RecordingPlan, managers: Sequence[str], explore: float, seed: int) -> Recording:
    """Let each manager drive hosts of a ground, taking a neighbouring move in a share `explore` of the ticks."""
    course = ground.course
    told = {"managers": list(managers), "explore": explore, "seed": seed, "seeds": ground.seeds, "ticks": course.ticks}
    digest = _digest(ground, told)
    keys = ground.seeds * len(managers)
    batch = SimBatch(
        course.host, keys, course.load, course.ticks, course.tick_seconds, vary=course.vary, weight=course.weight
    )
    dice = np.random.default_rng(int(digest[:16], 16))
    recorded = [_Recorded(ground, name, batch.limits, explore, dice) for name in managers for _ in ground.seeds]
    for _ in range(course.ticks):
        batch.step()
        each = zip(recorded, batch.telemetry(), batch.allocations, strict=True)
        batch.apply([one.step(telemetry, current) for one, telemetry, current in each])
    return recording_of_builders(
        [one.builder for one in recorded],
        course.tick_seconds,
        kind="simulator",
        name=course.name,
        sha256=digest,
        host=course.host.name,
        host_digest=course.host.digest,
        weight=course.weight,
        work=ground.work,
        shield=course.safety.name if course.safety else "",
        shield_digest=course.safety.digest if course.safety else "",
        absent=ground.absent,
    )


class _Exploring(Policy):
    """A manager in a network's place that answers in moves, and now and then takes a neighbour of its move.

    Attributes:
        chosen, move: Its own move, an index into MOVES, and the one that was taken.
    """

    masked, note, remarks = True, "", ()
    observation: Observation
    chosen: int
    move: int

    def __init__(self, policy: Policy, explore: float, dice: np.random.Generator) -> None:
        self._policy, self._explore, self._dice = policy, explore, dice
        self.name, self.shielded, self.weight, self.needs = policy.name, policy.shielded, policy.weight, policy.needs

    def start(self, limits: Limits) -> Allocation:
        """As the manager does."""
        self._limits = limits
        return self._policy.start(limits)

    def act(self, observation: Observation) -> int:
        """The allowed move that is nearest to what the manager asks for, or one of its neighbours."""
        current, limits, mask = observation.current, self._limits, observation.mask
        if mask is None:
            mask = useful_moves(Allocations.same(current, 1), limits)[0]
        self.observation = replace(observation, mask=mask)
        action = self._policy.act(self.observation)
        if isinstance(action, (int, np.integer)) and action >= 0 and mask[action]:
            self.chosen = int(action)
        else:
            self.chosen = nearest_move(decode(action, current, limits), current, limits, mask)
        self.move = self.chosen
        if self._dice.random() < self._explore:
            neighbours = mask & around(self.chosen, current, limits)
            neighbours[self.chosen] = False
            if neighbours.any():
                self.move = int(self._dice.choice(np.flatnonzero(neighbours)))
        return self.move


class _Recorded:
    """A manager on one host, recorded."""

    def __init__(
        self, ground: RecordingPlan, manager: str, limits: Limits, explore: float, dice: np.random.Generator
    ) -> None:
        self.builder = TransitionBuilder(limits)
        self._name, self._limits = manager, limits
        self._absent = readings_without(ground.absent)
        self._policy = _Exploring(ground.policy(manager), explore, dice)
        course = ground.course
        shield = Shield(course.safety, limits) if course.safety else None
        self._runner = PolicyRunner(self._policy, shield, limits, course.tick_seconds, strict=True, learns=True)
        self._runner.start()

    def step(self, telemetry: Telemetry, current: Allocation) -> Allocation:
        """Decide, and note it down."""
        if self._absent:
            telemetry = telemetry.but(**self._absent)
        verdict, policy = self._runner.decide(telemetry, current).verdict, self._policy
        observation = policy.observation
        applied = self._limits.clip(verdict.allocation)
        assert observation.mask is not None
        self.builder.add(
            TransitionStep(
                observation=observation.vector,
                mask=observation.mask,
                telemetry=telemetry,
                before=current,
                applied=applied,
                proposed_move=policy.chosen,
                executed_move=policy.move,
                policy=self._name,
                overridden=verdict.overridden,
                explored=policy.move != policy.chosen,
            )
        )
        return applied


def _digest(ground: RecordingPlan, told: Mapping[str, object]) -> str:
    """Over everything that a run follows from but the code."""
    course = ground.course
    of_ground = {
        "name": course.name,
        "host": course.host.digest,
        "weight": course.weight,
        "shield": course.safety.digest if course.safety else "",
        "vary": course.vary,
        "tick_seconds": course.tick_seconds,
        "absent": ground.absent,
    }
    return hashlib.sha256(json.dumps({**of_ground, **told}, sort_keys=True).encode()).hexdigest()
