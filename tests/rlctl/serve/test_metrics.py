"""What Prometheus sees: names as its conventions want them, no label without an end, and never the loop's time."""

import math
import re
import shutil
import subprocess
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.applications import Placement
from rlctl.envs.telemetry import LC_WAITING, READINGS, Missing, Quantile, Telemetry, Value, Why, worst_of
from rlctl.log.record import Tick
from rlctl.safety.symptoms import Alarm, Sign
from rlctl.safety.verdict import Bound, Reason, Verdict
from rlctl.serve.budget import ErrorBudget
from rlctl.serve.metrics import Metrics, ServiceFigures, _shares
from rlctl.serve.self_usage import SelfUsage
from tests.doubles.clock import Clock

LIMITS = Limits(cpus=2)
FULL, FROZEN = Allocation(UNLIMITED, 2), Allocation(0.01, 1, frozen=True)
USED = SelfUsage(cpu_seconds=1.5, resident_bytes=60 << 20, open_files=12)
EVERYTHING = Telemetry(1.0, 0.010, counters={"page_faults": Value(1.0)}, **dict.fromkeys(READINGS, Value(0.5, 0.25)))


def a_tick(index=0, telemetry=EVERYTHING, *, error="", verdict=None, seconds=0.002, missed=0):
    verdict = verdict or Verdict(FROZEN, FULL, (Bound("slack-gate", Reason.SLACK_NEGATIVE, FROZEN),))
    return Tick(
        index, 1e9, telemetry, FROZEN, verdict.proposed, verdict, FROZEN, "ppo", error=error, read_seconds=seconds / 2,
        decision_seconds=seconds / 10, tick_seconds=seconds, missed_deadlines=missed,
    )  # fmt: skip


@pytest.fixture
def clock():
    return Clock(100.0)


@pytest.fixture
def metrics(clock):
    return Metrics("ppo", ("responsive", "0a1b2c"), LIMITS, 1.0, measure=lambda: USED, clock=clock)


def samples(metrics):
    """Value by name and labels, as a scraper reads them."""
    text = generate_latest(metrics).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_a_tick_is_seen_whole(metrics, clock):
    late = Quantile(0.02, 0.1, samples=50, window_seconds=1.0)
    telemetry = EVERYTHING.but(tail_latency_seconds=late, oldest_request_seconds=Missing(Why.NOT_CONFIGURED))
    metrics.write(a_tick(telemetry=telemetry, missed=3))
    clock.now += 0.75
    seen = samples(metrics)
    assert seen["rlctl_slack_ratio"] == -1.0
    assert seen["rlctl_tail_latency_seconds"] == 0.02
    assert seen["rlctl_tail_latency_target_seconds"] == 0.01
    assert seen["rlctl_load_ratio"] == 0.5
    assert seen["rlctl_ticks_total{slo=missed}"] == 1
    assert seen["rlctl_ticks_total{slo=met}"] == 0
    assert seen["rlctl_readings_missing_total{reading=oldest_request_seconds,reason=not-configured}"] == 1
    assert seen["rlctl_shield_bounds_total{guard=slack-gate,reason=slack-negative}"] == 1
    assert seen["rlctl_shield_overrides_total"] == 1
    assert (seen["rlctl_be_proposed_quota_cpus"], seen["rlctl_be_quota_cpus"]) == (2.0, 0.01)
    assert (seen["rlctl_be_verdict_frozen"], seen["rlctl_be_frozen"], seen["rlctl_be_proposed_frozen"]) == (1, 1, 0)
    assert seen["rlctl_missed_deadlines_total"] == 3
    assert seen["rlctl_last_tick_age_seconds"] == 0.75
    assert seen["rlctl_self_resident_memory_bytes"] == 60 << 20
    assert seen["rlctl_policy_info{policy=ppo,shield=responsive,shield_digest=0a1b2c}"] == 1


def test_guard_that_holds_be_counts_once_a_tick(metrics):
    tick = a_tick()
    metrics.write(replace(tick, verdict=replace(tick.verdict, bounds=2 * tick.verdict.bounds)))
    assert samples(metrics)["rlctl_shield_bounds_total{guard=slack-gate,reason=slack-negative}"] == 1


def test_missing_has_neither_sample_nor_zero(metrics):
    metrics.write(a_tick(telemetry=Telemetry(1.0, 0.010)))
    seen = samples(metrics)
    assert "rlctl_slack_ratio" not in seen
    assert "rlctl_tail_latency_seconds" not in seen
    assert seen["rlctl_ticks_total{slo=unknown}"] == 1
    waits = {"tail_latency_seconds": Quantile(33000.0, samples=1000), "counters": {LC_WAITING: Value(0.033)}}
    metrics.write(a_tick(1, telemetry=Telemetry(2.0, 1e5, **waits)))
    seen = samples(metrics)
    assert seen["rlctl_lc_waiting_ratio"] == 0.033
    assert "rlctl_tail_latency_seconds" not in seen, "nobody measured one"


