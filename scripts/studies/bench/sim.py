"""How many control periods of how many hosts the simulator passes in a second, beside Gymnasium's own CartPole.

`plant` is `Hosts.step` alone, with its noise; `env` is `SimHostVectorEnv` with random moves: plant, sensors,
observation and reward; `CartPole` is `make_vec("CartPole-v1", vectorization_mode="vector_entry_point")`. Rounds take
turns, in one process; ns/host-tick is that of `env`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

import gymnasium as gym
import numpy as np

from rlctl.envs.sim.physics import HostOrders, Hosts
from rlctl.envs.sim.profile import Constants, load_profile
from rlctl.envs.sim.vector_env import SimHostVectorEnv
from rlctl.report.page import render

PROFILE = "thesis-host"
TICKS = 200  # of the load, which repeats; making loads is no part of the figure

Step = Callable[[], object]


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    parser.add_argument("--widths", type=int, nargs="+", default=(1, 32, 1024, 32768), metavar="HOSTS")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="per figure and round")
    parser.add_argument("--cpu-time", action="store_true", help="divide by CPU time, for a machine that is busy")


def plant_step(width: int) -> Step:
    """The plant alone, BE at random quotas and cpusets."""
    random = np.random.default_rng(0)
    profile = load_profile(PROFILE)
    hosts = Hosts(Constants.stack([profile] * width), np.arange(width, dtype=np.uint64))
    cpus = profile.limits().cpus
    quota, cpuset = random.uniform(0.01, cpus, width), random.integers(1, cpus + 1, width).astype(float)
    orders = HostOrders(quota, cpuset, random.random(width) < 0.1, np.ones(width))
    rate = random.uniform(0.5, 0.95, width) * profile.lc.max_load_rps
    return lambda: hosts.step(rate, orders)


def env_step(width: int) -> Step:
    """Plant, sensors, observation and reward, with random moves; episodes begin anew as they end."""
    env = SimHostVectorEnv(
        width, PROFILE, lambda seed, ticks, seconds: np.full(ticks, 0.6 + 0.3 * (seed % 2)), ticks=TICKS
    )
    return with_random_moves(env, width)


def cartpole_step(width: int) -> Step:
    """The yardstick: one line of physics per host, no noise."""
    return with_random_moves(gym.make_vec("CartPole-v1", width, vectorization_mode="vector_entry_point"), width)


def with_random_moves(env: Any, width: int) -> Step:
    env.reset(seed=0)
    moves = cycle(np.random.default_rng(0).integers(0, int(env.single_action_space.n), (64, width)))
    return lambda: env.step(next(moves))


def rate(step: Step, width: int, seconds: float, clock: Callable[[], float]) -> float:
    """Host-ticks per second of one environment."""
    ticks, begun = 0, clock()
    while (spent := clock() - begun) < seconds:
        step()
        ticks += 1
    return width * ticks / spent


def run(asked: argparse.Namespace) -> tuple[Any, int]:
    """Medians over rounds, each of which measures everything once, so that all meet the same machine."""
    clock = time.process_time if asked.cpu_time else time.perf_counter
    rows = []
    for width in asked.widths:
        steps = {"plant": plant_step(width), "env": env_step(width), "cartpole": cartpole_step(width)}
        seen: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(asked.rounds):
            for name, step in steps.items():
                seen[name].append(rate(step, width, asked.seconds, clock))
        rows.append({"width": width} | {name: float(np.median(values)) for name, values in seen.items()})
    title = ("hosts", "plant", "env", "CartPole", "ns/host-tick", "env/CartPole")
    shown = [
        (str(row["width"]), *(f"{row[name]:,.0f}" for name in ("plant", "env", "cartpole")),
         f"{1e9 / row['env']:,.0f}", f"{row['env'] / row['cartpole']:.3f}")
        for row in rows
    ]  # fmt: skip
    print(render([title, *shown]))
    cpus = len(os.sched_getaffinity(0))
    print(
        f"host-ticks a second{' of CPU time' if asked.cpu_time else ''}, {PROFILE}, {cpus} CPUs, {asked.rounds} rounds"
    )
    return {"profile": PROFILE, "cpus": cpus, "cpu_time": asked.cpu_time, "rows": rows}, 0
