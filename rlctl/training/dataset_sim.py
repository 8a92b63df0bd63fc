"""Simulated hosts under managers that now and then try a neighbouring move, recorded as transitions.

Each host has a manager in the network's place: the host follows the allowed move that is nearest to what the manager
asks for (`nearest_move`), or, in a share of the ticks, one of that move's neighbours (`around`): the next quota up or
down, or to keep what is in force. All of it under the shield, on training seeds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlctl.agents import catalogue
from rlctl.agents.policy import Policy
from rlctl.agents.training.hosts import Hosts, first_seed, present
from rlctl.agents.training.live.bounded import around
from rlctl.agents.training.nearest_move import nearest_move
from rlctl.agents.training.offline.origin import Source
from rlctl.agents.training.offline.writer import Recording
from rlctl.bench.lineup import policy_for
from rlctl.envs.actions import MOVES, decode
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.observation import Observer
from rlctl.envs.reward import WORK
from rlctl.envs.sim.loads_training import training_load
from rlctl.envs.sim.plant import LoadModel, SimBatch
from rlctl.envs.sim.profile import HostProfile
from rlctl.envs.sim.seeds import training
from rlctl.envs.telemetry import Missing, Telemetry, Why
from rlctl.envs.workload import Weight
from rlctl.safety.profile import Profile
from rlctl.safety.shield import Shield
from rlctl.scenarios.sim import SimScenario
from rlctl.training.transitions import Moment, Weaver, cuts_of

__all__ = ["Ground", "grounds_of_hosts", "grounds_of_scenarios", "record"]

RUN_SEED = 1 << 18
"""Whose training seeds recordings take, with their own added: far from those of training runs."""

SENSORS = {
    "load": "load_ratio",
    "cpi": "cpi",
    "cpu_per_request": "lc_cpu_seconds_per_request",
    "lc_cpus": "lc_cpus",
    "be_cpus": "be_cpus",
}
"""Features that a kind of host may lack, with the reading that they are made of."""


@dataclass(frozen=True, slots=True)
class Ground:
    """One kind of host and load to record on.

    Attributes:
        name: For the dataset's origin.
        host, load, weight, safety, tick_seconds: As in `rlctl.agents.training.trial.Course`.
        vary: Each seed is another host.
        seeds: One host for each.
        ticks: Of each host.
        policy: Makes a manager by name, as this ground wants it.
        absent: Sensors that these hosts lack.
        work: What BE's work is worth by a violation to those who learn on such hosts.
    """

    name: str
    host: HostProfile
    load: LoadModel
    weight: Weight
    safety: Profile | None
    vary: bool
    seeds: tuple[int, ...]
    ticks: int
    policy: Callable[[str], Policy]
    tick_seconds: float = 1.0
    absent: tuple[str, ...] = ()
    work: float = WORK


def grounds_of_scenarios(
    scenarios: list[SimScenario], seeds: int, safety: Profile, most_seconds: float | None = None
) -> Iterator[Ground]:
    """A ground for each scenario, on the first training seeds.

    Args:
        scenarios: The scenarios.
        seeds: Hosts of each.
        safety: The shield; follows a scenario's time scale.
        most_seconds: Longest run; None for the scenarios' own.
    """
    for one in scenarios:
        seconds = min(one.duration_seconds, most_seconds or one.duration_seconds)

        def policy(name: str, scenario: SimScenario = one) -> Policy:
            return policy_for(name, scenario)

        yield Ground(
            name=one.name,
            host=one.host(),
            load=one.load_model,
            weight=one.be.weight,
            safety=safety.scaled(one.time_scale),
            vary=one.vary,
            seeds=tuple(training(number) for number in range(seeds)),
            ticks=round(seconds / one.tick_seconds),
            policy=policy,
            tick_seconds=one.tick_seconds,
        )


def grounds_of_hosts(hosts: Hosts, count: int, seed: int) -> Iterator[Ground]:
    """A ground for each kind of training host.

    Args:
        hosts: The kinds.
        count: Hosts in all, spread over the kinds by their shares.
        seed: Another one meets other hosts.
    """
    first = first_seed(RUN_SEED + seed % RUN_SEED, count)
    for kind, number in present(hosts, count):
        yield Ground(
            name=kind.name,
            host=kind.host(),
            load=training_load,
            weight=kind.weight,
            safety=kind.shield(),
            vary=True,
            seeds=tuple(range(first, first + number)),
            ticks=hosts.episode_steps + 1,
            policy=catalogue.build,
            absent=kind.absent,
            work=kind.work,
        )


def record(ground: Ground, managers: Sequence[str], explore: float, seed: int) -> Recording:
    """Let managers drive hosts of a ground, each of them all.

    Args:
        ground: The hosts.
        managers: Their names, or bundles' folders.
        explore: Share of the ticks that take a neighbouring move.
        seed: Of the draws.

    Raises:
        PolicyError: There is no such manager, or it does not fit a host.
    """
    told = {"managers": list(managers), "explore": explore, "seed": seed, "seeds": ground.seeds, "ticks": ground.ticks}
    digest = _digest(ground, told)
    keys = ground.seeds * len(managers)
    batch = SimBatch(
        ground.host, keys, ground.load, ground.ticks, ground.tick_seconds, vary=ground.vary, weight=ground.weight
    )
    dice = np.random.default_rng(int(digest[:16], 16))
    stations = [_Station(ground, name, batch.limits, explore, dice) for name in managers for _ in ground.seeds]
    for _ in range(ground.ticks):
        batch.step()
        each = zip(stations, batch.telemetry(), batch.allocations, strict=True)
        batch.apply([station.step(telemetry, current) for station, telemetry, current in each])
    weavers = [station.weaver for station in stations]
    for weaver in weavers:
        weaver.end()
    episodes = tuple(episode for weaver in weavers for episode in weaver.episodes)
    source = Source(
        kind="simulator",
        name=ground.name,
        sha256=digest,
        host=ground.host.name,
        host_digest=ground.host.digest,
        weight=ground.weight,
        work=ground.work,
        shield=ground.safety.name if ground.safety else "",
        shield_digest=ground.safety.digest if ground.safety else "",
        hosts=batch.count,
        ticks=sum(weaver.ticks for weaver in weavers),
        transitions=sum(map(len, episodes)),
    )
    return Recording(source, ground.tick_seconds, episodes, cuts_of(weavers))


class _Station:
    """A manager on one host, recorded."""

    def __init__(self, ground: Ground, manager: str, limits: Limits, explore: float, dice: np.random.Generator) -> None:
        self.weaver = Weaver(limits)
        self._name, self._limits, self._explore, self._dice = manager, limits, explore, dice
        self._absent = {SENSORS[name]: Missing(Why.NOT_SUPPORTED) for name in ground.absent if name in SENSORS}
        self._policy = ground.policy(manager)
        self._policy.start(limits)
        self._observer = Observer(limits, ground.tick_seconds)
        self._shield = Shield(ground.safety, limits) if ground.safety else None

    def step(self, telemetry: Telemetry, current: Allocation) -> Allocation:
        """Decide, and note it down."""
        if self._absent:
            telemetry = telemetry.but(**self._absent)
        mask = self._mask(telemetry, current)
        observation = self._observer.observe(telemetry, current, mask)
        action = self._policy.act(observation)
        wanted = decode(action, current, self._limits)
        chosen = int(action) if isinstance(action, (int, np.integer)) else -1
        if chosen < 0 or not mask[chosen]:
            chosen = nearest_move(wanted, current, self._limits, mask)
        move = self._drawn(chosen, mask, current)
        asked = decode(move, current, self._limits)
        verdict = self._shield.rule(telemetry, current, asked) if self._shield else None
        applied = self._limits.clip(verdict.allocation if verdict else asked)
        self.weaver.add(
            Moment(
                observation=observation.vector,
                mask=mask,
                telemetry=telemetry,
                before=current,
                proposed=asked,
                ruled=verdict.allocation if verdict else asked,
                applied=applied,
                proposed_move=chosen,
                executed_move=move,
                policy=self._name,
                overridden=bool(verdict and verdict.overridden),
                explored=move != chosen,
            )
        )
        return applied

    def _mask(self, telemetry: Telemetry, current: Allocation) -> np.ndarray:
        """Moves that the shield lets through; without a shield those that change something, and to keep all."""
        if self._shield:
            return self._shield.mask(telemetry, current)
        return np.array([m.name == "keep" or m.of(current, self._limits) != current for m in MOVES], np.bool_)

    def _drawn(self, chosen: int, mask: np.ndarray, current: Allocation) -> int:
        if self._dice.random() >= self._explore:
            return chosen
        return int(self._dice.choice(np.flatnonzero(mask & around(chosen, current, self._limits))))


def _digest(ground: Ground, told: Mapping[str, object]) -> str:
    """Over everything that a run follows from but the code."""
    of_ground = {
        "name": ground.name,
        "host": ground.host.digest,
        "weight": ground.weight,
        "shield": ground.safety.digest if ground.safety else "",
        "vary": ground.vary,
        "tick_seconds": ground.tick_seconds,
        "absent": ground.absent,
    }
    return hashlib.sha256(json.dumps({**of_ground, **told}, sort_keys=True).encode()).hexdigest()
