"""Drift: what training never had is told, and what every run has is not."""

import pytest

from rlctl.agents.catalogue import build
from rlctl.agents.served.card import CardParts, TrainedOn, Training
from rlctl.agents.served.learned import ENDS, SENSORS, Drift
from rlctl.envs.allocation import Limits
from rlctl.envs.features import FEATURES
from rlctl.envs.observation import Observation, Observer
from rlctl.envs.sim.loads_training import training_load
from rlctl.envs.sim.plant import SimPlant
from rlctl.envs.sim.profile import load_profile
from rlctl.envs.sim.seeds import training
from rlctl.envs.telemetry import LC_IDLE, Missing, Quantile, Telemetry, Value, Why
from rlctl.envs.workload import Weight
from rlctl.safety.profile import load_profile as load_shield
from rlctl.safety.shield import Shield

LIMITS = Limits(cpus=4)
SOUND = Telemetry(
    time_seconds=1.0,
    target_seconds=0.01,
    tail_latency_seconds=Quantile(0.005, samples=500),
    load_ratio=Value(0.5),
    cpi=Value(1.0),
    lc_cpu_seconds_per_request=Value(0.0005),
    lc_cpus=Value(0.5),
    be_cpus=Value(1.0),
)


def drift(*absent, plants=1):
    kind = TrainedOn(profile="p", digest="0" * 12, weight=Weight.EQUAL, absent=absent, work=0.1, hosts=1)
    run = Training(total_timesteps=1, wall_seconds=1.0, seed=1, code="x", training_id="0" * 64)
    parts = CardParts(algorithm="PPO", tick_seconds=1.0, lags=(0,), plants=(kind,) * plants, training=run)
    return Drift(parts)


def seen(telemetry=SOUND, **changes):
    return Observer(LIMITS, 1.0).observe(telemetry.but(**changes), LIMITS.minimum)


def test_tick_like_those_of_training_is_not_strange():
    assert drift().unfamiliar(seen()) == ""


def test_sensor_no_training_host_lacked_is_missed():
    without = seen(cpi=Missing(Why.NOT_SUPPORTED))
    assert drift().unfamiliar(without) == "no cpi"
    assert drift("cpi").unfamiliar(without) == ""
    assert drift(plants=0).unfamiliar(without) == "", "a card that names no hosts says nothing of their sensors"


def test_an_idle_lc_is_nothing_strange() -> None:
    """No training has one: a quiet night would demote every learned policy."""
    idle = {"tail_latency_seconds": Missing(Why.NO_DATA), "counters": {LC_IDLE: Value(1.0)}}
    assert drift().unfamiliar(seen(**idle)) == ""


@pytest.mark.parametrize("why", [Why.NO_DATA, Why.NOT_COUNTED])
def test_lc_that_does_nothing_is_no_lost_sensor(why):
    assert drift().unfamiliar(seen(cpi=Missing(why), lc_cpu_seconds_per_request=Missing(why))) == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"load_ratio": Value(3.0)}, "load beyond its range"),  # max_load_rps is too small
        ({"cpi": Value(20.0)}, "cpi beyond its range"),
        ({"lc_cpu_seconds_per_request": Value(1e-7)}, "cpu_per_request beyond its range"),
        ({"target_seconds": 10.0}, "latency beyond its range, cpu_per_request beyond its range"),  # 10 ms as 10 s
    ],
)
def test_numbers_beyond_the_ranges_are_told(changes, said):
    assert drift().unfamiliar(seen(**changes)) == said


@pytest.mark.parametrize(
    "changes",
    [
        {"tail_latency_seconds": Quantile(5.0, samples=9)},  # overload
        {"load_ratio": Value(0.0), "lc_cpus": Value(0.0)},
        {"tail_latency_seconds": Missing(Why.GONE), "load_ratio": Missing(Why.GONE)},  # the shield's matter
        {  # an LC that restarts: the shield's matter, too
            "tail_latency_seconds": Missing(Why.STALE),
            "lc_cpu_seconds_per_request": Missing(Why.STALE),
            "lc_cpus": Missing(Why.GONE),
        },
    ],
)
def test_overload_idleness_and_shielded_are_not_strange(changes):
    assert drift().unfamiliar(seen(**changes)) == ""


def test_absent_be_is_no_lost_sensor():
    """Jobs that come and go: BE is frozen in every tick without a group of its own."""
    gone = SOUND.but(be_cpus=Missing(Why.NOT_CONFIGURED, "no BE group"))
    assert drift().unfamiliar(Observer(LIMITS, 1.0).observe(gone, LIMITS.safe)) == ""
    assert drift().unfamiliar(Observer(LIMITS, 1.0).observe(gone, LIMITS.minimum)) == "no be_cpus"


def test_without_frames_only_the_sensors_are_looked_at():
    assert drift().unfamiliar(Observation(SOUND.but(cpi=Missing(Why.GONE)), LIMITS.minimum)) == "no cpi"


def test_readings_that_cannot_be_looked_at_are_strange():
    assert drift().unfamiliar(Observation(None, Limits(2).safe)).startswith("AttributeError")


def test_what_is_looked_at_exists():
    assert ENDS.keys() | SENSORS.keys() <= {feature.name for feature in FEATURES}
    assert set(SENSORS.values()) <= set(Telemetry.__slots__)


@pytest.mark.slow
@pytest.mark.parametrize("host", ["thesis-host", "two-core-host", "two-core-nginx"])
def test_on_training_hosts_hardly_a_tick_is_strange(host):
    plant = SimPlant(load_profile(host), training_load, 300, seed=training(0))
    shield, observer = Shield(load_shield("responsive"), plant.limits), Observer(plant.limits, 1.0)
    greedy, watch = build("greedy-shield"), drift("cpi")
    plant.apply(greedy.start(plant.limits))
    strange = []
    for _ in range(300):
        plant.wait()
        observation = observer.observe(plant.read(), plant.current)
        strange.append(watch.unfamiliar(observation))
        plant.apply(shield.rule(observation.telemetry, plant.current, greedy.act(observation)).allocation)
    assert sum(map(bool, strange)) <= 15, f"of 300 ticks: {set(strange)}"
