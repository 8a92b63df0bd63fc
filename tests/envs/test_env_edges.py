"""What users of Gymnasium's interface ask of the environments beyond a step: modes, options, cost, pictures, names."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import RecordEpisodeStatistics

from rlctl.bench.scenarios import shipped_scenarios
from rlctl.bench.sim_scenario import SimScenario
from rlctl.envs import SCENARIO_STEPS
from rlctl.envs.actions import MOVES
from rlctl.envs.constrained import REWARDED, ConstrainedEnv
from rlctl.envs.errors import ConfigError
from rlctl.envs.features import FEATURES
from rlctl.envs.host_env import HostEnv
from rlctl.envs.sim.vector_env import SimHostVectorEnv

SIM, PROFILE = "rlctl/SimHost-v0", "two-core-nginx"
KEEP, THAW, LEAP = 0, 2, 32


def hosts(**options):
    return gym.make_vec(SIM, 2, profile=PROFILE, max_episode_steps=3, **options)


def run_out(env):
    env.reset(seed=1)
    steps = [env.step(np.array([KEEP, KEEP])) for _ in range(3)]
    assert steps[-1][3].all()
    return steps


def test_docstring_has_the_tables_of_the_code():
    rows = [
        f"| {number} | {one.name} | {one.unit} | {one.low:g} | {one.high:g} | {one.scale} | "
        f"{'yes' if one.optional else 'no'} |"
        for number, one in enumerate(FEATURES)
    ]
    text = HostEnv.__doc__
    assert [row for row in rows if row not in text] == []
    assert f"Discrete({len(MOVES)})" in text
    named = {"keep": "0", "freeze": "1", "thaw": "2", "minimum": "3", "leap": "32"}
    assert {name: str(place) for place, name in enumerate(m.name for m in MOVES) if name in named} == named
    assert [MOVES[place].name for place in (4, 31, 33, 34)] == ["quota-1%", "quota-100%", "cpuset-1", "cpuset+1"]


def test_each_simulated_scenario_is_an_environment():
    shipped = {name: one.ticks for name, one in shipped_scenarios().items() if isinstance(one, SimScenario)}
    assert shipped == SCENARIO_STEPS
    env = gym.make("rlctl/FlashCrowd-v0")
    env.reset(seed=3)
    assert env.step(THAW)[4]["telemetry"].time_seconds > 0.0
    many = gym.make_vec("rlctl/TwoCore-v0", 2)
    one = gym.make("rlctl/TwoCore-v0")
    assert (many.reset(seed=5)[0][1] == one.reset(seed=6)[0]).all()


def test_specification_survives_json():
    load = {"kind": "staircase", "low_ratio": 0.2, "high_ratio": 0.6, "rungs": 3, "step_seconds": 10}
    spec = gym.make(SIM, profile=PROFILE, weight="minimum", load=load).spec
    again = gym.make(EnvSpec.from_json(spec.to_json()))
    assert again.unwrapped.plant.limits.least_weight
    assert (again.reset(seed=2)[0] == gym.make(spec).reset(seed=2)[0]).all()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, "next_step", "NextStep"])
def test_next_step_begins_episodes_a_step_later(mode):
    env = hosts(autoreset_mode=mode)
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    *_, (last, *_) = run_out(env)
    begun, rewards, ended, cut, _ = env.step(np.array([LEAP, LEAP]))
    assert not ended.any()
    assert not cut.any()
    assert not rewards.any()
    same = hosts()
    *_, (first, *_, info) = run_out(same)
    assert (begun == first).all(), "the same next episodes"
    assert (np.stack(info["final_obs"]) == last).all()


def test_without_autoreset_only_a_reset_goes_on():
    env = hosts(autoreset_mode="disabled")
    run_out(env)
    with pytest.raises(ConfigError, match="reset"):
        env.step(np.array([KEEP, KEEP]))
    with pytest.raises(ConfigError, match="reset_mask"):
        env.reset(options={"reset_mask": np.array([True, False])})
    env.reset(options={"reset_mask": np.array([True, True])})
    env.step(np.array([KEEP, KEEP]))


@pytest.mark.parametrize(
    "options", [{"autoreset_mode": "sometimes"}, {"render_mode": "rgb_array"}, {"weight": "light"}, {"load": {}}]
)
def test_what_cannot_be_is_refused(options):
    with pytest.raises(ConfigError, match=str(next(iter(options)) if "load" not in options else "kind")):
        SimHostVectorEnv(2, PROFILE, **options)


def test_options_of_a_reset_are_refused():
    for env in (hosts(), gym.make(SIM, profile=PROFILE)):
        with pytest.raises(ConfigError, match="'speed'"):
            env.reset(options={"speed": 2})


def test_closed_hosts_are_not_stepped():
    env = hosts()
    env.reset(seed=1)
    env.close()
    with pytest.raises(ConfigError, match="closed"):
        env.step(np.array([KEEP, KEEP]))


def test_cost_is_a_missed_window():
    env, many = ConstrainedEnv(gym.make(SIM, profile=PROFILE)), hosts()
    env.reset(seed=7)
    many.reset(seed=7)
    for move in (THAW, LEAP, LEAP):
        _, reward, cost, _, _, info = env.step(move)
        *_, infos = many.step(np.array([move, KEEP]))
        assert reward == pytest.approx(sum(info["reward"][name] for name in REWARDED))
        assert cost == float(info["telemetry"].missed)
        assert infos.get("final_info", infos)["cost"][0] == cost


def test_first_tick_without_data_costs_nothing():
    late = {"profile": "thesis-host", "vary": True}  # some of these hosts have a sensor that is a tick late
    env = SimHostVectorEnv(200, **late)
    env.reset(seed=11)
    *_, infos = env.step(np.zeros(200, int))
    lost = infos["telemetry"]["lost"]
    assert lost.any()
    assert not infos["cost"][lost].any()
    *_, infos = env.step(np.zeros(200, int))
    assert infos["cost"][infos["telemetry"]["lost"]].all()


def test_picture_shows_the_episode():
    env = RecordEpisodeStatistics(gym.make(SIM, profile=PROFILE, render_mode="rgb_array"))
    env.reset(seed=1)
    first = env.render()
    env.step(LEAP)
    assert first.shape == (480, 640, 3)
    assert first.dtype == np.uint8
    assert (env.render() != first).any()
    with pytest.raises(ConfigError, match="render_mode 'human'"):
        HostEnv(env.unwrapped.plant, render_mode="human")
