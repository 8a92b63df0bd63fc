"""`rlctl calibrate`: a testbed is swept, what is measured is kept, and the profile says where it was fitted."""

import functools
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rlctl.agents.managers.table import Table
from rlctl.bench.scenarios import load_scenario
from rlctl.bench.sweep import Sweep, measured_table, sweep, swept_levels
from rlctl.commands import calibrate as command
from rlctl.commands.calibrate import fitted_profile, write_profile
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import ConfigError, HostError, TestbedError
from rlctl.envs.sim.fit import fit
from rlctl.envs.sim.physics import HostOrders, Hosts
from rlctl.envs.sim.profile import Constants, load_profile
from rlctl.envs.sim.surface import read_surface
from rlctl.envs.telemetry import Missing, Quantile, Telemetry, Value, Why
from rlctl.envs.testbed.network.link import LinkConfig
from rlctl.envs.workload import SLO, Weight
from rlctl.envs.yaml_edge import configs_folder
from tests.doubles.bed import Bed

MOST_RPS = 550.0


class FakeHost:
    """The plant of a fake testbed: nginx as the simulator knows it, so that a fit has something to find."""

    def __init__(self, profile, blind=False):
        self.limits = Limits(cpus=1, lc_cpus=1.0)
        self.host = Hosts(Constants.stack([profile.but(drift_cv=0.0)]), np.array([3], np.uint64))
        self.rate_rps, self.allocation, self.weight, self.blind = 0.0, self.limits.full, None, blind
        self.window = None

    def apply(self, allocation):
        self.allocation = allocation
        return allocation

    def set_weight(self, weight):
        self.weight = weight

    def reset(self, seed=None):
        pass

    def wait(self):
        one = self.allocation
        orders = HostOrders(*(np.array([x]) for x in (one.quota_cpus, float(one.cpuset_cpus), one.frozen, 1.0)))
        self.window = self.host.step(np.array([self.rate_rps]), orders)
        return 0

    def read(self):
        w = self.window
        missing = Missing(Why.NO_DATA)
        return Telemetry(
            0.0,
            0.010,
            tail_latency_seconds=missing if self.blind else Quantile(float(w.tail_latency_seconds[0])),
            oldest_request_seconds=missing if self.blind else Value(float(w.oldest_request_seconds[0])),
            lc_cpus=Value(float(w.lc_cpus[0])),
            be_cpus=Value(float(w.be_cpus[0])),
            counters={"offered_rps": Value(float(w.offered_rps[0]))},
        )


class FakeBed(Bed):
    """May break after some cells."""

    def __init__(self, profile, breaks_after=10**9, blind=False):
        super().__init__(FakeHost(profile, blind))
        self.slo, self.breaks_after = SLO(0.010, 0.95, MOST_RPS), breaks_after

    def settle(self, trace):
        assert self.plant.allocation.frozen, "a queue drains fastest without BE"
        if self.diary.count("settle") >= self.breaks_after:
            raise TestbedError("the LC still has a backlog")
        self.plant.host.reset(self.plant.host.seeds)
        super().settle(trace)

    def follow(self, trace):
        self.plant.rate_rps = trace.rate(0.0) * MOST_RPS


@pytest.fixture(scope="module")
def scenario():
    return load_scenario("live-nginx")


@pytest.fixture(scope="module")
def truth():
    return load_profile("two-core-nginx")


@pytest.fixture(scope="module")
def swept(scenario, truth, tmp_path_factory):
    """A whole default sweep of the fake testbed."""
    path = tmp_path_factory.mktemp("sweep") / "nginx.csv"
    plan, bed = Sweep(scenario), FakeBed(truth)
    sweep(plan, bed, path)
    return plan, bed, path


def test_default_sweep_fits_quarter_of_an_hour(scenario):
    plan = Sweep(scenario)
    assert plan.seconds <= 900.0
    assert len(plan.points) == len(plan.loads) * (len(plan.quotas) + 1)
    assert len(set(plan.points)) == len(plan.points)
    wide = Sweep(scenario.model_copy(update={"be": scenario.be.model_copy(update={"cpus": (1, 0)})}))
    assert {point.allocation.cpuset_cpus for point in wide.points} == {1, 2}
    assert wide.seconds <= 900.0


def test_drift_is_not_taken_for_the_loads_doing(scenario):
    """Cells are measured in a shuffled order, the same each time."""
    loads = [point.load_ratio for point in Sweep(scenario).points]
    assert loads != sorted(loads)
    assert Sweep(scenario).points == Sweep(scenario).points
    assert abs(np.corrcoef(loads, np.arange(len(loads)))[0, 1]) < 0.3


