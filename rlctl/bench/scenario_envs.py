"""The simulated scenarios of the benchmark as Gymnasium environments: `gymnasium.make("rlctl/Thesis-v0")`.

An episode is a run of the scenario: its host, its load, its length. A seed decides all chance in it; the benchmark
judges on evaluation seeds (`rlctl.envs.sim.seeds`), so train on others.
"""

from __future__ import annotations

from typing import Any

from rlctl.bench.scenarios import sim_scenario
from rlctl.envs.sim.sim_env import SimHost
from rlctl.envs.sim.vector_env import SimHostVectorEnv


def make_host(scenario: str, **options: Any) -> SimHost:
    """One host of a scenario, by its name or file; options as of `SimHost`. ConfigError: there is no such scenario."""
    return SimHost(**_of(scenario) | options)


def make_hosts(scenario: str, **options: Any) -> SimHostVectorEnv:
    """Many hosts of a scenario; options as of `SimHostVectorEnv`. ConfigError: there is no such scenario."""
    return SimHostVectorEnv(**_of(scenario) | options)


def _of(name_or_file: str) -> dict[str, Any]:
    """What a scenario's file says of its hosts."""
    scenario = sim_scenario(name_or_file)
    return {
        "profile": scenario.host(),
        "load": scenario.load_model,
        "vary": scenario.vary,
        "tick_seconds": scenario.tick_seconds,
        "ticks": scenario.ticks,
        "weight": scenario.be.weight,
    }
