"""What a run is worth, on runs whose worth is known beforehand."""

import math
from dataclasses import replace

import pytest

from rlctl.bench.intervals import mean_interval
from rlctl.bench.score import LiveRun, score
from rlctl.bench.testbed import gaps
from rlctl.envs.allocation import Allocation
from rlctl.envs.telemetry import Missing, Quantile, Telemetry, Value, Why
from rlctl.envs.testbed.generator_source import CLIENT, LAG
from rlctl.log.record import Tick
from rlctl.report.page import render
from rlctl.report.table import LEGEND, score_rows, suite_rows
from rlctl.safety.verdict import Verdict

RUNNING, FROZEN = Allocation(0.5, 1), Allocation(0.5, 1, frozen=True)


def tick(index, latency_seconds, applied=RUNNING, proposed=None, before=RUNNING):
    tail = Missing(Why.GONE) if latency_seconds is None else Quantile(latency_seconds, samples=100)
    telemetry = Telemetry(float(index), 0.010, tail_latency_seconds=tail, load_ratio=Value(0.4))
    verdict = Verdict(applied, proposed or applied)
    return Tick(index, 0.0, telemetry, before, verdict.proposed, verdict, applied, "x", decision_seconds=1e-4 * index)


def run(*latencies, be=0.5):
    return LiveRun("x", tuple(tick(i, latency) for i, latency in enumerate(latencies)), be, 0.01)


def test_unmeasured_window_does_not_count():
    assert score([run(0.001, 0.010, 0.011, None)]).qos_guarantee_percent.mean == 50.0


def test_idle_window_holds_unless_somebody_waits():
    quiet = run(0.001, None, None, 0.001)
    asked = {"counters": {"offered_rps": Value(0.0)}, "oldest_request_seconds": Value(0.0)}
    ticks = list(quiet.ticks)
    ticks[1] = replace(ticks[1], telemetry=replace(ticks[1].telemetry, **asked))
    waits = asked | {"oldest_request_seconds": Value(0.005)}
    ticks[2] = replace(ticks[2], telemetry=replace(ticks[2].telemetry, **waits))
    quiet = replace(quiet, ticks=tuple(ticks))
    assert score([quiet]).qos_guarantee_percent.mean == 75.0
    assert list(gaps(quiet)) == ["no latency in 1 of 4 windows, which count as missed and in no worst one: gone"]


def test_run_is_judged_by_its_client():
    """A policy may be told too little by another source; its score may not be."""
    told = run(0.001, 0.002, 0.020)
    saw = [Quantile(0.001, samples=100), Quantile(0.030, samples=100), Missing(Why.GONE)]
    ticks = [
        replace(one, telemetry=replace(one.telemetry, counters={f"{CLIENT}tail_latency_seconds": truth}))
        for one, truth in zip(told.ticks, saw, strict=True)
    ]
    judged = replace(told, ticks=tuple(ticks))
    assert score([told]).qos_guarantee_percent.mean == pytest.approx(200 / 3)
    assert score([judged]).qos_guarantee_percent.mean == pytest.approx(100 / 3)
    assert "its source put 1 of 3 windows on the same side of the target as the client" in list(gaps(judged))


def test_client_that_sends_late_is_told():
    ticks = [
        replace(one, telemetry=replace(one.telemetry, counters={LAG: Value(lag)}))
        for one, lag in zip(run(0.001, 0.002, 0.003).ticks, (0.0001, 0.0011, 0.0042), strict=True)
    ]
    told = list(gaps(LiveRun("x", tuple(ticks), 0.5, 0.01)))
    assert told == ["the load generator sent late (p95 up to 4.2 ms) in 2 of 3 windows"]


def test_table_says_100_only_without_misses():
    almost = score([run(*[0.001] * 2399, 0.02)])
    assert score_rows({"x": almost})[1][1] == "99.9"
    assert suite_rows({"scenario": {"x": almost}})[1][1:3] == ("99.96 / 50.0", "99.96"), "one run has no interval"
    assert score_rows({"x": score([run(0.001)])})[1][1] == "100.0"


def test_the_longest_violation_and_the_worst_window():
    one = score([run(0.001, 0.02, 0.03, 0.001, 0.05)])
    assert one.time_to_recover_seconds.mean == 2.0
    assert one.worst_window_over_target.mean == pytest.approx(5.0)


