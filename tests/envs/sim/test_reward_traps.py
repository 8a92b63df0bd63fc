"""The traps of a reward (lessons L1 to L16) that need a host which answers: policies that would game it, simulated."""

import numpy as np
import pytest

from rlctl.envs.actions import MOVES
from rlctl.envs.allocations import Allocations
from rlctl.envs.features import FRAME_SIZE
from rlctl.envs.observation import LAGS
from rlctl.envs.reward import WORK
from rlctl.envs.sim.profile import load_profile
from rlctl.envs.sim.sim_env import SimHost
from rlctl.envs.sim.vector_env import SimHostVectorEnv
from rlctl.envs.telemetry import Missing, Why

INDEX = {move.name: index for index, move in enumerate(MOVES)}
CLEAR = load_profile("thesis-host").but(missing_ratio=0.0, delay_ticks=0.0, pause_ratio=0.0, spikes_per_hour=0.0)
HOSTS, STEPS = 8, 60


def at(load):
    return lambda seed, ticks, tick_seconds: np.full(ticks, load)


def run(policy, load, profile=CLEAR, **options):
    """The sum of rewards, the sum of BE's terms and the number of missed ticks, over all hosts."""
    env = SimHostVectorEnv(HOSTS, profile, at(load), vary=False, max_episode_steps=STEPS + 1, **options)
    env.reset(seed=5)
    total, work, missed = 0.0, 0.0, 0
    for tick in range(STEPS):
        _, rewards, _, _, infos = env.step(policy(env, tick))
        total += rewards.sum()
        work += infos["reward"]["be_work"].sum()
        missed += int((infos["reward"]["qos"] <= -1.0).sum())
    return total, work, missed


def greedy(env, tick):
    return Allocations.same(env.limits.full, HOSTS)


def frozen(env, tick):
    return np.full(HOSTS, INDEX["freeze"])


def test_work_pays_at_low_load_only():
    """L2: the reward's best policy is neither to freeze BE for ever nor to give it all."""
    assert run(greedy, 0.1)[0] > run(frozen, 0.1)[0]
    full, nothing = run(greedy, 1.0), run(frozen, 1.0)
    assert full[2] > nothing[2]
    assert full[0] < nothing[0]


@pytest.mark.slow
def test_worth_of_work_is_a_hosts_own():
    """L2: it says how many windows BE's work may cost, so kinds of hosts with other odds are given another one."""
    for policy in (greedy, frozen):
        total, work, missed = run(policy, 0.3)
        priced = run(policy, 0.3, work=2.0 * WORK)
        assert priced[1] == pytest.approx(2.0 * work)
        assert priced[0] - total == pytest.approx(work)
        assert priced[2] == missed
    assert run(greedy, 0.3, work=WORK) == run(greedy, 0.3)


def test_larger_grant_to_frozen_be_earns_nothing():
    """L3: the allocation is read by nobody; a BE that does not run does no work."""
    granted = Allocations(np.full(HOSTS, 8.0), np.full(HOSTS, 8), np.ones(HOSTS, bool))
    assert run(lambda env, tick: granted, 0.3)[1] == 0.0


def test_flapping_for_nothing_costs():
    """L7: two policies with the same BE work; the one that turns a knob every tick earns less."""

    def flap(env, tick):
        return np.full(HOSTS, INDEX["cpuset+1" if tick % 2 else "cpuset-1"])  # of a frozen BE: nobody feels it

    assert run(flap, 0.3)[0] < run(frozen, 0.3)[0]


def test_losing_the_sensor_never_pays():
    """L4: what is not seen counts as missed, as it would on a live host."""
    blind = CLEAR.but(missing_ratio=0.5)
    assert run(frozen, 0.3, blind)[0] < run(frozen, 0.3)[0] - 0.25 * HOSTS * STEPS


@pytest.mark.slow
def test_true_rewards_charge_no_lost_window():
    """L5, L6: in training the sensors' faults may be left out of the reward, but not what the LC's users felt."""
    faulty = CLEAR.but(missing_ratio=0.5, delay_ticks=2.0)
    assert run(frozen, 0.3, faulty, true_rewards=True)[2] == run(frozen, 0.3)[2] == 0
    for load in (0.3, 1.0):
        assert run(greedy, load, true_rewards=True) == run(greedy, load)
    assert run(greedy, 1.0, faulty, true_rewards=True)[2] > 0


def test_a_late_window_is_seen_to_be_late():
    """L6: the violation that an action caused arrives ticks later; its age and the older frames say so."""
    late = SimHostVectorEnv(1, CLEAR.but(delay_ticks=3.0), at(0.5), vary=False, max_episode_steps=40)
    prompt = SimHostVectorEnv(1, CLEAR, at(0.5), vary=False, max_episode_steps=40)
    frames = []
    for env in (late, prompt):
        env.reset(seed=1)
        for _ in range(10):
            seen = env.step(np.array([INDEX["thaw"]]))[0]
        frames.append(seen[0, : FRAME_SIZE * len(LAGS)])
    np.testing.assert_allclose(frames[0][-1], 3.0 / 5.0 - 1.0, atol=1e-6)
    np.testing.assert_allclose(frames[1][-1], -1.0, atol=1e-6)


def test_undelivered_readings_are_told_to_single_learner():
    """L5: a censored sample is marked in the telemetry that is logged beside it, with the reason."""
    env = SimHost(CLEAR.but(missing_ratio=0.99), at(0.5), vary=False)
    env.reset(seed=1)
    for _ in range(3):
        *_, info = env.step(INDEX["keep"])
    latency = info["telemetry"].latency_seconds
    assert isinstance(latency, Missing)
    assert latency.why is Why.NO_DATA
