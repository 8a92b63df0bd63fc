"""The shield around the environment: what it forbids never reaches the host."""

import gymnasium as gym
import numpy as np
import pytest

import rlctl.envs  # noqa: F401 - registers the ids
from rlctl.envs.actions import MOVES, decode
from rlctl.envs.allocation import Limits
from rlctl.envs.reward import OVERRIDE_COST, reward
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield
from rlctl.safety.wrapper import ShieldedEnv
from tests.doubles.plant import FakePlant

INDEX = {move.name: index for index, move in enumerate(MOVES)}


def shielded(loads):
    plant = FakePlant(Limits(cpus=2), loads=loads)
    env = gym.make("rlctl/LiveHost-v0", plant=plant, max_episode_steps=200)
    return plant, ShieldedEnv(env, Shield(load_profile("responsive"), plant.limits))


def test_asking_for_more_stays_frozen_at_full_load():
    plant, env = shielded(loads=(0.99,))
    env.reset(seed=1)
    for _ in range(20):
        *_, info = env.step(INDEX["thaw"])
        assert info["overridden"]
        assert info["executed"].frozen
        assert plant.current.frozen
    env.close()
    assert plant.closed


def test_at_low_load_be_grows():
    plant, env = shielded(loads=(0.2,))
    env.reset(seed=1)
    for _ in range(5):
        env.step(INDEX["thaw"])
    *_, info = env.step(INDEX["quota-2%"])
    assert info["executed"] == plant.current
    assert not plant.current.frozen


def test_leaning_costs_once_and_is_told():
    """L10: who stores its own action learns of a host that never was; who pays nothing leans on the shield for ever."""
    plant, env = shielded(loads=(0.99,))
    env.reset(seed=1)
    for move, overridden in (("quota-11%", True), ("keep", False), ("thaw", True)):
        before = plant.current
        _, total, _, _, info = env.step(INDEX[move])
        assert info["overridden"] == overridden
        assert info["proposed"] == decode(INDEX[move], before, plant.limits)
        assert info["executed"] == plant.current
        assert (info["proposed"] != info["executed"]) == overridden
        asked_the_shield = reward(env.host.telemetry, before, plant.current, overridden=overridden)
        assert info["reward"] == asked_the_shield._asdict()
        assert info["reward"]["override"] == (-OVERRIDE_COST if overridden else 0.0)
        assert total == asked_the_shield.total
    env.close()


def test_always_a_masked_move_never_overridden():
    _, env = shielded(loads=(0.2, 0.5, 0.8, 0.97, 0.3))
    env.reset(seed=1)
    dice = np.random.default_rng(1)
    for _ in range(100):
        masks = env.action_masks()
        assert masks.any()
        *_, info = env.step(int(dice.choice(np.flatnonzero(masks))))
        assert not info["overridden"]
    env.close()


@pytest.mark.parametrize("move", ["keep", "thaw", "quota-11%"])
def test_a_reset_forgets_and_begins_safe(move):
    plant, env = shielded(loads=(0.2,))
    env.reset()
    env.step(INDEX[move])
    env.reset()
    assert plant.current == plant.limits.safe
    env.close()


class Thinking:
    """A learner that takes its time, by a clock that a test sets."""

    def __init__(self, plant, *, live):
        self.plant, self.live, self.now_seconds = plant, live, 0.0

    def clock(self):
        return self.now_seconds

    def think(self, seconds):
        self.now_seconds += seconds
        self.plant.ticks += int(seconds / self.plant.tick_seconds) if self.live else 0


@pytest.mark.parametrize("live", [True, False])
def test_live_host_goes_on_while_learner_thinks(live):
    plant = FakePlant(Limits(cpus=2), loads=(0.2,) * 8 + (0.99,) * 100)
    thinking = Thinking(plant, live=live)
    env = gym.make("rlctl/LiveHost-v0", plant=plant, max_episode_steps=200)
    env = ShieldedEnv(env, Shield(load_profile("responsive"), plant.limits), thinking.clock)
    env.reset()
    for _ in range(4):
        thinking.think(0.5)
        *_, info = env.step(INDEX["thaw"])
    assert not info["executed"].frozen
    ticks = plant.ticks
    thinking.think(30.0)
    assert env.action_masks()[INDEX["keep"]] == (not live)
    *_, info = env.step(INDEX["keep"])
    assert info["executed"].frozen == live, "the load that came meanwhile must count"
    assert live or plant.ticks == ticks + 1, "no simulated period may pass but the step's own"
