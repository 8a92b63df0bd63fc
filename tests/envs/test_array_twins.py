"""Observation, actions and reward of many hosts: number for number what each host's telemetry gives."""

import numpy as np
import pytest

from rlctl.envs.actions import MOVES, decode
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.allocations import Allocations, checked_moves
from rlctl.envs.errors import ConfigError, PolicyError
from rlctl.envs.observation import LAGS, Observer
from rlctl.envs.observations import VectorObserver
from rlctl.envs.reward import WORK, reward, rewards
from rlctl.envs.sim.loads_training import load_rows, training_load, training_loads
from rlctl.envs.sim.plant import SimBatch
from rlctl.envs.sim.profile import load_profile
from rlctl.envs.telemetry import Missing, Value, Why

HOSTS = 12


def test_allocations_are_clipped_as_limits_clip_them():
    limits = Limits(4)
    each = [Allocation(UNLIMITED, 9), Allocation(99.0, 2, frozen=True), Allocation(1e-6, 1), Allocation(0.5, 4)]
    clipped = Allocations.of(each).clip_to(limits)
    assert [clipped.host(i) for i in range(4)] == [limits.clip(one) for one in each]


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        (np.array([0, len(MOVES)]), f"host 1: action {len(MOVES)}"),
        (np.array([-1, 0]), "host 0: action -1"),
        (np.array([0.0, 1.0]), "float64"),
        (np.array([0, 0, 0]), "2 hosts"),
    ],
)
def test_an_action_outside_the_space_names_its_host(actions, said):
    with pytest.raises(PolicyError, match=said):
        checked_moves(actions, 2)


def _profile(delay_ticks):
    return (
        load_profile("thesis-host")
        .but(missing_ratio=0.25, delay_ticks=delay_ticks, pause_ratio=0.2, spikes_per_hour=60, spike_seconds=0.5)
        .model_copy(
            update={"ranges": {"service_seconds": (20e-6, 60e-6), "target_seconds": (0.005, 0.02), "lc_cpus": (8, 17)}}
        )
    )


SENSOR_OF = {
    "cpi": "cpi",
    "cpu_per_request": "lc_cpu_seconds_per_request",
    "lc_cpus": "lc_cpus",
    "be_cpus": "be_cpus",
}


@pytest.mark.parametrize(
    ("delay_ticks", "lags", "absent"),
    [
        (0, LAGS, ()),
        (3, LAGS, {"cpi"}),
        (3, (5, 2, 0), {"cpu_per_request", "lc_cpus"}),
        (0, (0,), {"be_cpus", "cpi"}),
    ],
)
def test_observation_and_reward_are_those_of_the_telemetry(delay_ticks, lags, absent):
    """Idle and overloaded hosts, with windows that come late or never, by their own readings and by arrays."""
    rng = np.random.default_rng(delay_ticks)
    batch = SimBatch(_profile(delay_ticks), list(range(HOSTS)), training_load, 60, vary=True)
    limits = batch.limits
    single = [Observer(limits, 1.0, lags) for _ in range(HOSTS)]
    together = VectorObserver(limits, 1.0, lags, absent)
    seen_lost = seen_violations = 0
    for tick in range(60):
        before = list(batch.allocations)
        batch.apply(
            [
                decode(int(move), one, limits)
                for move, one in zip(rng.integers(0, len(MOVES), HOSTS), before, strict=True)
            ]
        )
        batch.step()
        oldest = batch.sensors.rows["seen"][:, 1] * rng.choice(
            [1.0, 1000.0], HOSTS
        )  # a stalled server: its tail looks well
        readings = batch.read()._replace(oldest_request_seconds=oldest)
        demand = np.where(rng.random(HOSTS) < 0.1, 0.0, readings.lc_cpu_seconds_per_request)  # an LC without counters
        readings = readings._replace(lc_cpu_seconds_per_request=demand)
        current = Allocations.of(batch.allocations)
        vectors = (together.begin if tick == 0 else together.observe)(readings, current)
        overridden = rng.random(HOSTS) < 0.5
        terms = rewards(readings, Allocations.of(before).differ(current), overridden)
        for host, telemetry in enumerate(batch.telemetry()):
            if isinstance(telemetry.oldest_request_seconds, Value):
                age_seconds = telemetry.oldest_request_seconds.age_seconds
                telemetry = telemetry.but(oldest_request_seconds=Value(float(oldest[host]), age_seconds))
            telemetry = telemetry.but(lc_cpu_seconds_per_request=Value(float(demand[host])))
            unsensed = telemetry.but(**{SENSOR_OF[name]: Missing(Why.NOT_SUPPORTED) for name in absent})
            after = batch.allocations[host]
            assert np.array_equal(vectors[host], single[host].observe(unsensed, after).vector)
            expected = reward(telemetry, before[host], after, overridden=bool(overridden[host]))
            assert [float(part[host]) for part in terms] == list(expected._asdict().values())
            assert terms.total[host] == expected.total
        priced = rewards(readings, Allocations.of(before).differ(current), overridden, work=2.0 * WORK)
        for name, one in terms._asdict().items():
            assert np.allclose(getattr(priced, name), 2.0 * one if name == "be_work" else one)
        seen_lost += int(readings.lost.sum())
        seen_violations += int((terms.qos <= -1.0).sum())
    assert vectors.dtype == np.float32
    assert together.space.contains(vectors[0])
    assert seen_lost > HOSTS
    assert seen_violations > HOSTS


def test_no_number_leaves_the_vectors_space():
    batch = SimBatch(_profile(0), [1, 2, 3], training_load, 5)
    batch.step()
    readings = batch.read()
    observer = VectorObserver(batch.limits, 1.0)
    for absurd in (np.nan, np.inf, -np.inf, 1e300):
        spoilt = readings._replace(
            tail_latency_seconds=np.full(3, absurd), cpi=np.full(3, absurd), load_ratio=np.full(3, absurd)
        )
        assert observer.space.contains(observer.begin(spoilt, Allocations.same(batch.limits.full, 3))[1])


@pytest.mark.parametrize(("options", "said"), [
    ({"absent": {"quota"}}, "absent: quota: no optional feature"),
    ({"absent": {"latncy"}}, "there are slack, latency"),
    ({"lags": (0, 1)}, "oldest first"),
])  # fmt: skip
def test_unseeable_is_told_in_one_line(options, said):
    with pytest.raises(ConfigError, match=said):
        VectorObserver(Limits(4), 1.0, **options)


def test_training_load_depends_on_seed_and_time_only():
    seeds = np.arange(200, dtype=np.uint64)
    rows = load_rows(seeds)
    loads = training_loads(rows, 0, 400, 1.0)
    assert all(np.array_equal(loads[:, seed], training_load(seed, 400, 1.0)) for seed in range(200))
    assert np.array_equal(loads[50:150], training_loads(rows, 50, 100, 1.0))
    assert not np.array_equal(loads[:, 0], loads[:, 1])


def test_training_loads_cover_quiet_and_overload():
    loads = training_loads(load_rows(np.arange(400, dtype=np.uint64)), 0, 300, 1.0)
    assert loads.min() > 0.0
    assert loads.max() <= 1.1
    assert 0.4 < loads.mean() < 0.75
    assert (loads > 0.9).mean() > 0.05
    assert (loads < 0.3).mean() > 0.05
    assert np.median(np.ptp(loads, axis=0)) > 0.2
