"""The maximum load that nobody stated: called an estimate until it was seen, and given up when it is contradicted."""

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents.managers.heracles import Heracles
from rlctl.agents.managers.prm_hybrid import PrmHybrid
from rlctl.envs.host.max_load import (
    MISSED_RATIO,
    NEAR_RATIO,
    SETTLED_SECONDS,
    UNCONFIRMED_RATIO,
    UTILISATION,
    WINDOWS,
    MaxLoad,
    is_crowded,
)
from rlctl.envs.telemetry import Missing, Value, Why
from rlctl.safety.profile import load_profile

GONE = Missing(Why.NO_DATA)


class Service:
    """An LC of one CPU whose requests take a millisecond."""

    def __init__(self):
        self.learned, self.now = MaxLoad("web", 1.0), 0.0

    def runs(self, seconds, rps, latency_ratio=0.5, be_held=False, demand=0.001):
        for _ in range(seconds):
            self.now += 1.0
            self.learned.observe(self.now, Value(rps), Value(demand), latency_ratio, be_held=be_held)
        return self.learned.cautious_rps


def test_the_cpus_say_what_it_is_at_least():
    assert Service().runs(1, 300.0) == pytest.approx(UTILISATION * 1000.0)
    assert Service().learned.cautious_rps is None


def test_load_held_twice_is_within_maximum():
    service = Service()
    service.runs(1, 970.0)
    assert service.learned.cautious_rps == pytest.approx(UTILISATION * 1000.0)
    assert service.runs(1, 950.0) == 950.0
    assert service.runs(5, 100.0) == 950.0


def test_what_service_misses_alone_is_more_than_maximum():
    service = Service()
    service.runs(60, 500.0, latency_ratio=3.0)
    assert service.learned.missed_rps is None, "BE may be the reason"
    service.runs(int(SETTLED_SECONDS), 500.0, latency_ratio=3.0, be_held=True)
    assert service.learned.missed_rps is None, "its backlog may be"
    service.runs(5, 500.0, latency_ratio=3.0, be_held=True)
    service.runs(1, 300.0)
    assert service.learned.cautious_rps == pytest.approx(MISSED_RATIO * 500.0)
    assert service.runs(2, 600.0) == pytest.approx(UTILISATION * 1000.0), "and no longer, once it has held more"


def test_leftovers_after_be_are_not_the_services(caplog):
    """Once a burst of BE's, in a p95 of 30 s, halved the maximum load for good."""
    learned = MaxLoad("web", 1.0)
    for now in range(60):
        ratio = 3.0 if 10 <= now < 40 else 0.5
        learned.observe(float(now), Value(300.0), Value(0.001), ratio, be_held=now > 10, window_seconds=30.0)
    assert learned.missed_rps is None


def test_figure_that_is_read_twice_is_one_window():
    learned = MaxLoad("web", 1.0)
    for now, age in ((1.0, 0.1), (2.0, 1.1)):
        learned.observe(now, Value(900.0, age), Value(0.001), 0.5, be_held=True)
    assert learned.held_rps is None
    learned.observe(3.0, Value(900.0, 0.1), Value(0.001), 0.5, be_held=True)
    assert learned.held_rps == 900.0


