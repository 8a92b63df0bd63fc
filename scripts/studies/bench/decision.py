"""What a decision costs: a bundle as it is served, beside `model.predict` of Stable-Baselines3 on the same weights.

One process, one thread, in interleaved blocks, on telemetry of a simulated host. `network` is `Bundle.logits` against
`predict`, both on a vector that is there; `policy` begins at the tick's readings and makes the vector as well;
`decision` is all that the daemon does between reading and writing: mask, observation, move, decoding, shield. Needs
rlctl[train]; needs no root. `scripts/bench serve` tells memory and start.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rlctl.agents import catalogue
from rlctl.agents.served import bundle
from rlctl.agents.served.learned import LearnedPolicy
from rlctl.envs.actions import decode
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.observation import Observation, Observer
from rlctl.envs.sim.loads_training import training_load
from rlctl.envs.sim.plant import SimPlant
from rlctl.envs.sim.profile import load_profile as load_host
from rlctl.envs.sim.seeds import training
from rlctl.envs.telemetry import Telemetry
from rlctl.learn.plan import require_libraries
from rlctl.report.page import render
from rlctl.safety.profile import DEFAULT, load_profile
from rlctl.safety.shield import Shield

HOST, TICKS = "thesis-host", 600
BLOCK = 250
"""Decisions in a row: long enough for warm caches, as short as others' doings on the machine last."""

SIDES, KINDS = ("served", "sb3"), ("network", "policy", "decision")

Tick = tuple[Telemetry, Allocation, Any]


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    parser.add_argument("bundle", nargs="?", default="ppo", metavar="BUNDLE", help="a folder or ppo, dqn (ppo)")
    parser.add_argument("model", nargs="?", type=Path, metavar="MODEL.zip", help="default: made from the bundle")
    parser.add_argument("--decisions", type=int, default=5000, metavar="N", help="of each kind (%(default)s)")
    parser.add_argument("--cpu-time", action="store_true", help="CPU time, for a machine that is busy")


def recorded(policy: LearnedPolicy) -> tuple[Limits, list[Tick]]:
    """What the policy meets on a simulated host: readings, allocation in force, mask."""
    plant = SimPlant(load_host(HOST), training_load, TICKS, seed=training(0))
    shield, observer = Shield(load_profile(DEFAULT), plant.limits), Observer(plant.limits, plant.tick_seconds)
    plant.apply(policy.start(plant.limits))
    ticks = []
    for _ in range(TICKS):
        plant.wait()
        telemetry, current = plant.read(), plant.current
        mask = shield.mask(telemetry, current)
        ticks.append((telemetry, current, mask))
        move = policy.act(observer.observe(telemetry, current, mask))
        plant.apply(shield.rule(telemetry, current, decode(move, current, plant.limits)).allocation)
    return plant.limits, ticks


class Timed:
    """One side at one of the three kinds; each call takes the next tick of the recording.

    Args:
        kind: One of KINDS.
        seen: The vector of an observation.
        logits: The network, on a vector.
        act: The policy, on an observation.
    """

    def __init__(
        self,
        kind: str,
        recording: tuple[Limits, list[Tick]],
        seen: Callable[[Observation], np.ndarray],
        logits: Callable[[np.ndarray], object],
        act: Callable[[Observation], int],
    ) -> None:
        self.kind, self.seen, self.logits, self.act = kind, seen, logits, act
        self.limits, self.ticks = recording
        self.place = 0

    def spend(self, clock: Callable[[], int]) -> int:
        """Nanoseconds of one decision; whoever remembers forgets where the recording begins anew."""
        if self.place == 0:
            self.observer, self.shield = Observer(self.limits, 1.0), Shield(load_profile(DEFAULT), self.limits)
        telemetry, current, mask = self.ticks[self.place]
        self.place = (self.place + 1) % len(self.ticks)
        if self.kind == "network":
            vector = self.seen(self.observer.observe(telemetry, current, mask))
            begun = clock()
            self.logits(vector)
        elif self.kind == "policy":
            observation = self.observer.observe(telemetry, current, mask)
            begun = clock()
            self.act(observation)
        else:
            begun = clock()
            mask = self.shield.mask(telemetry, current)
            move = self.act(self.observer.observe(telemetry, current, mask))
            self.shield.rule(telemetry, current, decode(move, current, self.limits))
        return clock() - begun


def run(asked: argparse.Namespace) -> tuple[Any, int]:
    """Measure both sides in turns, and print the table."""
    from rlctl.agents.training.sb3_model import load_model
    from tests.doubles.rebuild import as_ppo

    require_libraries()
    ours = bundle.load(catalogue.folder_of(asked.bundle))
    with tempfile.TemporaryDirectory() as folder:
        if asked.model is None:
            as_ppo(ours).save(Path(folder) / "model.zip")
        model: Any = load_model(asked.model or Path(folder) / "model.zip")
    policy = LearnedPolicy(ours)
    recording = recorded(policy)

    def predict(observation: Observation) -> int:
        """As a service with Stable-Baselines3 in it would decide."""
        return int(model.predict(policy.visible_part(observation), deterministic=True)[0])

    asks: dict[str, tuple[Callable[[np.ndarray], object], Callable[[Observation], int]]] = {
        "served": (ours.logits, policy.act),
        "sb3": (lambda vector: model.predict(vector, deterministic=True), predict),
    }
    timed = {(kind, side): Timed(kind, recording, policy.visible_part, *asks[side]) for kind in KINDS for side in SIDES}
    clock = time.thread_time_ns if asked.cpu_time else time.perf_counter_ns
    spent: dict[tuple[str, str], list[float]] = {key: [] for key in timed}
    for block in range(1 + -(-asked.decisions // BLOCK)):
        for key, one in timed.items():
            values = [one.spend(clock) / 1e3 for _ in range(BLOCK)]
            spent[key] += values if block else []  # the first warms up
    rows: list[tuple[str, ...]] = [("us", *SIDES, "sb3 / served")]
    figures: dict[str, float] = {}
    for kind in KINDS:
        for name, share in (("p50", 0.50), ("p99", 0.99)):
            values = [float(np.quantile(spent[kind, side], share)) for side in SIDES]
            figures |= {f"{side}_{kind}_{name}_microseconds": value for side, value in zip(SIDES, values, strict=True)}
            rows.append((f"{kind} {name}", *(f"{value:.0f}" for value in values), f"{values[1] / values[0]:.1f}"))
    print(render(rows))
    observer = Observer(recording[0], 1.0)
    vectors = np.stack(
        [policy.visible_part(observer.observe(telemetry, current)) for telemetry, current, _ in recording[1]]
    )
    same = float(np.mean(ours.logits(vectors).argmax(axis=1) == model.predict(vectors, deterministic=True)[0]))
    time_of = "CPU" if asked.cpu_time else "wall-clock"
    print(f"the same move on {same:.2%} of {TICKS} ticks; {asked.decisions} decisions each, {time_of} time, one thread;"
          f" load average {os.getloadavg()[0]:.1f}")  # fmt: skip
    return {"schema": 1, "bundle": ours.card.name, "same_moves_percent": 100.0 * same, **figures}, 0