def test_sweep_measures_cells_from_empty_queues(swept):
    plan, bed, path = swept
    cells = read_surface(path)
    assert len(cells) == len(plan.points) == bed.diary.count("settle")
    assert bed.diary[0] == "start BE"
    assert bed.diary[-1] == "stop BE"
    assert bed.plant.weight is Weight.EQUAL
    assert {len(cell.windows) for cell in cells} == {plan.windows - 1}
    assert sum(cell.frozen for cell in cells) == len(plan.loads)
    assert sum(math.isinf(cell.quota_cpus) and not cell.frozen for cell in cells) == len(plan.loads)


def test_each_cells_place_is_told_by_cpus(scenario, truth, tmp_path):
    """BE on CPU 1 first, then on the LC's CPU 0 as well: one own CPU, then one shared besides."""
    wide = scenario.model_copy(update={"be": scenario.be.model_copy(update={"cpus": (1, 0)})})
    plan, bed = Sweep(wide, loads=(0.3,), quotas=(0.5,), windows=2), FakeBed(truth)
    bed.plant.limits = Limits(cpus=2)
    sweep(plan, bed, tmp_path / "s.csv")
    found = {(cell.own_cpus, cell.shared_cpus, cell.quota_cpus) for cell in read_surface(tmp_path / "s.csv")}
    assert found == {(0.0, 0.0, math.inf), (1.0, 0.0, 0.5), (1.0, 1.0, 1.0)}


def test_measured_before_failure_is_kept(scenario, truth, tmp_path):
    bed = FakeBed(truth, breaks_after=3)
    with pytest.raises(TestbedError):
        sweep(Sweep(scenario), bed, tmp_path / "s.csv")
    assert len(read_surface(tmp_path / "s.csv")) == 3
    assert bed.diary[-1] == "stop BE"


def test_a_host_whose_latency_never_arrives_is_told(scenario, truth, tmp_path):
    sweep(Sweep(scenario, loads=(0.5,), quotas=(1.0,)), FakeBed(truth, blind=True), tmp_path / "s.csv")
    with pytest.raises((ConfigError, HostError)):
        fitted_profile(tmp_path / "s.csv", scenario, MOST_RPS, "x")


@pytest.mark.slow
def test_profile_is_near_host_and_says_where(swept, scenario, truth, tmp_path):
    _, _, path = swept
    begin, found = fitted_profile(path, scenario, MOST_RPS, "mine")
    assert found.lc.service_seconds == pytest.approx(truth.lc.service_seconds, rel=0.15)
    assert (found.name, found.lc.max_load_rps, found.be.own_cpus, found.be.shared_cpus) == ("mine", MOST_RPS, 0.0, 1.0)
    assert found.fitted["load_rps"][0] == pytest.approx(0.2 * MOST_RPS, rel=0.01)
    assert found.fitted["quota_cpus"] == (0.1, 1.0)
    assert found.sharing.period_exponent == begin.sharing.period_exponent  # one period tells nothing about it
    assert "live-nginx" in found.source
    write_profile(found, tmp_path / "mine.yaml")
    assert load_profile(str(tmp_path / "mine.yaml")) == found


def test_sweeps_table_is_what_manager_reads(swept, tmp_path):
    plan, _, path = swept
    table = measured_table(path, plan, MOST_RPS)
    table.write(tmp_path / "mine.table.yaml")
    manager = Table(file=str(tmp_path / "mine.table.yaml"))
    manager.start(Limits(cpus=1, lc_cpus=1.0))
    assert [load for load, _, _ in manager.levels] == pytest.approx(plan.loads, abs=0.001)
    quotas = [quota for _, quota, _ in manager.levels]
    assert quotas == sorted(quotas, reverse=True)
    assert 0.0 < sum(quotas) < len(quotas), "some of it, and not all"
    assert "live-nginx" in manager.remarks[0]


def test_benchmark_sweeps_its_own_testbed(scenario, truth):
    bed = FakeBed(truth)
    levels = swept_levels(scenario, bed)
    assert len(levels) == 6
    assert levels[0][1] > levels[-1][1]
    assert bed.diary[-1] == "stop BE"


def arguments(**changes):
    values = dict.fromkeys(
        (
            "config",
            "surface",
            "out",
            "loads",
            "quotas",
            "windows",
            "profile",
            "json",
            "dry_run",
            "cells",
            "force",
        )
    )
    return SimpleNamespace(**{**values, "repeats": 1, "rein": "cpu", **changes})


def test_links_sweep_is_fitted_from_provisioned(monkeypatch, tmp_path):
    monkeypatch.setattr("rlctl.commands.calibrate.fit", functools.partial(fit, calls=12))
    network = Path(__file__).resolve().parents[2] / "fixtures/surface/network.csv"
    fast = LinkConfig(rates=((0.0, 300.0),))  # what was swept for network.csv
    scenario = load_scenario("live-network").model_copy(update={"link": fast})
    begin, fitted = fitted_profile(network, scenario, 2750.0, "mine")
    assert begin.link.link_bytes_per_second == fitted.link.link_bytes_per_second == 37.5e6
    assert begin.link.link_bucket_bytes == 131072.0
    assert fitted.lc.max_load_rps == 2750.0
    assert fitted.ranges["link_bytes_per_second"] == (26.25e6, 48.75e6)
    assert fitted != begin
    write_profile(fitted, tmp_path / "mine.yaml")
    assert load_profile(str(tmp_path / "mine.yaml")) == fitted


