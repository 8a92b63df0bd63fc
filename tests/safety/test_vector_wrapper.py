"""The shielded vector environment is n shielded ones: a policy may be trained in one and judged in the other."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from rlctl.envs.actions import MOVES
from rlctl.envs.allocations import Allocations
from rlctl.envs.sim.profile import load_profile as load_host
from rlctl.envs.sim.sim_env import SimHost
from rlctl.envs.workload import Weight
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield
from rlctl.safety.vector_wrapper import ShieldedVectorEnv
from rlctl.safety.wrapper import ShieldedEnv
from tests.doubles.shipped import SAFETY_PROFILES

HOSTS, STEPS, EPISODE, SEED = 3, 40, 25, 11
THAW = [move.name for move in MOVES].index("thaw")


@pytest.mark.parametrize(("safety", "weight"), [*((one, "equal") for one in SAFETY_PROFILES), ("measured", "minimum")])
def test_it_is_so_many_shielded_environments_across_episodes(safety, weight):
    """At the least weight guards waive what BE is not seen to harm, in training as in service."""
    host = load_host("thesis-host").but(missing_ratio=0.05, delay_ticks=1.0)
    together = ShieldedVectorEnv(HOSTS, host, safety=safety, weight=weight, max_episode_steps=EPISODE)
    shields = [Shield(load_profile(safety), host.limits(Weight(weight))) for _ in range(HOSTS)]
    alone = [ShieldedEnv(gym.wrappers.TimeLimit(SimHost(host, weight=weight), EPISODE), shield) for shield in shields]
    observations, _ = together.reset(seed=SEED)
    for index, env in enumerate(alone):
        np.testing.assert_array_equal(observations[index], env.reset(seed=SEED + index)[0])
    dice, overridden = np.random.default_rng(3), 0
    for _ in range(STEPS):
        masks = together.action_masks()
        actions = dice.choice([*range(len(MOVES)), THAW, THAW], HOSTS)
        observations, rewards, _, truncated, infos = together.step(actions)
        told = infos["final_info"] if truncated.any() else infos  # all hosts' episodes end together here
        for index, env in enumerate(alone):
            np.testing.assert_array_equal(masks[index], env.action_masks())
            observation, reward, _, over, info = env.step(int(actions[index]))
            assert (reward, over) == (rewards[index], truncated[index])
            assert info["overridden"] == told["overridden"][index]
            for what in ("proposed", "executed"):
                assert info[what] == Allocations(*(told[what][knob] for knob in Allocations._fields)).host(index)
            assert {name: told["reward"][name][index] for name in info["reward"]} == info["reward"]
            overridden += info["overridden"]
            if over:
                observation, _ = env.reset()
            np.testing.assert_array_equal(observations[index], observation)
    assert 0 < overridden < HOSTS * STEPS


def test_guards_forget_where_episodes_begin_anew():
    """A fresh episode behind old guards would begin with trust, or with punishment, that it did not earn."""
    env = ShieldedVectorEnv(2, load=lambda seed, ticks, tick_seconds: np.full(ticks, 0.3), max_episode_steps=50)
    env.reset(seed=1)
    thaws = np.full(2, THAW)
    for _ in range(5):
        env.step(thaws)
    assert not np.isnan(env.shield.memories["strikes_slack_ratio"]).any()
    env.reset()
    assert env.current.frozen.all()
    assert np.isnan(env.shield.memories["strikes_slack_ratio"]).all()
