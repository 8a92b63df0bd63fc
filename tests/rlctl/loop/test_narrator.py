"""What an operator hears of a tick: the cause first, nothing twice, and never silence about a lost latency."""

from dataclasses import replace
from pathlib import Path

import pytest

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.telemetry import LC_WAITING, Missing, Quantile, Telemetry, Value, Why
from rlctl.log.reader import LoggedTick
from rlctl.log.record import Tick
from rlctl.log.why import Nearest, TickPlace, in_plain_words
from rlctl.loop.narrator import Narrator
from rlctl.safety.verdict import Bound, Reason, Verdict

SAFE = Limits(cpus=2).safe
GONE = Missing(Why.NOT_SUPPORTED, "/tmp/x.jsonl: No such file or directory")


def tick(second, latency, before=SAFE, applied=SAFE, bounds=()):
    telemetry = Telemetry(float(second), 0.01, tail_latency_seconds=latency, load_ratio=Value(0.1))
    return Tick(second, 0.0, telemetry, before, before, Verdict(applied, before, bounds), applied, "weights")


@pytest.fixture
def told():
    return []


def test_missing_latency_is_told_at_once_and_again(told):
    narrator = Narrator(told.append, 2)
    for second in range(50):
        narrator.write(tick(second, GONE))
    assert [event.tick for event in told] == [0, 30]
    assert told[0].event == "trouble"
    assert told[0].text.startswith("no latency: /tmp/x.jsonl: No such file or directory; BE stays at ")


def test_another_reason_is_told_flapping_one_is_not(told):
    narrator = Narrator(told.append, 2)
    for second in range(20):
        narrator.write(tick(second, GONE if second % 2 else Quantile(0.001, samples=50)))
    narrator.write(tick(20, Missing(Why.MALFORMED, "no 'nosuch' in its lines; there is: ms")))
    assert len(told) == 2
    assert "no 'nosuch' in its lines; there is: ms" in told[1].text


def test_lost_sensors_are_named_not_their_consequences(told):
    bounds = (
        Bound("sensors", Reason.LATENCY_MISSING, SAFE),
        Bound("load-gate", Reason.COOLING_DOWN, SAFE),
        Bound("slack-gate", Reason.COOLING_DOWN, SAFE),
    )
    Narrator(told.append, 2).write(tick(0, GONE, before=Allocation(1.0, 2), bounds=bounds))
    change = next(event for event in told if event.event == "change")
    assert (
        ": the shield tightened policy weights: the LC's latency is missing (sensors: latency-missing); " in change.text
    )
    assert len(change.fields["guards"]) == 3


def test_change_says_what_the_lc_waits_for(told):
    fewer = tick(0, Quantile(0.009, samples=50), before=Allocation(1.0, 2), applied=Allocation(0.5, 2))
    waiting = fewer.telemetry.but(lc_pressure_ratio=Value(0.31), be_cpus=Value(0.9))
    Narrator(told.append, 2).write(replace(fewer, telemetry=waiting))
    assert "; latency 9.00 ms; the LC waits for a CPU 31% of the time: `be.cpus` without" in told[0].text
    assert told[0].fields["waits"] == {"a CPU": 0.31}


def test_other_cpus_of_frozen_be_are_no_news(told):
    Narrator(told.append, 2).write(tick(0, Quantile(0.001, samples=50), applied=SAFE.but(cpuset_cpus=2)))
    assert told == []


def test_nothing_that_did_not_change_is_told(told):
    narrator = Narrator(told.append, 2)
    narrator.write(tick(0, Quantile(0.001, samples=50)))
    narrator.write(tick(1, Quantile(0.001, samples=50), Allocation(0.501, 1), Allocation(0.502, 1)))
    assert told == []


def test_change_names_who_acted_and_summary_counts_fallbacks(told):
    narrator = Narrator(told.append, 2, summary_seconds=1.0)
    for second in range(2):
        fallen = tick(second, Quantile(0.001, samples=50), before=Allocation(1.0, 2))
        narrator.write(replace(fallen, acting="heracles", fallback="late answer"))
    change, summary = told
    assert "heracles (in place of policy weights) decided; " in change.text
    assert change.fields["fallback"] == "late answer"
    assert "a fallback decided 2 ticks" in summary.text


def test_who_took_be_down_is_told(told):
    held = Bound("growth-rate", Reason.GROWTH_RATE, Allocation(0.5, 1), "")
    one = tick(0, Quantile(0.001, samples=50), Allocation(0.5, 1), bounds=(held,))
    Narrator(told.append, 2).write(replace(one, acting="safe", fallback="no watchdog"))
    assert "BE frozen: the control loop applied the safe allocation: no watchdog; " in told[0].text


def test_summary_does_not_take_unknown_use_for_none(told):
    Narrator(told.append, 2, summary_seconds=0.0).write(tick(0, Quantile(0.001, samples=50)))
    assert "BE used an unknown number of CPUs of the 2 CPUs it may" in told[-1].text
    assert told[-1].fields["be_cpus"] is None


