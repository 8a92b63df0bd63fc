"""One runner for every policy: what it sees, what becomes of its answer, and what it is told of the ruling."""

import numpy as np
import pytest

from rlctl.agents.catalogue import build
from rlctl.agents.policy import Policy
from rlctl.agents.policy_runner import SAFE, PolicyRunner
from rlctl.agents.served.fallback import FallbackPolicy
from rlctl.envs.actions import MOVES
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import PolicyError
from rlctl.envs.telemetry import Quantile, Telemetry, Value
from rlctl.envs.workload import Weight
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield

LIMITS = Limits(cpus=4)
ASKED = Allocation(4.0, 4)


class Scripted(Policy):
    """Answers what it was given, an exception by raising it; `heard` has the verdicts that it was told."""

    shielded, weight, needs, note, remarks = True, Weight.EQUAL, (), "as ever", ()

    def __init__(self, answer, name="scripted", masked=False):
        self.answer, self.name, self.masked = answer, name, masked
        self.seen, self.heard, self.closed = [], [], False

    def start(self, limits):
        return limits.minimum

    def act(self, observation):
        self.seen.append(observation)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def learn_ruling(self, verdict):
        self.heard.append(verdict)


def telemetry(now=0.0):
    return Telemetry(now, 0.01, Quantile(0.002, samples=500), Value(0.0), load_ratio=Value(0.3))


def shield():
    return Shield(load_profile("responsive"), LIMITS)


def test_be_begins_safe_or_where_policy_says():
    assert PolicyRunner(Scripted(ASKED), shield(), LIMITS, 1.0).start() == LIMITS.safe
    assert PolicyRunner(Scripted(ASKED), None, LIMITS, 1.0).start() == LIMITS.minimum


@pytest.mark.parametrize("strict", [False, True])
def test_policy_is_told_of_the_ruling(strict):
    policy = Scripted(ASKED)
    runner = PolicyRunner(policy, shield(), LIMITS, 1.0, strict=strict)
    decision = runner.decide(telemetry(), runner.start())
    assert decision.proposed == ASKED
    assert decision.verdict.overridden, "BE grows by a step at a time"
    assert policy.heard == [decision.verdict]
    assert (decision.acting, decision.fallback, decision.failed) == ("scripted", "", False)


def test_without_a_shield_the_answer_is_let_through():
    runner = PolicyRunner(Scripted(ASKED), None, LIMITS, 1.0)
    decision = runner.decide(telemetry(), runner.start())
    assert (decision.verdict.allocation, decision.verdict.overridden, decision.note) == (ASKED, False, "as ever")


def test_only_who_wants_it_sees_the_mask():
    masked, plain = Scripted(0, masked=True), Scripted(0)
    for policy, its_shield in ((masked, shield()), (plain, shield()), (masked, None)):
        runner = PolicyRunner(policy, its_shield, LIMITS, 1.0)
        runner.decide(telemetry(), runner.start())
    assert masked.seen[0].mask.shape == (len(MOVES),)
    assert plain.seen[0].mask is masked.seen[1].mask is None


def test_failing_policy_leaves_be_safe_strict_one_raises():
    runner = PolicyRunner(Scripted(PolicyError("no idea")), shield(), LIMITS, 1.0)
    decision = runner.decide(telemetry(), runner.start())
    assert decision.proposed == decision.verdict.allocation == LIMITS.safe
    assert (decision.acting, decision.failed) == (SAFE, True)
    assert decision.note == decision.fallback == "policy failed: no idea"
    assert isinstance(decision.error, PolicyError)
    with pytest.raises(PolicyError, match="no idea"):
        PolicyRunner(Scripted(PolicyError("no idea")), None, LIMITS, 1.0, strict=True).decide(telemetry(), LIMITS.safe)


def test_fault_of_a_guard_is_not_policys():
    runner = PolicyRunner(Scripted(ASKED), shield(), LIMITS, 1.0)
    current = runner.start()
    runner.shield.rule = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        runner.decide(telemetry(), current)


def test_decision_says_who_stood_in():
    chain = FallbackPolicy(Scripted(ValueError("gone"), "net"), Scripted(Allocation(0.5, 1), "rule"), 400.0)
    runner = PolicyRunner(chain, None, LIMITS, 400.0)
    decision = runner.decide(telemetry(), runner.start())
    chain.close()
    assert (decision.acting, decision.fallback, decision.note) == ("rule", "ValueError: gone", "as ever")
    assert (decision.failed, decision.error) == (True, None)
    assert decision.proposed == Allocation(0.5, 1)


def test_policies_sharing_a_shield_are_ruled_apart():
    shared, asks = shield(), (0, ASKED, Allocation(0.1, 1))
    together = [PolicyRunner(Scripted(answer), shared, LIMITS, 1.0) for answer in asks]
    apart = [PolicyRunner(Scripted(answer), shield(), LIMITS, 1.0) for answer in asks]
    for runner in (*together, *apart):
        runner.start()
    chance, current = np.random.default_rng(1), LIMITS.safe
    for tick in range(50):
        now = telemetry(float(tick)).but(load_ratio=Value(chance.uniform(0.0, 1.2)))
        ruled = [runner.decide(now, current).verdict for runner in together]
        assert ruled == [runner.decide(now, current).verdict for runner in apart]
        current = ruled[1].allocation


@pytest.mark.parametrize("name", ["feedforward", "prm-hybrid-tuned", "heracles", "parties", "learned-table"])
def test_a_rehearsal_leaves_the_policy_as_it_was(name):
    """The tick log has the digest, and who reads the log builds the policy anew to compare."""
    policy, runner = build(name), PolicyRunner(Scripted(ASKED), None, LIMITS, 1.0)
    runner.start()
    policy.rehearse(LIMITS, runner.observer.observe(telemetry(), LIMITS.safe))
    assert policy.digest == build(name).digest


def test_policy_that_learned_nothing_writes_no_rest():
    policy = Scripted(ASKED)
    assert (policy.learned, policy.trained_with, policy.heuristic) == (False, {}, None)
    assert (policy.acting, policy.fallback, policy.failed) == ("scripted", "", False)
    assert policy.unfamiliar(None) == ""
    seen = PolicyRunner(policy, None, LIMITS, 1.0).observer.observe(telemetry(), LIMITS.safe)
    assert policy.rehearse(LIMITS, seen) is None
    with pytest.raises(PolicyError, match="is no action"):
        Scripted("nonsense").rehearse(LIMITS, seen)
    policy.close()
