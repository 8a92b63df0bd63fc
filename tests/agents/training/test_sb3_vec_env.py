"""Stable-Baselines3 trains on simulated hosts, and gets the episode ends as it wants them."""

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="needs rlctl[train]")

from stable_baselines3 import DQN, PPO
from stable_baselines3.common.vec_env import VecMonitor

from rlctl.agents.training.sb3_vec_env import SimVecEnv
from rlctl.envs.actions import MOVES
from rlctl.envs.errors import ConfigError
from rlctl.envs.reward import WORK
from rlctl.envs.sim.seeds import evaluation
from rlctl.envs.sim.vector_env import SimHostVectorEnv
from rlctl.safety.vector_wrapper import ShieldedVectorEnv

pytestmark = pytest.mark.train

HOSTS, STEPS = 4, 50


@pytest.fixture
def env():
    made = SimVecEnv(SimHostVectorEnv(HOSTS, max_episode_steps=STEPS))
    yield made
    made.close()


def test_episode_ends_as_host_by_host(env):
    env.seed(7)
    first = env.reset()
    singles = [gym.make("rlctl/SimHost-v0", max_episode_steps=STEPS) for _ in range(HOSTS)]
    assert np.array_equal(first, [one.reset(seed=7 + host)[0] for host, one in enumerate(singles)])
    actions = np.random.default_rng(0).integers(0, len(MOVES), (STEPS, HOSTS))
    for action in actions:
        seen, rewards, dones, infos = env.step(action)
        alone = [one.step(move) for one, move in zip(singles, action, strict=True)]
        assert np.array_equal(rewards, np.array([came[1] for came in alone], np.float32))
        assert list(dones) == [came[3] for came in alone] == [info["TimeLimit.truncated"] for info in infos]
    assert dones.all()
    assert all(np.array_equal(info["terminal_observation"], came[0]) for info, came in zip(infos, alone, strict=True))
    assert np.array_equal(seen, [one.reset()[0] for one in singles])


def test_reset_without_seed_goes_on(env):
    env.seed(7)
    first, second = env.reset(), env.reset()
    assert not np.array_equal(first, second)
    env.seed(7)
    assert np.array_equal(env.reset(), first)


def test_masks_are_asked_for_as_learners_ask(env):
    env.reset()
    assert np.array_equal(env.env_method("action_masks"), env.groups[0].action_masks())
    assert len(env.env_method("action_masks", indices=[2])) == 1
    assert env.get_attr("render_mode") == [None] * HOSTS
    assert env.has_attr("action_masks")
    assert not env.has_attr("no_such_thing")
    assert env.env_is_wrapped(gym.Wrapper) == [False] * HOSTS
    with pytest.raises(NotImplementedError):
        env.set_attr("shield", None)


def groups():
    return [
        SimHostVectorEnv(3, max_episode_steps=STEPS, true_rewards=True, priced=True),
        ShieldedVectorEnv(2, "two-core-host", max_episode_steps=STEPS - 10, absent=("cpi",), true_rewards=True),
    ]


def test_groups_are_what_they_are_alone():
    together, alone = SimVecEnv(*groups()), groups()
    together.seed(7)
    seen = together.reset()
    firsts = [alone[0].reset(seed=7)[0], alone[1].reset(seed=10)[0]]
    assert np.array_equal(seen, np.concatenate(firsts))
    missed, work, overridden = np.zeros(2), np.zeros(2), np.zeros(2)
    for action in np.random.default_rng(0).integers(0, len(MOVES), (STEPS, 5)):
        masks = np.concatenate([one.action_masks() for one in alone])
        assert np.array_equal(together.env_method("action_masks"), masks)
        seen, rewards, dones, infos = together.step(action)
        prices = [one.prices for one in alone]
        each = [alone[0].step(action[:3]), alone[1].step(action[3:])]
        assert np.array_equal(seen, np.concatenate([one[0] for one in each]))
        assert np.array_equal(rewards, np.concatenate([one[1] for one in each]).astype(np.float32))
        assert dones.tolist() == [info["TimeLimit.truncated"] for info in infos]
        terms = [one[4]["reward"] for one in each]
        missed += [(one["qos"] == -1.0).sum() for one in terms]
        work += [(one["be_work"] * price).sum() / WORK for one, price in zip(terms, prices, strict=True)]
        overridden += [(one["override"] < 0.0).sum() for one in terms]
    counts = together.take_counts()
    happened = counts.happened.values()
    assert [one.ticks for one in happened] == [3 * STEPS, 2 * STEPS]
    assert np.array_equal([one.missed for one in happened], missed)
    assert np.allclose([one.be_work for one in happened], work)
    assert np.array_equal([one.overridden for one in happened], overridden)
    assert sorted(counts.episode_steps) == [STEPS - 10] * 2 + [STEPS] * 3
    assert [one.ticks for one in together.take_counts().happened.values()] == [0, 0]


def test_hosts_that_cannot_learn_together_are_refused(env):
    with pytest.raises(ConfigError, match="differ"):
        SimVecEnv(SimHostVectorEnv(2), SimHostVectorEnv(2, lags=(0,)))
    with pytest.raises(ConfigError, match="evaluation seed"):
        env.seed(evaluation(0))


@pytest.mark.parametrize(
    ("learner", "options"),
    [(PPO, {"n_steps": 64, "batch_size": 64, "n_epochs": 2}), (DQN, {"learning_starts": 200, "buffer_size": 400})],
)
def test_learners_learn(env, learner, options):
    model = learner("MlpPolicy", VecMonitor(env), seed=1, device="cpu", **options)
    model.learn(512)
    assert model.num_timesteps >= 512
    assert len(model.ep_info_buffer) > 0
    assert {episode["l"] for episode in model.ep_info_buffer} == {STEPS}
    action, _ = model.predict(env.reset(), deterministic=True)
    assert env.action_space.contains(action[0])
