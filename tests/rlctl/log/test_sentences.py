"""Who decided and why, as a sentence."""

from dataclasses import replace

import pytest

from rlctl.envs.allocation import UNLIMITED, Allocation
from rlctl.envs.telemetry import Telemetry
from rlctl.log.record import Tick
from rlctl.log.sentences import REASONS, change_sentence, decision_sentence, on_rein
from rlctl.safety.verdict import Bound, Reason, Verdict

FULL, LESS = Allocation(UNLIMITED, 2), Allocation(0.5, 1)
FROZEN = Allocation(0.01, 1, frozen=True)


def tick(*bounds, allocation=LESS):
    return Tick(0, 0.0, Telemetry(0.0, 0.01), LESS, FULL, Verdict(allocation, FULL, bounds), LESS, "ppo")


def bound(reason, guard="slack-gate", detail=""):
    return Bound(guard, reason, LESS, detail)


@pytest.mark.parametrize(
    ("one", "sentence"),
    [
        (tick(allocation=FULL), "policy ppo decided"),
        (replace(tick(allocation=FULL), note="more load"), "policy ppo decided: more load"),
        (replace(tick(allocation=FULL), acting="parties"), "parties (in place of policy ppo) decided"),
        (tick(bound(Reason.SLACK_NEGATIVE)), "the shield tightened policy ppo: the LC missed its target"),
        (tick(bound(Reason.OPERATOR)), "the service tightened policy ppo: an operator holds BE"),
        (tick(bound(Reason.OWN, "my-guard", "too hot")), "the shield tightened policy ppo: guard my-guard: too hot"),
        (replace(tick(), acting="safe", fallback="x"), "the control loop applied the safe allocation: x"),
        (replace(tick(), events=("be-vanished: b",)), "no BE group is left"),
    ],
)
def test_a_decision_names_its_subject(one, sentence):
    assert decision_sentence(one) == sentence


@pytest.mark.parametrize(
    ("before", "applied", "sentence"),
    [
        (FULL, FROZEN, "BE frozen"),
        (FROZEN, LESS, f"BE thawed at {LESS}"),
        (FULL, LESS, f"BE reduced from {FULL} to {LESS}"),
        (LESS, FULL, f"BE raised from {LESS} to {FULL}"),
        (Allocation(0.5, 2), Allocation(1.0, 1), "BE changed from 0.50 CPU on 2 CPUs to 1.00 CPU on 1 CPU"),
    ],
)
def test_a_change_is_named_by_its_direction(before, applied, sentence):
    assert change_sentence(before, applied) == sentence


def test_every_reason_has_its_sentence():
    assert REASONS.keys() == set(Reason) - {Reason.OWN}


def test_rein_is_told_unless_it_is_the_cpu():
    assert [on_rein(Telemetry(0.0, 0.01, rein=rein)) for rein in ("cpu", "link")] == ["", " on its link"]