def test_before_first_tick_counters_are_zero(metrics, clock):
    clock.now += 30.0
    seen = samples(metrics)
    assert seen["rlctl_last_tick_age_seconds"] == 30.0, "an alert sees a first tick that hangs"
    assert seen["rlctl_start_time_seconds"] == pytest.approx(time.time(), abs=600.0)
    assert seen["rlctl_write_errors_total"] == 0
    assert seen["rlctl_acting_policy_ticks_total{policy=ppo}"] == 0
    assert seen["rlctl_tick_duration_seconds_count"] == 0
    assert not [name for name in seen if "be_" in name or "slack" in name or "reading_age" in name]
    assert metrics.age_seconds() == math.inf


def test_fallback_is_seen_then_counted(metrics):
    metrics.write(replace(a_tick(), acting="prm-hybrid-tuned", fallback="demoted: 3 % failed"))
    assert samples(metrics)["rlctl_fallback_active"] == 1
    metrics.write(replace(a_tick(), acting="ppo"))
    seen = samples(metrics)
    assert (seen["rlctl_fallback_active"], seen["rlctl_fallback_ticks_total"]) == (0, 1)
    assert seen["rlctl_acting_policy_ticks_total{policy=prm-hybrid-tuned}"] == 1
    assert seen["rlctl_acting_policy_ticks_total{policy=ppo}"] == 1


def test_counts_of_others_are_asked_for_on_demand():
    dropped = iter(range(3, 9))
    metrics = Metrics(
        "ppo",
        ("responsive", ""),
        LIMITS,
        1.0,
        ServiceFigures(lambda: {"log_records_dropped": next(dropped), "watchdog_restarts": 2}),
    )
    assert samples(metrics)["rlctl_log_records_dropped_total"] == 3
    seen = samples(metrics)
    assert (seen["rlctl_log_records_dropped_total"], seen["rlctl_watchdog_restarts_total"]) == (4, 2)
    assert seen["rlctl_host_events_total{kind=foreign-write}"] == 0


def test_error_budget_is_remainder_and_two_rates():
    budget = ErrorBudget("web", 0.01, 1.0)
    for _ in range(216):
        budget.count(missed=True)
    seen = samples(
        Metrics("ppo", ("responsive", ""), LIMITS, 1.0, service=ServiceFigures(budgets=(budget,)), measure=lambda: USED)
    )
    assert seen["rlctl_error_budget_remaining_ratio{lc=web}"] == 0.75
    assert seen["rlctl_error_budget_burn_rate{lc=web,window=1h}"] == 6.0
    assert seen["rlctl_error_budget_burn_rate{lc=web,window=24h}"] == 0.25


@given(st.lists(st.floats(min_value=0.0, max_value=100.0), max_size=50))
def test_a_histogram_is_cumulative_and_loses_nothing(seconds):
    metrics = Metrics("ppo", ("responsive", ""), LIMITS, 1.0, measure=lambda: USED)
    for index, one in enumerate(seconds):
        metrics.write(a_tick(index, seconds=one))
    seen = samples(metrics)
    for name, value in seen.items():
        if name.startswith("rlctl_tick_duration_seconds_bucket"):
            bound = float(name.partition("le=")[2].rstrip("}"))
            assert value == sum(one <= bound for one in seconds)
    assert seen["rlctl_tick_duration_seconds_count"] == len(seconds)
    assert seen["rlctl_tick_duration_seconds_sum"] == pytest.approx(sum(seconds))


any_number = st.floats(allow_nan=True, allow_infinity=True)
any_reading = st.one_of(st.builds(Value, any_number, any_number), st.builds(Missing, st.sampled_from(Why), st.text()))


@given(any_number, any_number, st.lists(any_reading, min_size=len(READINGS), max_size=len(READINGS)))
def test_no_reading_breaks_a_tick_or_a_scrape(time, target, readings):
    metrics = Metrics("ppo", ("responsive", ""), LIMITS, 1.0, measure=lambda: USED)
    metrics.write(a_tick(telemetry=Telemetry(time, target, **dict(zip(READINGS, readings, strict=True)))))
    samples(metrics)


def every_family(metrics):
    metrics.write(a_tick())
    metrics.write(a_tick(1, Telemetry(2.0, 0.010)))
    return list(metrics.collect())


def test_names_follow_the_conventions(metrics):
    """Those of https://prometheus.io/docs/practices/naming that a program can check; promtool checks more of them."""
    families = every_family(metrics)
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    for family in families:
        exposed = family.name + ("_total" if family.type == "counter" else "")
        assert re.fullmatch(r"rlctl(_[a-z]+)+", exposed), exposed
        assert re.search(
            r"_(seconds|bytes|cpus|ratio|total|info|frozen|starved|alive|active|cpi|files|request)$", exposed
        ), exposed
        words = set(exposed.split("_"))
        assert not words & {"rate", "percent", "milliseconds", "ms", "megabytes", "minutes", "count", "avg"}, exposed
        assert ("total" in words) == (family.type == "counter"), exposed
        assert family.documentation.endswith("."), exposed
        assert not set(family.type.split()) & words, exposed


