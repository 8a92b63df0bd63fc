"""Error budgets: spent means careful, over a restart too, and nothing of it makes BE freer."""

import json
import logging
from types import SimpleNamespace

import pytest

from rlctl.config.serve import SloSection
from rlctl.envs.allocation import Limits
from rlctl.envs.observation import MOST_PRICE
from rlctl.envs.telemetry import Missing, Quantile, Telemetry, Value, Why, worst_of
from rlctl.log.kept import MemoryRecorder
from rlctl.log.record import Tee
from rlctl.loop.control import Controller
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield
from rlctl.safety.verdict import Reason, Verdict
from rlctl.serve.budget import DAY_MINUTES, FAST, HOUR_MINUTES, Budgets, ErrorBudget
from rlctl.serve.memory import HostMemory
from tests.doubles.clock import Clock
from tests.doubles.plant import FakePlant

LIMITS = Limits(cpus=4)
NOON = 1_763_899_200.0
OF_A_DAY = 864  # one percent of its seconds


class Lc:
    """A section of the configuration, as far as budgets read it."""

    def __init__(self, percent):
        self.slo = SloSection(target_milliseconds=10.0, error_budget_percent=percent)


@pytest.fixture
def clock():
    return Clock(NOON)


@pytest.fixture
def budget(clock):
    return ErrorBudget("web", 0.01, 1.0, clock)