def test_dry_run_prints_the_plan(tmp_path, capsys):
    assert command.run(arguments(config="live-nginx", out=tmp_path / "p.yaml", repeats=3, dry_run=True)) == 0
    said = capsys.readouterr()
    assert "35 cells of 6 x 1 s, 3 times, in" in said.err
    assert "min with the search" in said.err
    assert list(tmp_path.iterdir()) == []


def test_unfittable_testbed_says_so_before_sweeping(tmp_path, capsys):
    text = (configs_folder("scenarios") / "live-disk.yaml").read_text()
    text = text.replace("disk: {megabytes: 30}", "#").replace("kind: write", "kind: cpu")
    (tmp_path / "own.yaml").write_text(text)
    assert command.run(arguments(config=str(tmp_path / "own.yaml"), out=tmp_path / "p.yaml", dry_run=True)) == 0
    assert "a table and no profile: the fit has no profile of postgres" in capsys.readouterr().err
    assert command.run(arguments(config="live-disk", out=tmp_path / "p.yaml", dry_run=True)) == 0
    assert "no profile" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"config": "live-nginx"}, "--out PROFILE"),
        ({"config": "live-nginx", "out": "p.txt"}, "a .yaml file"),
        ({"config": "live-nginx", "out": "nowhere/p.yaml"}, "not a folder"),
        ({"config": "live-nginx", "out": "/dev/null/p.yaml"}, "not a folder"),
        ({"config": "live-nginx", "out": "p.yaml", "loads": (0.5, 3.0)}, "--loads"),
        ({"config": "live-nginx", "out": "p.yaml", "loads": (0.0004,)}, "0.005 at least"),
        ({"config": "live-nginx", "out": "p.yaml", "quotas": (0.0,)}, "--quotas"),
        ({"config": "live-nginx", "out": "p.yaml", "windows": 1}, "--windows"),
        ({"config": "live-nginx", "out": "p.yaml", "repeats": 0}, "--repeats must"),
        ({"surface": Path("x.csv"), "repeats": 2}, "go with --config"),
        ({"surface": Path("x.csv"), "rein": "link"}, "go with --config"),
        ({"config": "live-nginx", "out": "p.yaml", "rein": "link"}, "--rein link: live-nginx has no such thing"),
        ({"config": "live-nginx", "out": "p.yaml", "profile": ["nginx=two-core-nginx"]}, "goes with --surface"),
        ({"surface": "s.csv", "out": "p.yaml"}, "go with --config"),
        ({"surface": "s.csv"}, "--surface needs --profile"),
        ({"surface": "s.csv", "profile": ["nginx=two-core-nginx"]}, "s.csv: cannot be read"),
    ],
)
def test_impossible_wishes_are_one_line(tmp_path, changes, said):
    paths = {name: tmp_path / value for name, value in changes.items() if name in ("out", "surface")}
    with pytest.raises(ConfigError) as error:
        command.run(arguments(**{**changes, **paths}))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_neither_scenario_nor_earlier_sweep_is_overwritten(tmp_path):
    scenario = tmp_path / "own.yaml"
    scenario.write_text((configs_folder("scenarios") / "live-nginx.yaml").read_text())
    with pytest.raises(ConfigError, match="is the file of --config"):
        command.run(arguments(config=str(scenario), out=scenario, dry_run=True))
    (tmp_path / "p.csv").write_text("an earlier sweep\n")
    with pytest.raises(ConfigError, match=r"p\.csv: is there already; .* --force"):
        command.run(arguments(config="live-nginx", out=tmp_path / "p.yaml", dry_run=True))
    assert command.run(arguments(config="live-nginx", out=tmp_path / "p.yaml", dry_run=True, force=True)) == 0


def test_residuals_are_printed_by_part_and_regime(swept, capsys, tmp_path):
    _, _, path = swept
    out = tmp_path / "residuals.json"
    asked = arguments(surface=path, profile=["nginx=two-core-nginx"], cells=True, json=str(out))
    assert command.run(asked) == 0
    said = capsys.readouterr().out
    for words in ("| fitted ", "| kept aside ", "fitted: below fair share", "two-core-nginx (", "rps, BE absent"):
        assert words in said
    assert json.loads(out.read_text())["kept_aside"]["all"]["cells"] == 11


def test_profiles_are_named_by_service(swept):
    _, _, path = swept
    with pytest.raises(ConfigError, match="say SERVICE=PROFILE"):
        command.run(arguments(surface=path, profile=["two-core-nginx"]))