def test_labels_come_from_closed_sets(metrics):
    """Text that a sensor, a policy or the kernel made up must not become a time series."""
    for index in range(200):
        note = Missing(Why.MALFORMED, f"line {index}")
        bound = Bound("sensors", Reason.ABSURD, FROZEN, f"detail {index}")
        metrics.write(
            a_tick(index, EVERYTHING.but(cpi=note), error=f"/sys/{index}", verdict=Verdict(FROZEN, FULL, (bound,)))
        )
    assert len(samples(metrics)) < 150


def test_promtool_has_nothing_to_say(metrics):
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    every_family(metrics)
    done = subprocess.run([tool, "check", "metrics"], input=generate_latest(metrics), capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_applications_are_named_without_pids_and_bounded():
    placed = {f"{pid}:app{pid:03}": Placement(0, "all", 0.01 * pid) for pid in range(1, 61)}
    twice = {"900:app060": Placement(0, "all", 0.4), "901:app001": None}
    jobs = {f"run-u{number}.service": Placement(0, "all", 0.9) for number in range(9)}
    families = {family.name: family for family in _shares(placed | twice | jobs)}
    cpus = {sample.labels["application"]: sample.value for sample in families["rlctl_application_cpus"].samples}
    assert len(cpus) == 51
    assert cpus["app060"] == pytest.approx(1.0)
    assert cpus["unregistered"] == pytest.approx(8.1), "each job of a timer would be a series for ever"
    assert cpus["other"] == pytest.approx(sum(0.01 * pid for pid in range(1, 12)))
    assert families["rlctl_applications_running"].samples[0].value == 70
    assert families["rlctl_applications_deferred"].samples[0].value == 1


def test_after_the_last_application_none_run(metrics):
    metrics.write(a_tick())
    assert "rlctl_applications_running" not in samples(metrics), "nobody divides BE"
    metrics.write(replace(a_tick(1), shares={"7:encoder": Placement(1, "node1", 0.6)}))
    assert samples(metrics)["rlctl_applications_running"] == 1
    metrics.write(a_tick(2))
    seen = samples(metrics)
    assert (seen["rlctl_applications_running"], seen["rlctl_applications_deferred"]) == (0, 0)
    assert not [name for name in seen if name.startswith("rlctl_application_cpus")]


def test_alarms_are_counted_by_sign_false_ones_again(clock):
    heeded = {Sign.LATE, Sign.OLDEST}
    metrics = Metrics(
        "ppo",
        ("responsive", ""),
        LIMITS,
        1.0,
        service=ServiceFigures(heeded=lambda: heeded),
        measure=lambda: USED,
        clock=clock,
    )
    assert samples(metrics)["rlctl_inner_alarms_total{sign=cpu-pressure}"] == 0
    met, missed = (EVERYTHING.but(tail_latency_seconds=Quantile(seconds), oldest_request_seconds=Value(0.0))
                   for seconds in (0.005, 0.02))  # fmt: skip
    for telemetry in (met, missed):
        metrics.write(replace(a_tick(telemetry=telemetry), alarm=Alarm(Sign.LATE, "", 0.1, 0.001)))
    seen = samples(metrics)
    assert seen["rlctl_inner_alarms_total{sign=late-requests}"] == 2
    assert seen["rlctl_inner_false_alarms_total{sign=late-requests}"] == 1
    assert seen["rlctl_inner_sign_active{sign=late-requests}"] == 1
    assert seen["rlctl_inner_sign_active{sign=cpu-pressure}"] == 0


def test_bound_a_masked_policy_keeps_counts_as_exceeded(metrics):
    """Or no alert on `be-overrun` would ever be heard under a learned policy."""
    safe, lax = Bound("overrun", Reason.BE_OVERRUN, FROZEN), Bound("slack-hold", Reason.SLACK_SMALL, FULL)
    metrics.write(a_tick(verdict=Verdict(FROZEN, FROZEN, (safe, lax))))
    assert metrics._counts.bounds == {("overrun", Reason.BE_OVERRUN): 1}


def test_lc_that_misses_its_target_counts_whoever_rules(metrics):
    """Of an idle one nothing is known, and so it rules."""
    met = EVERYTHING.but(tail_latency_seconds=Quantile(0.001, samples=100), oldest_request_seconds=Value(0.0))
    missed = met.but(tail_latency_seconds=Quantile(0.020, samples=100))
    idle = EVERYTHING.but(tail_latency_seconds=Missing(Why.NO_DATA), oldest_request_seconds=Missing(Why.NO_DATA))
    for other in (missed, met):
        metrics.write(a_tick(telemetry=worst_of({"web": idle, "cache": other})))
    assert (metrics._counts.slo["missed"], metrics._counts.slo["unknown"]) == (1, 1)