def missed(budget, windows, spread_minutes=1):
    for window in range(windows):
        if window % (windows // spread_minutes) == 0:
            budget._clock.now += 60.0
        budget.count(missed=True)


def test_a_budget_is_spent_by_misses_alone(budget):
    for _ in range(1000):
        budget.count(missed=False)
    assert budget.remaining_ratio == 1.0
    assert budget.trouble == ""
    missed(budget, OF_A_DAY // 2, spread_minutes=360)
    assert budget.remaining_ratio == pytest.approx(0.5)
    assert budget.burn_rate(DAY_MINUTES) == pytest.approx(0.5)
    assert budget.trouble == ""
    missed(budget, OF_A_DAY // 2, spread_minutes=360)
    assert budget.remaining_ratio == 0.0
    assert budget.trouble == "error budget of web is spent: 100% of a day's"


def test_it_is_back_when_misses_are_day_old(budget, clock):
    missed(budget, OF_A_DAY)
    clock.now += 60.0 * (DAY_MINUTES - 1)
    assert budget.trouble
    clock.now += 60.0
    assert budget.trouble == ""
    assert budget.remaining_ratio == 1.0


def test_fast_burn_is_trouble_before_day_is_spent(budget, clock):
    missed(budget, round(36 * FAST), spread_minutes=6)
    assert budget.burn_rate(HOUR_MINUTES) == pytest.approx(FAST)
    assert budget.remaining_ratio == pytest.approx(0.75)
    assert budget.trouble == "error budget of web burns at 6.0 times its rate, by the last hour"
    clock.now += 3600.0
    assert budget.trouble == ""


def test_clock_set_back_or_ahead_holds_nobody(budget, clock):
    clock.now += 1e9
    missed(budget, 2 * OF_A_DAY)
    clock.now = NOON
    assert budget.trouble == ""
    for _ in range(2 * DAY_MINUTES):
        clock.now += 60.0
        budget.count(missed=True)
    assert len(budget._missed) <= DAY_MINUTES + 1, "bounded"


def test_starts_behind_the_clock_lose_no_misses(budget, clock):
    """A host without a battery boots in 1970; once its spent budget was forgotten there."""
    missed(budget, OF_A_DAY)
    told, today = budget.trouble, clock.now
    clock.now = 0.0
    for _ in range(2):
        plain = budget.state_dict()
        budget = ErrorBudget("web", 0.01, 1.0, clock)
        budget.restore_state(plain)
        assert budget.trouble == ""
    clock.now = today
    assert budget.trouble == told != ""


def test_it_is_kept_over_restart_as_plain_data(budget, clock):
    missed(budget, OF_A_DAY, spread_minutes=100)
    plain = json.loads(json.dumps(budget.state_dict()))
    again = ErrorBudget("web", 0.01, 1.0, clock)
    again.restore_state(plain)
    assert again.trouble == budget.trouble != ""
    full = {**plain, "missed": [[int(NOON // 60) + minute, 60] for minute in range(DAY_MINUTES)]}
    assert len(json.dumps(full)) < 32_000
    for wrong in ({}, {**plain, "schema": 1}, *({**plain, "missed": [one]} for one in ([1.5, 1], [1, -1]))):
        with pytest.raises(ValueError, match="is no"):
            again.restore_state(wrong)
    assert again.trouble


@pytest.mark.parametrize(
    ("ratio", "tick_seconds", "target", "same"),
    [(0.01, 1.0, 10.0, True), (0.02, 1.0, 10.0, True), (0.01, 0.5, 10.0, False), (0.01, 1.0, 20.0, False)],
)
def test_misses_are_kept_unless_the_target_changes(tmp_path, clock, ratio, tick_seconds, target, same):
    """Once a restart with another maximum load, CPUs or weight of BE gave a spent budget back."""
    before = ErrorBudget("web", 0.01, 1.0, clock, {"target_milliseconds": 10.0})
    missed(before, OF_A_DAY, spread_minutes=100)
    HostMemory(tmp_path, {"limits": 1}, clock).keep((before,))
    learner = ErrorBudget("db", 0.01, 1.0, clock)
    HostMemory(tmp_path, {"limits": 2}, clock).keep((learner,))  # of another host, and before anybody asked for `web`
    after = ErrorBudget("web", ratio, tick_seconds, clock, {"target_milliseconds": target})
    HostMemory(tmp_path, {"limits": 3}, clock).restore_state(after)
    assert bool(after.burn_rate(DAY_MINUTES)) is same


GOOD = Telemetry(1.0, 0.01, Quantile(0.004, samples=500, window_seconds=1.0), lc_alive=Value(1.0))
SILENT, FAILING = Missing(Why.NO_DATA, "no request completed"), Missing(Why.FAILING, "9 of 10 requests a second failed")
COMES = {"offered_rps": Value(100.0), "done_rps": Value(0.0)}


@pytest.mark.parametrize(
    ("readings", "misses"),
    [
        ({}, 0),
        ({"tail_latency_seconds": Quantile(0.02, samples=500, window_seconds=1.0)}, 3),
        ({"oldest_request_seconds": Value(0.02), "tail_latency_seconds": SILENT}, 3),
        ({"tail_latency_seconds": FAILING}, 3),
        ({"lc_alive": Value(0.0)}, 3),
        ({"lc_alive": Value(0.0), "tail_latency_seconds": SILENT}, 3),
        ({"tail_latency_seconds": SILENT, "counters": COMES}, 2),  # the first may have come at the very end
        ({"tail_latency_seconds": SILENT, "counters": COMES, "oldest_request_seconds": Value(0.001)}, 0),
        ({"tail_latency_seconds": SILENT, "counters": {**COMES, "offered_rps": Value(0.0)}}, 0),
        ({"tail_latency_seconds": SILENT}, 0),
        ({"tail_latency_seconds": Missing(Why.GONE), "lc_alive": Missing(Why.NO_PERMISSION)}, 0),
        ({"tail_latency_seconds": Missing(Why.STALE), "counters": COMES}, 0),
    ],
)
def test_outage_is_missed_unknown_window_is_not(clock, readings, misses):
    budgets = Budgets({"lc": Lc(1.0)}, 1.0, clock)
    for _ in range(3):
        budgets.write(SimpleNamespace(telemetry=GOOD.but(**readings)))
    assert sum(count for _, count in budgets.each[0].state_dict()["missed"]) == misses


class Loop:
    """A control loop under a policy that wants all."""

    def __init__(self, always, clock, percent):
        self.budgets, self.ticks = Budgets({"lc": Lc(percent)}, 1.0, clock), MemoryRecorder()
        self.plant = FakePlant(LIMITS, loads=(0.1,))
        policy, shield = always(lambda _: LIMITS.full), Shield(load_profile("responsive"), LIMITS)
        recorder = Tee(self.ticks, self.budgets)
        self.controller = Controller(self.plant, policy, shield, recorder, said=self.budgets.bounds)

    def run(self, ticks):
        for _ in range(ticks):
            self.plant.wait()
            self.controller.tick()
        return self.ticks.ticks[-1]


def test_spent_budget_holds_be_at_its_minimum(always, clock, caplog):
    caplog.set_level(logging.WARNING, "rlctl.serve")
    loop = Loop(always, clock, 1.0)
    assert loop.run(60).applied.quota_cpus > 1.0
    loop.plant.target_seconds = 1e-6
    loop.run(OF_A_DAY)
    loop.plant.target_seconds = 0.010
    held = loop.run(120)
    (bound,) = [one for one in held.verdict.bounds if one.reason is Reason.ERROR_BUDGET]
    assert bound.detail.startswith("error budget of lc is spent")
    assert held.applied.at_most(LIMITS.minimum)
    assert not held.applied.frozen, "the misses are over"
    assert not Verdict(LIMITS.minimum, LIMITS.full, (bound,)).overridden_by_guard, "no fault of the policy"
    clock.now += 86400.0 + 60.0
    assert loop.run(60).applied.quota_cpus > 1.0
    told = [record.getMessage() for record in caplog.records if "budget" in record.getMessage()]
    assert told[-1] == "error budget of lc is in order again"
    assert len(told) == 3, "burns, is spent, then is over; once each"


def test_each_lc_has_its_own_or_none(clock):
    budgets = Budgets({"web": Lc(0.1), "db": Lc(None), "api": Lc(50.0)}, 1.0, clock)
    assert [one.lc for one in budgets.each] == ["web", "api"]

    def reading(tail):
        return Telemetry(1.0, 0.01, Quantile(tail, samples=500, window_seconds=1.0))

    telemetry = worst_of({"web": reading(0.02), "db": reading(0.02), "api": reading(0.001)})
    for _ in range(100):
        budgets.write(SimpleNamespace(telemetry=telemetry))
    assert [round(one.remaining_ratio, 3) for one in budgets.each] == [0.0, 1.0]
    assert len(budgets.bounds(LIMITS)) == 1
    assert budgets.price == MOST_PRICE, "that of the one that burns most"


@pytest.mark.parametrize(("misses", "price"), [(0, 1 / MOST_PRICE), (36, 1.0), (72, 2.0), (1000, MOST_PRICE)])
def test_violation_costs_by_how_fast_budget_goes(misses, price, clock):
    budgets = Budgets({"web": Lc(1.0)}, 1.0, clock)
    for _ in range(misses):
        budgets.each[0].count(missed=True)
    assert budgets.price == pytest.approx(price)
    assert Budgets({"web": Lc(None)}, 1.0, clock).price == 1.0
