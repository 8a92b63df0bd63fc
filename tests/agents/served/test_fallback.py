"""The chain: policy, heuristic, safe allocation. Whatever the policy does, the tick is decided, and says by whom."""

from __future__ import annotations

import logging
import threading

import pytest

from rlctl.agents.catalogue import build
from rlctl.agents.managers.table import Level, QuotaTable
from rlctl.agents.policy import Policy
from rlctl.agents.policy_runner import SAFE, propose
from rlctl.agents.served.circuit_breaker import FailureBudget
from rlctl.agents.served.fallback import FallbackPolicy
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.observation import Observation
from rlctl.envs.telemetry import Quantile, Telemetry, Value
from rlctl.envs.workload import Weight
from rlctl.safety.conformance import histories
from rlctl.safety.verdict import Verdict

LIMITS = Limits(cpus=4)
TICK = 400.0  # so that the windows are short and a healthy answer is in time on the busiest machine
PATIENT = FailureBudget(
    failure_window_seconds=10 * TICK, window_seconds=4 * TICK, hold_seconds=3 * TICK, most_hold_seconds=100 * TICK
).model_copy(update={"answer_milliseconds": 60_000.0})
HASTY = PATIENT.model_copy(update={"answer_milliseconds": 10.0})
ASKED, SPARE = Allocation(1.0, 2), Allocation(0.5, 1)


class Scripted(Policy):
    """Answers what it is told to; an exception is raised, a callable is called."""

    shielded = masked = learned = True
    remarks, note, unlike = (), "", ""

    def __init__(self, name, answer, weight=Weight.EQUAL, needs=()):
        self.name, self.answer, self.weight, self.needs = name, answer, weight, needs
        self.started, self.acted, self.overridden = 0, 0, 0
        self.note = f"{name} says so"

    def start(self, limits):
        self.started += 1
        return limits.full

    def unfamiliar(self, observation):
        return self.unlike

    def learn_ruling(self, verdict):
        self.overridden += verdict.overridden

    def act(self, observation):
        self.acted += 1
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer() if callable(self.answer) else self.answer


class Chain:
    """A chain over scripted parts, driven tick by tick."""

    def __init__(self, budgets=PATIENT, spare=SPARE):
        self.policy, self.heuristic = Scripted("net", ASKED), Scripted("rule", spare)
        self.fallback = FallbackPolicy(self.policy, self.heuristic, TICK, budgets)
        self.fallback.start(LIMITS)
        self.now = 0.0

    def tick(self, count=1):
        for _ in range(count):
            self.now += TICK
            telemetry = Telemetry(self.now, 1.0, Quantile(0.5, samples=100), Value(0.0), Value(0.5))
            asked = self.fallback.act(Observation(telemetry, LIMITS.minimum))
        return asked

    def until_it_acts(self):
        while self.tick() != ASKED:
            pass


@pytest.fixture
def made():
    chains, release = [], threading.Event()

    def make(*args, **options):
        chains.append(Chain(*args, **options))
        return chains[-1]

    make.release = release
    make.hang = lambda: release.wait(60.0) and ASKED
    yield make
    release.set()
    for chain in chains:
        chain.fallback.close()


def test_healthy_policy_decides_and_heuristic_stays_warm(made):
    chain = made()
    assert chain.tick(5) == ASKED
    assert chain.heuristic.acted == 5
    assert (chain.fallback.acting, chain.fallback.fallback, chain.fallback.note) == ("net", "", "net says so")
    assert not chain.fallback.breaker.demoted
    chain.fallback.learn_ruling(Verdict(ASKED, ASKED))
    assert chain.heuristic.overridden == 1, "what it asked for was not done"
    chain.fallback.learn_ruling(Verdict(SPARE, ASKED))
    assert chain.heuristic.overridden == 1


@pytest.mark.parametrize(
    "answer",
    [ValueError("no"), SystemExit(), 99, -1, 10**400, float("nan"), None, "full", (1, 2), [[1]], lambda: 1 / 0],
)
def test_unusable_answer_makes_the_tick_the_heuristics(made, answer):
    chain = made()
    chain.policy.moves_reins = True
    chain.tick()
    assert chain.fallback.moves_reins
    chain.policy.answer = answer
    assert chain.tick() == SPARE
    assert not chain.fallback.moves_reins, "a CPU quota is none of the link"
    assert chain.fallback.failed
    assert chain.fallback.acting == "rule"
    assert chain.fallback.note == "rule says so"
    assert chain.fallback.fallback
    chain.policy.answer = ASKED
    assert chain.tick() == ASKED
    assert not chain.fallback.failed


def test_when_both_fail_be_gets_the_safe_allocation(made):
    chain = made(spare=KeyError("broken"))
    chain.policy.answer = ValueError("no")
    assert chain.tick() == LIMITS.safe
    assert chain.fallback.acting == SAFE
    assert chain.fallback.fallback == "ValueError: no; rule: KeyError: 'broken'"


def test_failing_heuristic_matters_only_with_the_policy(made):
    chain = made(spare=KeyError("broken"))
    assert chain.tick() == ASKED


def test_hanging_policy_is_not_waited_for_again(made):
    chain = made(HASTY)
    chain.policy.answer = made.hang
    assert chain.tick() == SPARE
    assert chain.fallback.fallback == "no answer within 10 ms"
    assert chain.tick() == SPARE
    assert chain.fallback.fallback == "an earlier call still hangs"
    assert chain.policy.acted == 1, "never two calls at a time"
    chain.tick(20)
    breaker = chain.fallback.breaker
    assert breaker.demoted
    assert breaker.demotions == 1
    assert breaker.ticks_to_retry == 1, "whenever the call comes back"
    chain.policy.answer = SPARE
    made.release.set()
    assert chain.tick() == SPARE, "the late answer was ASKED"
    chain.policy.answer = ASKED
    chain.until_it_acts()


