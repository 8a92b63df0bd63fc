"""What a learner may try: the lessons L1 to L16 of other managers that are the shield's to hold, one test each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rlctl.envs.actions import MOVES, decode
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.host_env import HostEnv
from rlctl.envs.reward import OVERRIDE_COST
from rlctl.envs.telemetry import Missing, Quantile, Telemetry, Value, Why
from rlctl.safety.profile import Profile, load_profile
from rlctl.safety.shield import Shield
from rlctl.safety.vector_wrapper import ShieldedVectorEnv
from rlctl.safety.wrapper import ShieldedEnv
from tests.doubles.plant import FakePlant

Calm = Callable[..., Telemetry]

LIMITS = Limits(cpus=8)
RUNNING = Allocation(2.0, 4)
GROWING = {index for index, move in enumerate(MOVES) if not move.of(RUNNING, LIMITS).at_most(RUNNING)}
LEAP = next(index for index, move in enumerate(MOVES) if move.name == "leap")


def warm(profile: Profile, calm: Calm) -> Shield:
    """A shield that has seen a calm second."""
    shield = Shield(profile, LIMITS)
    shield.rule(calm(0.0), RUNNING, RUNNING)
    return shield


BLINDED: dict[str, dict[str, object]] = {
    "stalled client": {"tail_latency_seconds": Quantile(0.001, samples=19, window_seconds=1.0)},
    "zero latency": {"tail_latency_seconds": Quantile(0.0, samples=500, window_seconds=1.0)},
    "old figure": {"tail_latency_seconds": Quantile(0.001, age_seconds=60.0, samples=500)},
    "dead sensor": {"tail_latency_seconds": Missing(Why.GONE)},
    "one request hangs": {"oldest_request_seconds": Value(3.0)},
    "dead LC": {"lc_alive": Value(0.0)},
}


def test_good_news_from_nobody_earns_no_growth(profile: Profile, calm: Calm) -> None:
    """L4, L5: a stalled client or a dead LC shows a low tail, and a policy would give BE the host for it."""
    for name, readings in BLINDED.items():
        shield, trouble = warm(profile, calm), calm(20.0, **readings)
        assert not set(np.flatnonzero(shield.mask(trouble, RUNNING))) & GROWING, name
        for index in GROWING:
            ruled = shield.rule(trouble, RUNNING, decode(index, RUNNING, LIMITS)).allocation
            assert ruled.at_most(RUNNING), name


def test_no_row_of_moves_leaps_past_a_cliff(profile: Profile, calm: Calm) -> None:
    """L8: one step too many near saturation is latency times ten, so growth per second has an end for any action."""
    shield, current = warm(profile, calm), RUNNING
    dice = np.random.default_rng(1)
    for second in range(1, 40):
        telemetry = calm(float(second))
        proposed = decode(int(dice.choice(sorted(GROWING))), current, LIMITS)
        after = shield.rule(telemetry, current, proposed).allocation
        assert after.quota_cpus <= current.quota_cpus + profile.growth_ratio_per_second * LIMITS.cpus + 1e-9
        assert after.cpuset_cpus <= current.cpuset_cpus + profile.growth_cpuset_cpus
        current = after


def test_way_back_is_longer_than_any_way_up(profile: Profile) -> None:
    """L7, L8: cut at once, grow slowly: any lower target is one move away, any higher one a growing number of them."""
    least, most = (Allocation(cpus, LIMITS.cpus) for cpus in (LIMITS.min_quota_cpus, float(LIMITS.cpus)))
    up = max(move.of(least, LIMITS).quota_cpus for move in MOVES if move.name != "leap") - least.quota_cpus
    down = most.quota_cpus - min(move.of(most, LIMITS).quota_cpus for move in MOVES)
    assert up <= profile.growth_ratio_per_second * LIMITS.cpus
    assert down >= 9 * up


def test_exploration_is_masked_where_it_would_hurt(profile: Profile, calm: Calm) -> None:
    """L9: a learner that draws from the mask explores growth with slack only, never in a cool-down."""
    assert set(np.flatnonzero(warm(profile, calm).mask(calm(20.0), RUNNING))) >= GROWING - {LEAP}
    assert not set(np.flatnonzero(warm(profile, calm).mask(calm(20.0, slack=0.08), RUNNING))) & GROWING
    cooling = warm(profile, calm)
    for second in (20.0, 36.0):
        cooling.rule(calm(second, slack=-0.5), RUNNING, RUNNING)
    for second in (37.0, 38.0):
        allowed = [MOVES[index] for index in np.flatnonzero(cooling.mask(calm(second), LIMITS.safe))]
        assert "keep" in {move.name for move in allowed}
        assert all(move.of(LIMITS.safe, LIMITS).at_most(LIMITS.safe) for move in allowed)


def test_leaning_on_the_shield_earns_less() -> None:
    """L10: the same host, the same executed allocations; only the asking differs, and it is charged once a tick."""

    def run(*, modest: bool) -> tuple[float, list[Allocation]]:
        plant = FakePlant(LIMITS, loads=(0.2,))
        env, total, executed = ShieldedEnv(HostEnv(plant), Shield(load_profile("knee"), LIMITS)), 0.0, []
        env.reset(seed=1)
        for tick in range(20):
            asked = greedy[tick] if modest else LIMITS.full
            _, reward, _, _, info = env.step(asked)
            total += float(reward)
            executed.append(info["executed"])
            overridden.append(info["overridden"])
        return total, executed

    greedy: list[Allocation] = []
    overridden: list[bool] = []
    leaning, greedy = run(modest=False)
    leant = sum(overridden)
    overridden.clear()
    asking, same = run(modest=True)
    assert same == greedy
    assert leant > sum(overridden) == 0
    assert asking - leaning == pytest.approx(leant * OVERRIDE_COST)


def test_what_training_stores_is_what_the_host_did() -> None:
    """L5, L10: a sample whose action was cut is marked, in every host and every tick, with both allocations."""
    env = ShieldedVectorEnv(16, max_episode_steps=500, safety="knee")
    env.reset(seed=3)
    dice, cut = np.random.default_rng(2), 0
    for _ in range(60):
        before = env.current
        actions = dice.integers(0, len(MOVES), 16)
        _, rewards, _, _, infos = env.step(actions)
        proposed, executed, marked = infos["proposed"], infos["executed"], infos["overridden"]
        differs = np.zeros(16, bool)
        for knob in ("quota_cpus", "cpuset_cpus", "frozen"):
            differs |= proposed[knob] != executed[knob]
            assert np.array_equal(executed[knob], getattr(env.current, knob))
        for host, action in enumerate(actions):
            asked = decode(int(action), before.host(host), env.limits)
            assert asked.quota_cpus == proposed["quota_cpus"][host]
        assert np.array_equal(marked, differs)
        assert np.array_equal(infos["reward"]["override"], np.where(marked, -OVERRIDE_COST, 0.0))
        terms = ("qos", "severity", "be_work", "reconfiguration", "override")
        assert np.allclose(rewards, sum(infos["reward"][term] for term in terms))
        cut += int(marked.sum())
    assert 0 < cut < 16 * 60
