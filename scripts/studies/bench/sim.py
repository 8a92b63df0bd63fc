"""Steps a CPU second of the simulated environments, beside Gymnasium's own CartPole, and of another checkout.

`one` is `gymnasium.make` of one host, `dummy 8` is Stable-Baselines3's DummyVecEnv of eight, a number is `make_vec` of
so many hosts, `shielded` behind the shield. Moves are random; episodes begin anew as they end. Rounds take turns, each
checkout in a process of its own. A figure is the median over rounds, in host-ticks a second of CPU time. Below stand
what a host-tick costs by the number of hosts, and what the first step waits for machine code: with an empty cache, and
with what that left.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

Step = Callable[[], object]

WIDTHS = (8, 128, 1024, 8192, 32768)

START = """
import time, gymnasium, rlctl.envs
wall, cpu = time.perf_counter(), time.process_time()
env = gymnasium.make_vec("rlctl/SimHost-v0", 8)
env.reset(seed=0)
env.step([0] * 8)
print(time.perf_counter() - wall, time.process_time() - cpu)
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of CPU time, per figure and round")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="another checkout of rlctl, measured in turns")


def cases() -> dict[str, tuple[int, Callable[[], Any]]]:
    """By name, the hosts of an environment and what makes it."""
    import rlctl.envs  # noqa: F401 - it registers them
    from rlctl.safety.vector_wrapper import ShieldedVectorEnv

    def dummy() -> Any:
        from stable_baselines3.common.env_util import make_vec_env

        return make_vec_env("rlctl/SimHost-v0", 8)

    found: dict[str, tuple[int, Callable[[], Any]]] = {
        "CartPole one": (1, lambda: gym.make("CartPole-v1")),
        "CartPole 1024": (1024, lambda: gym.make_vec("CartPole-v1", 1024, vectorization_mode="vector_entry_point")),
        "one": (1, lambda: gym.make("rlctl/SimHost-v0", max_episode_steps=300)),
        "dummy 8": (8, dummy),
    }
    for width in WIDTHS:
        found[str(width)] = width, partial(gym.make_vec, "rlctl/SimHost-v0", width)
        found[f"{width} shielded"] = width, partial(ShieldedVectorEnv, width)
    return found


def with_random_moves(env: Any, width: int) -> Step:
    """A step of an environment that has begun."""
    spaces = getattr(env, "single_action_space", env.action_space)
    moves = cycle(np.random.default_rng(0).integers(0, int(spaces.n), (64, width)))
    if hasattr(env, "env_method"):  # Stable-Baselines3's
        env.seed(0)
        env.reset()
        return lambda: env.step(next(moves))
    env.reset(seed=0)
    if hasattr(env, "num_envs"):
        return lambda: env.step(next(moves))

    def step() -> None:
        if any(env.step(int(next(moves)[0]))[2:4]):
            env.reset()

    return step


def measure(seconds: float) -> dict[str, float]:
    """Host-ticks a second of CPU time of each environment; what compiles, or begins, is left out."""
    rates = {}
    for name, (width, make) in cases().items():
        step = with_random_moves(make(), width)
        for _ in range(3):
            step()
        ticks, begun = 0, time.process_time()
        while (spent := time.process_time() - begun) < seconds:
            step()
            ticks += 1
        rates[name] = width * ticks / spent
    return rates


def _measured_by(checkout: Path | None, seconds: float) -> dict[str, float]:
    """The same in a process of its own, by the code of a checkout; None for this one."""
    where = checkout or Path(__file__).parents[3]
    program = f"{Path(__file__).read_text()}\nprint(json.dumps(measure({seconds})))"
    told = subprocess.run([sys.executable, "-W", "ignore", "-c", program], cwd=where, check=True, capture_output=True)
    found: dict[str, float] = json.loads(told.stdout.splitlines()[-1])
    return found


def time_starts(checkout: Path | None) -> list[tuple[float, float]]:
    """Seconds, and seconds of CPU time, until the first step is done: with an empty cache, and with a full one."""
    with tempfile.TemporaryDirectory() as cache:
        command, around = [sys.executable, "-W", "ignore", "-c", START], os.environ | {"XDG_CACHE_HOME": cache}
        where = checkout or Path(__file__).parents[3]
        told = [subprocess.run(command, cwd=where, env=around, check=True, capture_output=True) for _ in range(2)]
    wall, cpu = zip(*(map(float, one.stdout.split()) for one in told), strict=True)
    return list(zip(wall, cpu, strict=True))


def run(asked: argparse.Namespace) -> tuple[Any, int]:
    """Medians over rounds, each of which measures everything once, so that all meet the same machine."""
    from rlctl.report.page import render

    checkouts = {"before": asked.before, "now": None} if asked.before else {"now": None}
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for _ in range(asked.rounds):
        for name, checkout in checkouts.items():
            seen[name].append(_measured_by(checkout, asked.seconds))
    rows: list[dict[str, float]] = []
    starts: dict[str, list[tuple[float, float]]] = {}
    shown: list[tuple[str, ...]] = [("environment", *checkouts, *(("ratio",) if asked.before else ()))]
    for env in seen["now"][0]:
        rates = {name: float(np.median([one[env] for one in found])) for name, found in seen.items()}
        rows.append(rates)
        ratio = (f"{rates['now'] / rates['before']:.1f}",) if asked.before else ()
        shown.append((env, *(f"{rate:,.0f}" for rate in rates.values()), *ratio))
    print(render(shown))
    print(f"host-ticks a second of CPU time, thesis-host, medians of {asked.rounds} rounds")
    for name, checkout in checkouts.items():
        costs = [(width, 1e9 / np.median([one[str(width)] for one in seen[name]])) for width in WIDTHS]
        print(f"{name}: a host-tick by hosts: " + ", ".join(f"{cost:,.0f} ns of {width:,}" for width, cost in costs))
        (first, first_cpu), (cached, cached_cpu) = starts[name] = time_starts(checkout)
        print(
            f"{name}: first step after {first:.1f} s ({first_cpu:.1f} s of CPU time) with an empty cache of laws, "
            f"{cached:.2f} s ({cached_cpu:.2f}) with a full one"
        )
    return {"starts": starts, "rows": dict(zip(seen["now"][0], rows, strict=True)), "rounds": asked.rounds}, 0