def test_throughput_is_a_mean_with_interval():
    one = score([run(0.001, 0.001, be=0.4), run(0.001, 0.001, be=0.6)])
    assert one.be_throughput_percent.mean == pytest.approx(50.0)
    assert one.be_throughput_percent.ci95[0] < 40.0
    assert one.emu_percent.mean == pytest.approx(90.0)


def test_requests_cost_is_told_beside_no_be():
    def costing(cpus):
        ticks = run(0.001, 0.001, 0.001).ticks
        counters = {"offered_rps": Value(9000.0), "done_rps": Value(1000.0)}  # most still wait, and cost nothing yet
        told = {"lc_cpus": Value(cpus), "counters": counters}
        return replace(run(), ticks=tuple(replace(one, telemetry=replace(one.telemetry, **told)) for one in ticks))

    one = score([costing(0.12), costing(0.24)], alone=[100e-6, 200e-6])
    assert one.request_cpu_microseconds.mean == pytest.approx(180.0)
    assert one.request_cpu_ratio.ci95 == (pytest.approx(1.2), pytest.approx(1.2)), "the host was half as fast"
    header, row = score_rows({"x": one})
    assert dict(zip(header, row, strict=True))["x frozen"] == "1.20 (1.20-1.20)"
    assert score([costing(0.12)], alone=[math.nan]).request_cpu_ratio is None
    assert "us/request" not in score_rows({"x": score([run(0.001, 0.001)])})[0]


def test_suspensions_reconfigurations_and_overrides():
    ticks = (
        tick(0, 0.001),
        tick(1, 0.001, FROZEN, RUNNING),
        tick(2, 0.001, FROZEN, before=FROZEN),
        tick(3, 0.001, before=FROZEN),
    )
    one = score([LiveRun("x", ticks, 0.1, 0.0)])
    assert (one.suspensions.mean, one.reconfigurations.mean, one.shield_override_percent.mean) == (1.0, 2.0, 25.0)
    assert one.frozen_percent.mean == 50.0


def test_the_json_has_the_contract_s_names():
    found = score([run(0.001, 0.001)]).as_json()
    assert {"qos_guarantee_percent", "be_throughput_percent", "emu_percent", "worst_window_over_target",
            "time_to_recover_seconds", "suspensions", "reconfigurations", "shield_override_percent",
            "decision_seconds_p99", "controller_cpu_percent", "samples"} <= found.keys()  # fmt: skip
    assert set(found["qos_guarantee_percent"]) == {"mean", "ci95", "ci99"}


def test_the_table_is_markdown_with_aligned_columns():
    lines = render(score_rows({"prm-hybrid-tuned": score([run(0.001, 0.02)]), "x": score([run(0.001, 0.001)])})).split(
        "\n"
    )
    assert len({len(line) for line in lines}) == 1
    assert lines[2].startswith("| prm-hybrid-tuned |")


def test_weight_of_be_is_a_column_where_different():
    each = score([run(0.001, 0.02)])
    rows = score_rows({"htb": each, "ppo": each}, {"htb": "minimum", "ppo": "equal", "frozen": "equal"})
    assert [row[:2] for row in rows] == [("manager", "BE weight"), ("htb", "minimum"), ("ppo", "equal")]
    assert len({len(row) for row in rows}) == 1


def test_controllers_time_does_not_read_as_latency():
    header = score_rows({})[0]
    assert header[-1] == "decide ms"
    assert len(LEGEND.split("\n")) <= 3
    assert all(len(line) <= 120 for line in LEGEND.split("\n"))
    for column in ("EMU", "worst x", "recover s", "changes", "override %", "decide ms"):
        assert column in LEGEND
        assert any(column in title for title in header)


def test_suite_has_rows_and_columns():
    good, bad = score([run(0.001, 0.001)] * 2), score([run(0.02, 0.02)] * 2)
    rows = suite_rows({"thesis": {"a": good, "b": bad}, "noisy": {"a": good, "b": good}})
    assert rows[0] == ("manager", "thesis", "noisy", "mean QoS", "mean BE")
    assert [row[0] for row in rows[1:]] == ["a", "b"]
    assert [row[-2] for row in rows[1:]] == ["100.00", "50.00"]
    assert rows[2][1].startswith("0.00 / ")


def test_interval_ending_at_nothing_keeps_its_width():
    few = replace(score([run(0.001, 0.001)] * 2), be_throughput_percent=mean_interval([0.0, 0.0, 0.9], 0.0, math.inf))
    assert suite_rows({"scenario": {"x": few}})[1][1].endswith("0.3 ±1.3")
