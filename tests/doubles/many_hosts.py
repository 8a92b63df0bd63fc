"""Simulated hosts of every kind that policies learn on, under one clock and a load that swings about its peak."""

import numpy as np

from rlctl.agents.training.host_kinds import load_hosts
from rlctl.envs.allocations import VectorLimits
from rlctl.envs.sim.plant import SimHosts, weight_ratios
from rlctl.envs.sim.profile import Constants
from rlctl.envs.sim.seeds import evaluation
from rlctl.envs.sim.sim_env import episode_keys

TICK_SECONDS = 1.0


class ManyHosts(SimHosts):
    """The first so many hosts, their kinds in turn."""

    def __init__(self, count, seed=0):
        shipped = [kind for kind in load_hosts().kinds if kind.host().lc.quantile_ratio == 0.95]
        kinds = [shipped[place % len(shipped)] for place in range(count)]
        profiles = [kind.host() for kind in kinds]
        keys = episode_keys(np.full(count, evaluation(seed), np.uint64), np.arange(count, dtype=np.uint64))
        drawn = [vars(Constants.drawn(profile, keys[[place]])) for place, profile in enumerate(profiles)]
        constants = Constants(**{name: np.concatenate([one[name] for one in drawn]) for name in drawn[0]})
        self.limits = VectorLimits([profile.limits(kind.weight) for kind, profile in zip(kinds, profiles, strict=True)])
        self._phase = np.random.default_rng(seed).uniform(0.0, 2.0 * np.pi, count)
        super().__init__(constants, keys, weight_ratios([kind.weight for kind in kinds], constants), TICK_SECONDS)

    def load_ratio(self, tick):
        slow, fast = (np.sin(2.0 * np.pi * tick / period + self._phase) for period in (300.0, 37.0))
        return 0.65 + 0.25 * slow + 0.1 * fast
