"""The vector environment: each host lives exactly the episodes that it would live alone."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import rlctl.envs  # noqa: F401 - registers the ids
from rlctl.envs.actions import MOVES
from rlctl.envs.allocations import Allocations
from rlctl.envs.errors import ConfigError, PolicyError
from rlctl.envs.law import law
from rlctl.envs.observation import MOST_PRICE
from rlctl.envs.sim import seeds
from rlctl.envs.sim.loads_training import training_load
from rlctl.envs.sim.plant import SimPlant
from rlctl.envs.sim.profile import load_profile
from rlctl.envs.sim.sim_env import SimHost
from rlctl.envs.sim.tick import ask, copy_allocation, differ, pass_ticks
from rlctl.envs.sim.vector_env import SimHostVectorEnv
from rlctl.envs.workload import Weight

HOSTS, STEPS = 4, 14
PROFILE = (
    load_profile("thesis-host")
    .but(missing_ratio=0.1, delay_ticks=1)
    .model_copy(update={"ranges": {"service_seconds": (25e-6, 40e-6), "delay_ticks": (0, 2)}})
)


def _single(**options):
    return gym.make("rlctl/SimHost-v0", max_episode_steps=STEPS, profile=PROFILE, **options)


def _vector(**options):
    return gym.make_vec("rlctl/SimHost-v0", num_envs=HOSTS, max_episode_steps=STEPS, profile=PROFILE, **options)


class Frugal:
    """A shield that lets BE thaw only beside a low load, and notes whose episodes begin."""

    def __init__(self):
        self.begun, self.ruled_at = 0, []

    def reset(self):
        self.begun += 1

    def loop(self, readings):
        self.ruled_at.append(readings["time_seconds"].tolist())
        return pass_frugal, (readings,)

    def mask(self, readings, current):
        return np.repeat(readings.load_ratio[:, None] <= 0.5, len(MOVES), axis=1)


@law
def pass_frugal(known, rows, tick, before, moves, loads, at, number, newest, begins, first, last):
    for place in range(first, last):
        asked, allowed = tick.proposed[place], tick.allocations[place]
        ask(int(moves[place]), before[place], rows.seen.limits[place], asked)
        copy_allocation(asked, allowed)
        allowed["frozen"] = asked["frozen"] or known[place]["load_ratio"] > 0.5
        tick.overridden[place] = differ(asked, allowed)
    pass_ticks(rows, tick, before, moves[:0], loads, at, number, newest, begins, first, last)


def test_gymnasium_accepts_the_single_one_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make("rlctl/SimHost-v0").unwrapped)
        assert gym.make_vec("rlctl/SimHost-v0", num_envs=2).metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


def test_first_episode_of_seed_is_that_plant():
    env = SimHost(PROFILE, vary=False)
    env.reset(seed=11)
    plant = SimPlant(PROFILE.model_copy(update={"ranges": {}}), training_load, 3001, seed=11)
    plant.apply(plant.limits.safe)
    plant.wait()
    assert env.telemetry == plant.read()


def test_episodes_differ_by_their_seeds_kind():
    env = SimHost(PROFILE)
    keys = []
    for seed in (seeds.training(3), None, None, seeds.evaluation(3), None, seeds.training(3), None):
        env.reset(seed=seed)
        keys.append(int(env.plant.batch.hosts.seeds[0]))
    assert keys[:2] == keys[5:]
    assert len(set(keys[:5])) == 5
    kinds = [seeds.kind_of(key) for key in keys]
    assert kinds == [seeds.SeedKind.TRAINING] * 3 + [seeds.SeedKind.EVALUATION] * 2 + [seeds.SeedKind.TRAINING] * 2


@pytest.mark.parametrize("weight", [Weight.EQUAL, Weight.MINIMUM])
def test_vector_and_single_agree_over_episodes(weight):
    vector = _vector(weight=weight)
    singles = [_single(weight=weight) for _ in range(HOSTS)]
    seen, infos = vector.reset(seed=70)
    for host, one in enumerate(singles):
        assert np.array_equal(one.reset(seed=70 + host)[0], seen[host])
    assert "reward" not in infos
    rng = np.random.default_rng(1)
    for step in range(3 * STEPS + 5):
        masks = vector.action_masks()
        single_masks = [one.get_wrapper_attr("action_masks")() for one in singles]
        assert np.array_equal(masks, single_masks)
        actions = rng.integers(0, len(MOVES), HOSTS)
        seen, total, terminated, truncated, infos = vector.step(actions)
        assert not terminated.any()
        assert truncated.all() == ((step + 1) % STEPS == 0)
        for host, one in enumerate(singles):
            _agrees(one, one.step(actions[host]), host, (seen, total, truncated, infos))
    for one in singles:
        one.close()
    vector.close()


def _agrees(single, came, host, vector):
    observation, total, _, over, info = came
    seen, totals, truncated, infos = vector
    assert totals[host] == total
    assert truncated[host] == over
    about = infos["final_info"] if over else infos
    assert about["_reward"][host]
    assert {name: about["reward"][name][host] for name in info["reward"]} == info["reward"]
    assert Allocations(*(about["allocation"][name] for name in Allocations._fields)).host(host) == info["allocation"]
    if over:
        assert infos["_final_obs"][host]
        assert not infos.get("_reward", np.zeros(HOSTS, bool))[host]
        assert np.array_equal(infos["final_obs"][host], observation)
        observation, _ = single.reset()
    assert np.array_equal(seen[host], observation)


def test_each_episode_has_its_seen_price():
    env, plain = (SimHostVectorEnv(64, PROFILE, max_episode_steps=STEPS, priced=priced) for priced in (True, False))
    (seen, _), (before, _) = env.reset(seed=0), plain.reset(seed=0)
    told = seen[:, -1]
    assert told.min() < -0.5
    assert told.max() > 0.5
    assert (before[:, -1] == 0.0).all()
    assert np.array_equal(seen[:, :-1], before[:, :-1])
    full = np.full(64, next(place for place, move in enumerate(MOVES) if move.quota_ratio == 1.0))
    (_, _, _, _, dear), (_, _, _, _, usual) = env.step(full), plain.step(full)
    work, usual_work = dear["reward"]["be_work"], usual["reward"]["be_work"]
    assert (usual_work > 0.0).any()
    np.testing.assert_allclose(work, usual_work / MOST_PRICE**told, rtol=1e-5)
    for _ in range(STEPS):
        seen = env.step(np.zeros(64, int))[0]
    assert not np.array_equal(seen[:, -1], told), "another episode, another price"


def test_reset_in_mid_episode_is_exact():
    vector = _vector()
    singles = [_single() for _ in range(HOSTS)]
    vector.reset(seed=5)
    for host, one in enumerate(singles):
        one.reset(seed=5 + host)
    rng = np.random.default_rng(2)
    for step in range(3 * STEPS):
        if step in (5, 12):
            seeds = [None] * HOSTS if step == 5 else [900, None, None, 903]
            first, _ = vector.reset(seed=seeds)
            assert all(np.array_equal(first[host], one.reset(seed=seeds[host])[0]) for host, one in enumerate(singles))
        actions = rng.integers(0, len(MOVES), HOSTS)
        seen, total, _, truncated, infos = vector.step(actions)
        for host, one in enumerate(singles):
            _agrees(one, one.step(actions[host]), host, (seen, total, truncated, infos))


def test_shield_rules_every_action_and_hears_episodes():
    shield = Frugal()
    profile = load_profile("thesis-host").but(missing_ratio=0.0, delay_ticks=0.0)

    def load(seed, ticks, tick_seconds):
        return np.full(ticks, (0.2, 0.9)[seed % 2])

    env = SimHostVectorEnv(2, profile, load, vary=False, max_episode_steps=3, shield=shield)
    env.reset(seed=0)
    assert env.action_masks().tolist() == [[True] * len(MOVES), [False] * len(MOVES)]
    thaw = np.full(2, [move.name for move in MOVES].index("thaw"))
    *_, infos = env.step(thaw)
    assert env.current.frozen.tolist() == infos["executed"]["frozen"].tolist() == [False, True]
    assert infos["proposed"]["frozen"].tolist() == [False, False]
    assert infos["overridden"].tolist() == [False, True]
    env.step(thaw)
    *_, infos = env.step(thaw)
    assert infos["final_info"]["_overridden"].tolist() == [True, True]
    assert infos["_overridden"].tolist() == [False, False]
    assert shield.begun == 2
    assert shield.ruled_at == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]


def test_same_seed_gives_the_same_run():
    def run(spoil):
        env = SimHostVectorEnv(4, PROFILE, max_episode_steps=7)
        history = [env.reset(seed=3)[0].copy()]
        for step in range(20):
            seen, total, *_ = env.step(np.full(4, step % len(MOVES)))
            history += [seen.copy(), total.copy()]
            if spoil:
                seen[:] = 0.0
        return history

    assert all(np.array_equal(a, b) for a, b in zip(run(False), run(True), strict=True))


def test_hosts_without_seed_differ():
    firsts = [SimHostVectorEnv(3, PROFILE).reset(seed=seed)[0] for seed in (None, [None] * 3)]
    assert len({row.tobytes() for seen in firsts for row in seen}) == 6


def test_own_load_is_asked_for_each_host():
    asked = []

    def load(seed, ticks, tick_seconds):
        asked.append((seed, ticks, tick_seconds))
        return np.full(ticks, 0.5)

    env = SimHostVectorEnv(3, PROFILE, load, ticks=12, tick_seconds=2.0)
    env.reset(seed=8)
    env.step(np.zeros(3, int))
    assert asked == [(8, 12, 2.0), (9, 12, 2.0), (10, 12, 2.0)]


def test_gymnasium_s_own_wrapper_counts_the_episodes():
    env = RecordEpisodeStatistics(SimHostVectorEnv(3, PROFILE, max_episode_steps=6))
    env.reset(seed=0)
    for _ in range(12):
        env.step(np.zeros(3, int))
    assert list(env.length_queue) == [6] * 6


def test_mistakes_are_told_in_one_line():
    env = SimHostVectorEnv(3)
    with pytest.raises(ConfigError, match=r"call reset\(\) first"):
        env.step(np.zeros(3, int))
    with pytest.raises(ConfigError, match="2 seeds for 3 hosts"):
        env.reset(seed=[1, 2])
    with pytest.raises(ConfigError, match="at least one"):
        SimHostVectorEnv(0)
    with pytest.raises(ConfigError, match="no host profile"):
        SimHostVectorEnv(1, "no-such-host")
    env.reset(seed=0)
    with pytest.raises(PolicyError, match="outside the table"):
        env.step(np.full(3, len(MOVES)))


def test_a_tick_has_one_telemetry() -> None:
    """The shield learns from each object once: the info's and the environment's are the same one."""
    env = gym.make("rlctl/SimHost-v0")
    env.reset(seed=1)
    info = env.step(0)[4]
    assert info["telemetry"] is env.unwrapped.telemetry  # type: ignore[attr-defined]
    assert dict(info)["telemetry"] is info["telemetry"]