def test_change_of_cost_is_seen_in_thirty_windows():
    service = Service()
    service.runs(WINDOWS, 300.0)
    assert service.runs(WINDOWS // 4 + 1, 300.0, demand=0.002) == pytest.approx(UTILISATION * 500.0)
    assert service.runs(WINDOWS, 300.0) == pytest.approx(UTILISATION * 1000.0)


def test_a_dear_window_is_an_accident():
    """Once the dearest of 120 windows counted: an estimate of 6057 rps held BE frozen beside a redis of 15000."""
    service = Service()
    service.runs(20, 300.0)
    service.runs(1, 300.0, demand=0.01)
    assert service.runs(20, 300.0) == pytest.approx(UTILISATION * 1000.0)


def test_housekeeping_of_an_idle_service_is_no_request():
    service = Service()
    service.runs(30, 5.0, demand=0.02)
    assert service.runs(10, 300.0) == pytest.approx(UTILISATION * 1000.0)


def test_one_thread_is_not_credited_with_all_cpus():
    for share, usable in ((0.98, 1.0), (0.5, 2.0), (0.1, 4.0)):
        learned = MaxLoad("redis", 4.0)
        for now in range(9):
            learned.observe(float(now), Value(300.0), Value(0.001), 0.5, be_held=False, busiest=Value(share))
        assert learned.usable_cpus == pytest.approx(usable, rel=0.03)
        assert learned.cautious_rps == pytest.approx(UTILISATION * usable * 1000.0, rel=0.03)
    learned = MaxLoad("redis", 4.0)
    learned.observe(1.0, Value(300.0), Value(0.001), 0.5, be_held=False, busiest=Value(0.98))
    assert "1.02 of 4 CPUs by its busiest thread" in str(learned)


def test_estimate_that_no_tail_confirmed_suspends_nobody():
    service = Service()
    service.runs(2, 300.0, demand=0.01)
    assert service.learned.ratio(Value(900.0)) == Value(UNCONFIRMED_RATIO)
    assert "no tail has confirmed it" in str(service.learned)
    service.runs(20, 700.0, latency_ratio=2.0, be_held=True)
    assert service.learned.ratio(Value(900.0)).value > 1.0
    assert "no tail" not in str(service.learned)


def test_shipped_thresholds_are_above_an_unconfirmed_load():
    for name in ("heracles", "measured", "responsive", "knee"):
        assert load_profile(name).load_resume_ratio > UNCONFIRMED_RATIO
    assert Heracles.enable_load_ratio > UNCONFIRMED_RATIO
    assert PrmHybrid.enable_load_ratio > UNCONFIRMED_RATIO


KINDS = {
    # CPUs that it may use, seconds a request takes at full load, share of the busiest thread
    "redis": (4.0, 60e-6, 0.97),
    "nginx": (2.0, 200e-6, 0.55),
    "memcached": (4.0, 25e-6, 0.3),
    "postgres": (4.0, 2e-3, 0.08),
    "uvicorn": (2.0, 3e-3, 0.99),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_cold_starts_end_near_the_maximum(kind, seed):
    """Idle beginnings, steps of load, noise, windows that are dear or lack a reading: five minutes, six starts."""
    cpus, cost, share = KINDS[kind]
    random = Random(seed)
    most = 0.9 * min(cpus, 1.0 / share) / cost
    learned, held = MaxLoad(kind, cpus), 0.0
    idle, steps = random.choice([0, 20, 60]), [random.choice([0.2, 0.4, 0.6, 0.8]) for _ in range(6)]
    for second in range(300):
        load = 5.0 if second < idle else most * steps[second * 6 // 300] * random.gauss(1.0, 0.05)
        demand = cost * (1.0 + 0.25 * (1.0 - load / most)) * random.gauss(1.0, 0.05) + 0.003 / load
        if random.random() < 0.05:  # a garbage collector, a snapshot
            demand *= random.uniform(2.0, 6.0)
        reading = Missing(Why.NO_DATA) if random.random() < 0.1 else Value(demand)
        busiest = Value(min(share * random.gauss(1.0, 0.03), 1.0))
        learned.observe(float(second), Value(load), reading, 0.5, be_held=False, busiest=busiest)
        held = max(held, learned.held_rps or 0.0)
    assert most / 1.5 <= learned.cautious_rps <= 1.5 * most
    assert learned.cautious_rps >= held
    assert learned.lowest_rps <= learned.cautious_rps <= learned.highest_rps


def test_without_reading_nothing_is_learned():
    learned = MaxLoad("web", 1.0)
    learned.observe(1.0, GONE, Value(0.001), 0.5, be_held=True)
    learned.observe(2.0, Value(300.0), Value(0.001), None, be_held=True)
    learned.observe(3.0, Value(0.0), Value(0.001), 0.1, be_held=True)
    assert learned.cautious_rps is None
    assert learned.ratio(Value(300.0)) == Value(UNCONFIRMED_RATIO), "of a maximum that nobody knows"
    assert learned.ratio(GONE) is GONE
    learned.observe(4.0, Value(300.0), GONE, 0.1, be_held=True)
    learned.observe(5.0, Value(300.0), GONE, 0.1, be_held=True)
    assert learned.ratio(Value(150.0, 0.2)) == Value(0.5, 0.2), "of what held alone"


@pytest.mark.parametrize(("stated", "word"), [(700.0, ""), (500.0, "held at 700"), (950.0, "")])
def test_a_stated_maximum_is_held_against_what_held(stated, word):
    service = Service()
    service.runs(2, 700.0)
    assert word in service.learned.contradiction(stated)
    assert bool(word) == bool(service.learned.contradiction(stated))


def test_stated_maximum_is_held_against_what_was_missed():
    service = Service()
    service.runs(20, 500.0, latency_ratio=2.0, be_held=True)
    assert "missed at 500 rps without BE" in service.learned.contradiction(800.0)


def test_what_a_restart_knows_makes_the_maximum_less():
    service, again = Service(), Service()
    service.runs(20, 500.0, latency_ratio=2.0, be_held=True)
    again.learned.restore_state(service.learned.state_dict())
    assert again.runs(1, 300.0) == pytest.approx(MISSED_RATIO * 500.0)


def test_restart_goes_on_with_what_request_takes():
    """Cheap requests that come first promise no more than before."""
    service, again = Service(), Service()
    before = service.runs(WINDOWS + 10, 300.0)
    again.learned.restore_state(service.learned.state_dict())
    assert again.learned.cautious_rps is None, "nothing shows yet that it is this LC"
    assert again.learned.state_dict() == service.learned.state_dict()
    assert again.runs(10, 100.0, demand=0.0004) == before


def test_what_an_older_version_remembered_is_taken():
    service = Service()
    service.learned.restore_state({"schema": 1, "missed_rps": 500.0})
    assert service.learned.cautious_rps is None
    assert service.runs(1, 300.0) == pytest.approx(MISSED_RATIO * 500.0)


@pytest.mark.parametrize(
    "memory",
    [
        {},
        {"schema": 2, "missed_rps": 1.0},
        {"schema": 1, "missed_rps": -1.0},
        {"schema": 1, "missed_rps": "9"},
        {"schema": 1, "missed_rps": True},
        {"schema": 1, "missed_rps": float("nan")},
        {"schema": 1, "missed_rps": None, "cpu_seconds_per_request": 0.0},
        {"schema": 1, "missed_rps": None, "cpu_seconds_per_request": 1e-320},
        {"schema": 1, "missed_rps": None, "cpu_seconds_per_request": "1"},
    ],
)
def test_what_is_no_maximum_load_is_refused(memory):
    with pytest.raises(ValueError, match="maximum load"):
        MaxLoad("web", 1.0).restore_state(memory)


@given(
    st.none() | st.floats(1.0, 1e14),
    st.none() | st.floats(1e-9, 1e3),
    st.lists(st.tuples(st.floats(1.0, 1e6), st.floats(0.0, 4.0)), max_size=20),
)
def test_no_memory_makes_it_more(missed_rps, demand, windows):
    plain, recalled = MaxLoad("web", 1.0), MaxLoad("web", 1.0)
    recalled.restore_state({"schema": 1, "missed_rps": missed_rps, "cpu_seconds_per_request": demand})
    for second, (rps, use_cpus) in enumerate(windows):
        for one in (plain, recalled):
            one.observe(float(second), Value(rps), Value(use_cpus / rps), 0.5, be_held=False)
        if plain.cautious_rps is not None:
            assert recalled.cautious_rps <= plain.cautious_rps


def test_it_says_what_it_goes_by(caplog):
    caplog.set_level("INFO")
    service = Service()
    assert str(service.learned) == "maximum load of web: not known yet"
    service.runs(2, 300.0)
    for _ in range(3):
        service.learned.ratio(Value(100.0))
    said = "maximum load of web: estimated at 900 rps, between 900 and 1000 (1 ms of CPU a request on 1 CPU, 300 held, "
    said += "no tail has confirmed it, so BE is not suspended for it)"
    assert [record.getMessage() for record in caplog.records] == [said]
    service.learned.restore_state(MaxLoad("web", 1.0).state_dict())
    assert str(service.learned) == "maximum load of web: not known yet"


def test_estimate_far_above_every_load_is_a_guess(caplog):
    """A request of an idle redis cost fifty times what it costs at a thousand a second."""
    caplog.set_level("INFO")
    service = Service()
    service.runs(5, 40.0)
    assert (service.learned.lowest_rps, service.learned.highest_rps) == (40.0, None)
    assert "estimated at 900 rps, a guess: 22 times the highest load seen" in str(service.learned)
    for demand in (0.0009, 0.0008, 0.0007, 0.0006):
        service.runs(5, 60.0, demand=demand)
        service.learned.ratio(Value(60.0))
    assert caplog.text.count("estimated at") == 1, "a guess that moves a little is no news"
    service.runs(5, 400.0)
    assert "between 900 and" in str(service.learned)


def test_it_is_estimate_until_load_has_come_near(caplog):
    """Somebody who plans by the figure must see whether anybody has seen such a load."""
    caplog.set_level("INFO")
    service = Service()
    for rps in (300.0, NEAR_RATIO * 900.0 - 1.0, NEAR_RATIO * 900.0 + 1.0, 650.0, 300.0):
        service.runs(2, rps)
        service.learned.ratio(Value(rps))
        assert service.learned.borne_out == (service.learned.held_rps > NEAR_RATIO * 900.0)
    assert re.findall("(estimated at|at least) 900 rps", caplog.text) == ["estimated at", "at least"]
    service.runs(20, 850.0, latency_ratio=2.0, be_held=True)
    assert service.learned.cautious_rps == 811.0
    assert service.learned.borne_out, "811 held"
    service.runs(20, 640.0, latency_ratio=2.0, be_held=True)
    assert not service.learned.borne_out, "what held is contradicted"


def test_held_is_no_more_than_possible():
    """Requests that were dear at first would say that the CPUs bear less than was served."""
    service = Service()
    service.runs(1, 300.0, demand=0.004)
    service.runs(2, 600.0)
    assert service.learned.cautious_rps == 600.0
    assert service.learned.highest_rps >= 600.0


@pytest.mark.parametrize(("cpus", "delay", "crowded"), [
    (Value(0.1), Value(0.7), True), (Value(0.1), Value(0.05), False), (Value(0.95), Value(31.0), False),
    (GONE, Value(0.7), False), (Value(0.1), GONE, False),
])  # fmt: skip
def test_neighbours_miss_is_no_load(cpus, delay, crowded):
    assert is_crowded(cpus, delay, usable_cpus=1.0) is crowded


def test_more_than_seemed_possible_is_learned_missing():
    service = Service()
    service.runs(5, 4.0)
    assert service.learned.cautious_rps < 500.0
    service.runs(20, 900.0, latency_ratio=1.5)
    assert service.learned.cautious_rps == pytest.approx(UTILISATION * 1000.0)
    assert not service.learned.confirmed