def test_waits_are_no_latency_in_a_summary(told):
    """`worst latency 33000000.00 ms` stood there of an LC that waited 3 % of the time."""
    one = tick(0, Quantile(33000.0, samples=1000))
    one = replace(one, telemetry=one.telemetry.but(counters={LC_WAITING: Value(0.033)}))
    Narrator(told.append, 2, summary_seconds=0.0).write(one)
    assert "latency" not in told[-1].text
    assert told[-1].fields["worst_milliseconds"] is None


@pytest.mark.parametrize(("cpus", "words"), [(1, "1 CPU it may"), (2, "2 CPUs it may")])
def test_summary_says_of_how_much_be_used_what(told, cpus, words):
    """A figure alone does not say whether BE was starved or had nearly all."""
    narrator = Narrator(told.append, cpus, summary_seconds=1.0)
    for second in range(2):
        one = tick(second, Quantile(0.001, samples=50))
        narrator.write(replace(one, telemetry=one.telemetry.but(be_cpus=Value(0.25 + second / 2))))
    assert f"BE used 0.50 CPUs on average of the {words} be given, now " in told[-1].text


def test_lc_without_process_is_told_at_once(told):
    narrator, stale = Narrator(told.append, 2), tick(0, Missing(Why.STALE, "http://x: nothing new for 3.2 s"))
    narrator.write(stale)
    narrator.write(replace(stale, index=1, telemetry=stale.telemetry.but(lc_alive=Value(0.0))))
    assert [event.text.split("; ")[1] for event in told] == [f"BE stays at {SAFE}", "the LC has no process"]


@pytest.mark.parametrize(
    ("counters", "alive", "told_what_to_do"),
    [
        ({"offered_rps": Value(0.0)}, Value(1.0), True),
        ({"offered_rps": Missing(Why.NOT_SUPPORTED), "done_rps": Value(0.0)}, Value(1.0), True),
        ({"offered_rps": Value(3.0), "done_rps": Value(0.0)}, Value(1.0), False),
        ({"offered_rps": Value(0.0)}, Value(0.0), False),
        ({}, Value(1.0), False),
    ],
)
def test_idle_lc_is_told_with_what_to_check(told, counters, alive, told_what_to_do):
    """A wrong lc.latency looks like an idle service, beside which BE stays safe for ever without an error."""
    idle = tick(0, Missing(Why.NO_DATA, "x.jsonl: no request completed in 1.0 s"))
    Narrator(told.append, 2).write(replace(idle, telemetry=idle.telemetry.but(counters=counters, lc_alive=alive)))
    assert ("lc.latency" in told[0].text) == told_what_to_do


def test_vanished_be_is_the_reason_not_the_policy(told):
    events = ("group-vanished: BE group b is left out: the group was removed", "be-vanished: no BE group is left")
    gone = replace(tick(0, Quantile(0.001, samples=50), before=Allocation(1.0, 2)), note="growth", events=events)
    Narrator(told.append, 2).write(gone)
    assert "BE frozen: no BE group is left; latency 1.00 ms" in told[0].text
    told_by_why = "\n".join(in_plain_words(Nearest(LoggedTick(gone, Path("ticks.jsonl"), 1), None, 0.0), TickPlace()))
    assert "nothing: no BE group is left; the next one begins with " in told_by_why
    assert "than the verdict" not in told_by_why


def quotas_told(told, *quotas, bounds=()):
    """Quotas in the lines on a policy that goes through these, one a tick, from one CPU on."""
    narrator, before = Narrator(told.append, 2), Allocation(1.0, 2)
    for second, quota in enumerate(quotas):
        now = Allocation(quota, 2)
        narrator.write(tick(second, Quantile(0.001, samples=50), before, now, bounds if second else ()))
        before = now
    return [event.fields["applied"]["quota_cpus"] for event in told]


def test_wavering_policy_has_no_line_for_each_change(told):
    """Once `feedforward`, which follows the load, had one nearly every tick."""
    assert quotas_told(told, 0.6, 0.65, 0.58, 0.66, 0.61, 0.63, 0.59) == [0.6]


def test_small_steps_are_told_when_they_are_much(told):
    assert quotas_told(told, 0.6, 0.65, 0.7, 0.8, 0.9, 0.85, 0.01) == [0.6, 0.8, 0.01]


def test_guard_that_steps_in_is_told(told):
    cap = Allocation(0.55, 2)
    assert quotas_told(told, 0.6, 0.55, bounds=(Bound("slack-floor", Reason.SLACK_TINY, cap),)) == [0.6, 0.55]


def test_cpuset_change_is_told_under_unlimited_quota(told):
    """Managers that know only whole CPUs leave the quota alone."""
    narrator, before = Narrator(told.append, 8), Allocation(1.0, 1)
    for second, cpus in enumerate((8, 2, 3, 2, 3, 2, 3)):
        now = Allocation(float("inf"), cpus)
        narrator.write(tick(second, Quantile(0.001, samples=50), before, now))
        before = now
    assert [event.fields["applied"]["cpuset_cpus"] for event in told] == [8, 2, 3]


def test_a_quota_that_is_lifted_altogether_is_told(told):
    assert quotas_told(told, 0.9, float("inf"), 1.0)[1:] == [None, 1.0]
