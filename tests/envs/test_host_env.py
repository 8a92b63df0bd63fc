"""The Gymnasium environment over a fake host."""

import warnings

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

import rlctl.envs  # noqa: F401 - registers the ids
from rlctl.envs.actions import EVERYTHING, MOVES
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import CgroupError, PermissionMissing
from rlctl.envs.host_env import HostEnv
from tests.doubles.plant import FakePlant

INDEX = {move.name: index for index, move in enumerate(MOVES)}


@pytest.fixture
def env():
    made = HostEnv(FakePlant(Limits(cpus=1), loads=(0.3,)))
    yield made
    made.close()


def test_gymnasium_accepts_it_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(HostEnv(FakePlant()), skip_render_check=True)


def test_gymnasium_knows_it_and_it_truncates():
    env = gym.make("rlctl/LiveHost-v0", plant=FakePlant(), max_episode_steps=3)
    env.reset()
    assert [env.step(INDEX["keep"])[3] for _ in range(3)] == [False, False, True]
    env.close()


def test_an_episode_begins_safe_and_names_its_reward(env):
    _, info = env.reset()
    assert info["allocation"] == env.plant.limits.safe
    env.step(INDEX["thaw"])
    env.step(INDEX["quota-21%"])
    _, total, _, _, info = env.step(INDEX["quota-21%"])
    assert total == pytest.approx(sum(info["reward"].values()))
    assert info["reward"]["be_work"] > 0
    assert info["reward"]["override"] == 0.0
    assert info["missed_deadlines"] == 0


def test_step_after_an_update_is_a_whole_period(env, monkeypatch):
    """Two deadlines went by meanwhile: what was in force in them says nothing of this move."""
    env.reset()
    skipped, plant = iter([2, 0]), env.plant
    wait = plant.wait
    monkeypatch.setattr(plant, "wait", lambda: wait() + next(skipped))
    *_, info = env.step(INDEX["thaw"])
    assert list(skipped) == []
    assert info["missed_deadlines"] == 2


@pytest.mark.parametrize("error", [CgroupError("x"), PermissionMissing("x")])
def test_a_write_that_is_refused_leaves_be_safe(env, monkeypatch, error):
    env.reset()
    apply = env.plant.apply

    def refused(allocation):
        if allocation != env.plant.limits.safe:
            raise error
        return apply(allocation)

    monkeypatch.setattr(env.plant, "apply", refused)
    with pytest.raises(type(error)):
        env.step(INDEX[EVERYTHING.name])
    assert env.plant.current == env.plant.limits.safe


def test_masks_leave_out_what_changes_nothing(env):
    env.reset()
    masks = dict(zip(INDEX, env.action_masks(), strict=True))
    assert masks["keep"]
    assert masks["thaw"]
    assert not masks["freeze"]
    assert not masks["minimum"]
    assert masks["quota-1%"]  # the quota is there already, but it thaws
    assert masks["quota-1.2%"]
    env.step(INDEX["quota-1%"])
    assert not dict(zip(INDEX, env.action_masks(), strict=True))["quota-1%"]


def test_closing_gives_the_host_back(env):
    env.reset()
    env.close()
    assert env.plant.closed


def test_it_says_what_it_sees():
    env = HostEnv(FakePlant(), render_mode="ansi")
    assert env.render() is None
    env.reset()
    assert "ms of 10 ms; BE" in env.render()
