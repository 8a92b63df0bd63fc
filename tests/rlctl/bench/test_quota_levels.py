"""The largest quota that held: of cells, of a testbed's CSV, and of the simulator."""

import math

import numpy as np
import pytest

from rlctl.agents.managers.table import Table
from rlctl.bench.scenarios import load_scenario
from rlctl.bench.sim_plan import SimPlan, run_sim
from rlctl.bench.sweep import bench_sweep, held_levels, measured_levels, needs_sweep, simulated_levels
from rlctl.envs.reins import Rein
from rlctl.envs.sim.surface import Cell, MeasuredWindow
from rlctl.envs.testbed.scenario import LiveScenario
from rlctl.envs.workload import Weight

INF = math.inf


def tried(*cells):
    return {(load, cpus, quota): held for load, quota, cpus, held in cells}


def test_a_quota_holds_where_all_smaller_ones_do():
    cells = tried((0.2, 0.1, 1, True), (0.2, 0.5, 1, False), (0.2, INF, 1, True))
    assert held_levels(cells) == ((0.2, 0.1, 1),)


def test_a_cell_without_any_latency_did_not_hold():
    cells = tried((0.2, 0.1, 1, True), (0.2, 0.5, 1, True), (0.4, 0.5, 1, True))
    assert held_levels(cells) == ((0.2, 0.5, 1), (0.4, 0.0, 1))


def test_most_quota_on_fewest_cpus_counts():
    cells = tried((0.2, INF, 1, True), (0.2, 1.0, 2, True), (0.2, INF, 2, False))
    assert held_levels(cells) == ((0.2, 1.0, 1),)
    assert held_levels(tried((0.2, INF, 1, True), (0.2, 1.5, 2, True))) == ((0.2, 1.5, 2),)


def cell(rate, quota, *tails, frozen=False):
    windows = tuple(MeasuredWindow(rate, tail, 0.5, 0.5) for tail in tails)
    return Cell("nginx", rate, frozen, 0.0, 1.0, 1.0, False, quota, 0.01, 1.0, windows)


def test_four_windows_of_five_hold():
    cells = [
        cell(100.0, INF, 0.001, 0.001, 0.001, 0.001, 0.001, frozen=True),
        cell(100.0, 0.1, 0.008, 0.008, 0.008, 0.008, 0.030),
        cell(100.0, 0.5, 0.008, 0.008, 0.008, 0.009, 0.009),
        cell(200.0, 0.1, 0.001, 0.001, 0.001),  # two windows in which no request was answered
    ]
    assert measured_levels(cells, 0.010, 1000.0) == ((0.1, 0.1, 1), (0.2, 0.0, 1))


def test_simulated_host_is_swept_the_same():
    host = load_scenario("two-core").host()
    levels = simulated_levels(host, Weight.EQUAL)
    assert levels == simulated_levels(host, Weight.EQUAL)
    quotas = [quota for _, quota, _ in levels]
    assert quotas[0] == 1.0
    assert quotas[-1] <= 0.1
    assert sum(quotas) < sum(quota for _, quota, _ in simulated_levels(host, Weight.MINIMUM))


def test_load_beyond_maximum_is_swept_there():
    plain = load_scenario("live-nginx").model_dump(exclude_unset=True)
    loads = ({"kind": "constant", "rate": rate} for rate in (1.6, 2.0))
    fast, fastest = (LiveScenario.model_validate(plain | {"load": load}) for load in loads)
    assert bench_sweep(fast).loads[0] == pytest.approx(1.6)
    assert bench_sweep(fastest).loads == (2.0,)


def test_a_benchmark_sweeps_what_its_trace_brings():
    scenario = load_scenario("live-nginx")
    plan = bench_sweep(scenario)
    assert plan.loads[0] == pytest.approx(0.22)
    assert plan.loads[-1] == pytest.approx(0.85)
    assert plan.measuring_seconds < 360.0
    assert [bench_sweep(load_scenario(name)).rein for name in ("live-nginx", "live-network", "live-disk")] == list(Rein)
    assert needs_sweep(("frozen", "table"), scenario)
    assert not needs_sweep(("frozen",), scenario)
    assert not needs_sweep(("table",), scenario.model_copy(update={"managers": {"table": {"file": "t.yaml"}}}))


@pytest.mark.slow
def test_table_row_keeps_target_and_works():
    scenario = load_scenario("two-core").model_copy(update={"duration_seconds": 60.0})
    plan = SimPlan.of(scenario, ("table", "frozen"), 3, "responsive")
    values = run_sim(plan).managers["table"]
    assert np.mean(values["qos_guarantee_percent"]) > 95.0
    assert np.mean(values["be_throughput_percent"]) > 20.0
    again = run_sim(plan, chunk=1).managers["table"]
    assert np.array_equal(values["be_throughput_percent"], again["be_throughput_percent"])


def test_a_scenarios_own_levels_win():
    one = load_scenario("two-core").model_copy(
        update={"duration_seconds": 20.0, "managers": {"table": {"levels": [[1.0, 0.0, 1]]}}}
    )
    values = run_sim(SimPlan.of(one, ("table",), 2, "responsive")).managers["table"]
    assert not values["be_throughput_percent"].any()
    assert Table(levels=[[1.0, 0.0, 1]]).remarks