def test_demoted_policy_is_started_anew(made, caplog):
    chain = made()
    chain.tick()
    chain.policy.answer = ValueError("no")
    with caplog.at_level(logging.INFO):
        chain.tick(3)
        acted = chain.policy.acted
        assert chain.fallback.breaker.ticks_to_retry == 3
        chain.policy.answer = ASKED
        assert chain.tick(2) == SPARE
        assert chain.policy.acted == acted
        assert "3 of 10 ticks without a usable answer, the last: ValueError: no" in chain.fallback.fallback
        assert chain.tick() == ASKED
    assert chain.policy.started == 2
    assert [record.getMessage() for record in caplog.records] == [
        "rule decides instead of policy net: ValueError: no",
        "rule decides instead of policy net, for 1200 s or more: "
        "3 of 10 ticks without a usable answer, the last: ValueError: no",
        "policy net decides again",
    ]
    assert chain.fallback.remarks == ("demoted 1 times, then rule decided",)


def test_shield_overriding_most_ticks_demotes_it(made):
    chain = made()
    for _ in range(3):
        assert chain.tick() == ASKED
        chain.fallback.learn_ruling(Verdict(SPARE, ASKED))
    assert chain.tick() == SPARE
    assert chain.fallback.fallback == "3 of 4 ticks overridden by the shield"


def test_ruling_on_heuristic_is_not_the_policys(made):
    chain = made()
    chain.policy.answer = ValueError("no")
    chain.tick()
    for _ in range(10):
        chain.fallback.learn_ruling(Verdict(LIMITS.safe, SPARE))
    chain.policy.answer = ASKED
    assert chain.tick() == ASKED


def test_drift_demotes_until_it_is_over(made):
    chain = made()
    chain.policy.unlike = "no cpi"
    assert chain.tick(2) == ASKED
    assert chain.tick(50) == SPARE
    assert "unlike its training" in chain.fallback.fallback
    chain.policy.unlike = ""
    chain.tick(2)
    assert chain.tick() == ASKED


def test_start_forgets_everything(made):
    chain = made()
    chain.policy.answer = ValueError("no")
    chain.tick(5)
    assert chain.fallback.breaker.demoted
    chain.policy.answer = ASKED
    assert chain.fallback.start(LIMITS) == LIMITS.safe
    assert chain.tick() == ASKED
    assert (chain.fallback.breaker.demotions, chain.heuristic.started) == (0, 2)


def test_part_that_cannot_start_fails(made):
    chain = made()
    chain.policy.start = chain.heuristic.start = lambda limits: 1 / 0
    assert chain.fallback.start(LIMITS) == LIMITS.safe
    assert chain.tick() == SPARE
    assert chain.fallback.fallback.startswith("ZeroDivisionError")


def test_table_of_another_host_does_not_decide(tmp_path):
    QuotaTable(
        source="a test", target_milliseconds=1000.0, max_load_rps=500.0, be_weight="equal", lc_cpus=1.0, be_cpus=2,
        levels=(Level(load_ratio=0.9, quota_cpus=1.0, cpuset_cpus=1),),
    ).write(tmp_path / "t.yaml")  # fmt: skip
    chain = FallbackPolicy(
        Scripted("net", ValueError("no")), build("table", file=str(tmp_path / "t.yaml")), TICK, PATIENT
    )
    chain.start(LIMITS)
    telemetry = Telemetry(TICK, 1.0, Quantile(0.5, samples=100), Value(0.0), Value(0.5))
    assert chain.act(Observation(telemetry, LIMITS.minimum)) == LIMITS.safe
    assert chain.acting == SAFE
    assert "swept with 2 CPUs for BE and 1 for the LC, here it is 4 and 1" in chain.fallback
    chain.close()


def test_it_is_policy_to_whoever_looks_at_it():
    policy = Scripted("net", ASKED, Weight.EQUAL, ("tail_latency_seconds",))
    chain = FallbackPolicy(policy, Scripted("rule", SPARE, Weight.MINIMUM, ("tail_latency_seconds", "lc_cpus")), TICK)
    assert (chain.name, chain.shielded, chain.masked) == ("net", True, True)
    assert chain.weight is Weight.MINIMUM
    assert chain.needs == ("tail_latency_seconds", "lc_cpus")
    assert (chain.note, chain.remarks) == ("start", ())
    chain.close()


def test_proposal_is_plain_and_its_note_short():
    policy = Scripted("net", Allocation(9.0, 9))
    policy.note = "x" * 10_000
    asked, note = propose(policy, Observation(Telemetry(0.0, 1.0), LIMITS.minimum), LIMITS)
    assert asked == Allocation(4.0, 4)
    assert len(note) == 200


@pytest.mark.parametrize("name", ["prm-hybrid-tuned", "heracles", "feedforward"])
def test_failing_policy_answers_as_the_heuristic(name):
    chain = FallbackPolicy(Scripted("net", ValueError("no")), build(name), TICK, PATIENT)
    alone = build(name)
    for limits, ticks in histories():
        chain.start(limits)
        alone.start(limits)
        for telemetry, current in ticks:
            seen = Observation(telemetry, current)
            assert chain.act(seen) == alone.act(seen)
    chain.close()
