"""`rlctl bench --plant host --ray`: what several hosts measured, in one table and by host, and what was lost."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from rlctl.agents.policy_runner import SAFE
from rlctl.agents.training.cluster.nodes import StepResult
from rlctl.bench.intervals import mean_interval
from rlctl.bench.live_repeats import collected, live_hosts
from rlctl.bench.scenarios import load_scenario
from rlctl.bench.score import LiveRun, score
from rlctl.bench.testbed import Alone, LivePlan, Measured, OnTestbed, gaps, moves
from rlctl.cli import main
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import HostError
from rlctl.envs.host.max_load import MaxLoad
from rlctl.envs.reins import LINK_CARRIED, LINK_SENT, OTHERS
from rlctl.envs.telemetry import Quantile, Telemetry, Value
from rlctl.envs.testbed.workloads import Work
from rlctl.envs.workload import SLO
from rlctl.envs.yaml_edge import configs_folder
from rlctl.log.record import Tick
from rlctl.report.bench_report import tables, write_report
from rlctl.safety.profile import load_profile
from rlctl.safety.verdict import Verdict
from tests.doubles.bed import Bed
from tests.doubles.plant import FakePlant
from tests.needs import COMPILER, needs
from tests.waiting import PATIENCE_SECONDS, until

HALF = Allocation(0.5, 1)


def tick(index, tail=0.001):
    telemetry = Telemetry(float(index), 0.010, Quantile(tail, samples=100), load_ratio=Value(0.4))
    return Tick(index, 0.0, telemetry, HALF, HALF, Verdict(HALF, HALF), HALF, "x", decision_seconds=1e-4)


def alone(load, rate=12.5):
    return Alone(Work({"matrix": 8.0 * rate}, 8.0), load, {"kernel": "6.18"})


def run_of(manager, be):
    return Measured(LiveRun(manager, (tick(0), tick(1)), be, 0.01), ())


def measured(came, error=None, repeats=2, scenario="live-nginx"):
    """An outcome of what came from hosts: (host, repeat, step, result) in this order, and how it ended."""

    def begin(_blocks, _note):
        yield from (StepResult(*one) for one in came)
        if error:
            raise error

    return collected(
        LivePlan(load_scenario(scenario), ("frozen", "weights"), repeats, load_profile("responsive")), begin
    )


def repeat(host, number, first, *shares):
    order = ("frozen", "weights") if first == "frozen" else ("weights", "frozen")
    steps = [alone(300.0), *(run_of(manager, be) for manager, be in zip(order, shares, strict=False))]
    return [(host, number, step, result) for step, result in enumerate(steps)]


def test_differences_between_hosts_are_no_doubt():
    values, hosts = [10.0, 12.0, 60.0, 62.0], ["a", "a", "b", "b"]
    within, across = mean_interval(values, strata=hosts), mean_interval(values)
    assert within.mean == across.mean == 36.0
    # By hand: residuals +-1 each, s^2 = 4 / 2, standard error sqrt(2 / 4), t(2) = 4.303
    assert within.ci95[1] - 36.0 == pytest.approx(4.303 * 0.5**0.5, abs=1e-3)
    assert across.ci95[1] - 36.0 > 10.0 * (within.ci95[1] - 36.0)
    assert mean_interval(values[:2], low=0.0, strata=["a", "b"]).as_json()["ci95"] == [0.0, None]


@pytest.mark.slow
def test_hosts_are_pooled_and_shown_apart(tmp_path):
    came = [(host, 2 * turn + place, *rest) for turn in range(2) for place, one in enumerate(("a", "b"))
            for host, _, *rest in repeat(one, 0, "frozen", 0.01 + place / 50, 0.5 + place / 10)]  # fmt: skip
    outcome = measured(came, repeats=4)
    found = outcome.as_json()
    assert found["managers"]["weights"]["be_throughput_percent"]["mean"] == 55.0
    assert found["hosts"]["b"]["managers"]["weights"]["be_throughput_percent"]["mean"] == 60.0
    assert found["hosts"]["a"]["repeats"] == found["hosts"]["b"]["repeats"] == 2
    assert (found["repeats"], found["missing"], found["interrupted"]) == (4, {}, "")
    pooled, by_host = tables(outcome).split("\n\n")
    assert len(pooled.splitlines()) == 4
    assert [line[2:12] for line in by_host.splitlines()[2:]] == ["a: frozen ", "a: weights", "b: frozen ", "b: weights"]
    assert "maximum load on a 300 rps, b 300 rps" in outcome.caption
    others = "burst-1.png", "b/data-1.jsonl", "../other.png"
    for name in ("b/none-3.jsonl", "index.html", *others):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("of a report\n")
    earlier = {"files": ["b/none-3.jsonl", "index.html", "../other.png", "gone.png"]}
    (tmp_path / "result.json").write_text(json.dumps(earlier))
    write_report(outcome, tmp_path)
    found = {one.name for one in (tmp_path / "b").iterdir()}
    assert {"frozen-1.jsonl", "weights-2.png"} <= found
    assert "none-3.jsonl" not in found
    assert not (tmp_path / "index.html").exists(), "a page of other figures"
    assert all((tmp_path / name).exists() for name in others), "they are of no report in this folder"
    named = json.loads((tmp_path / "result.json").read_text())["files"]
    written = {str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*") if one.is_file()}
    assert {*named, "result.json"} == written - set(others)


def test_partial_remark_says_whose_it_is():
    came = [*repeat("a", 0, "frozen", 0.0, 0.5), *repeat("b", 1, "weights", 0.5, 0.0)]
    for host, _, _, result in came:
        if isinstance(result, Measured) and result.run.manager == "weights":
            object.__setattr__(result, "remarks", ("a remark", f"a load of {host}"))
    assert measured(came).remarks["weights"] == ("a remark", "a: a load of a", "b: a load of b")


def test_repeat_begun_anew_counts_once():
    came = [*repeat("a", 0, "frozen", 0.9), *repeat("b", 1, "weights", 0.5, 0.0), *repeat("b", 0, "frozen", 0.0, 0.5)]
    outcome = measured(came)
    assert list(outcome.hosts) == ["b"]
    assert outcome.scores["frozen"].be_throughput_percent.mean == 0.0
    assert outcome.notes == ("runs that do not count, as their repeat was done anew: 1",)
    assert outcome.missing == {}


def stopped_by(number):
    with live_hosts():
        with pytest.raises(KeyboardInterrupt):  # within, where `collected` keeps what was measured
            os.kill(os.getpid(), number)
        raise KeyboardInterrupt


def test_stop_keeps_what_was_measured():
    ends = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in ends}
    try:
        for number in ends:
            with pytest.raises(SystemExit) as left:
                stopped_by(number)
            assert left.value.code == 128 + number
            assert signal.getsignal(number) is signal.SIG_DFL
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        with live_hosts():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_silent_policy_has_a_remark_each_repeat():
    failed = replace(tick(1), acting=SAFE, fallback="RuntimeError: no")
    run = LiveRun("mine", (tick(0), failed), 0.5, 0.01)
    assert list(gaps(run_of("mine", 0.5).run)) == []
    assert list(gaps(run)) == ["no answer in 1 of 2 ticks, in which BE was frozen: RuntimeError: no"]
    came = [*repeat("", 0, "frozen", 0.0, 0.5), *repeat("", 1, "weights", 0.5, 0.0)]
    for _, number, _, result in came:
        if isinstance(result, Measured) and result.run.manager == "weights":
            object.__setattr__(result, "remarks", ("always", "at first")[: 2 - number])
    assert measured(came).remarks["weights"] == ("always", "at first")


def test_report_says_when_a_rein_was_taken():
    def on(index, rein, carried, missed):
        counters = {LINK_CARRIED: Value(carried), LINK_SENT: Value(0.8), OTHERS: Value(0.3)}
        telemetry = tick(index, 0.02 if missed else 0.001).telemetry.but(counters=counters, rein=rein)
        return replace(tick(index), telemetry=telemetry)

    ticks = [on(at, "cpu" if at < 4 else "link", 25e6 if at < 3 else 12.5e6, at in (2, 3)) for at in range(9)]
    (line,) = moves(LiveRun("mine", tuple(ticks), 0.5, 0.01))
    assert line.startswith("4 s into a run BE was held by its link, not by its cpu: 2 of the 4 windows before")
    assert line.endswith("before were missed; it sent 87.5 and 50.0 Mbit/s in 8 s before and after")
    no_link = [replace(one, telemetry=one.telemetry.but(counters={})) for one in ticks]
    (line,) = moves(LiveRun("mine", tuple(no_link), 0.5, 0.01))
    assert line.endswith("windows before were missed")


def test_unmeasured_repeat_takes_nothing_from_others():
    told = tick(0).telemetry.but(lc_cpus=Value(0.5), counters={"offered_rps": Value(250.0)})
    ticks = tuple(replace(tick(index), telemetry=told.but(time_seconds=float(index))) for index in range(2))
    runs = [LiveRun("weights", ticks, 0.5, 0.01)] * 2
    assert score(runs, (), [0.001, math.nan]).request_cpu_ratio.mean == pytest.approx(2.0)
    assert score(runs, (), [math.nan, math.nan]).request_cpu_ratio is None
    early = measured([*repeat("", 0, "frozen", 0.0, 0.5), *repeat("", 1, "weights", 0.5)], KeyboardInterrupt())
    assert early.as_json()["missing"] == {"frozen": 1}


@pytest.mark.parametrize(
    ("scenario", "fast", "slow", "doubted"),
    [("live-network", 18.7e6, 12e6, True), ("live-disk", 29.9e6, 21e6, True), ("live-nginx", 9.0, 1.0, False)],
)
def test_too_slow_be_is_said_at_once(scenario, fast, slow, doubted, capsys):
    _, *on_fast = repeat("fast", 0, "frozen", 0.0, 0.5)
    _, *on_slow = repeat("slow", 1, "weights", 0.5, 0.0)
    came = [("fast", 0, 0, alone(300.0, fast)), *on_fast, ("slow", 1, 0, alone(300.0, slow)), *on_slow]
    for text in (measured(came, scenario=scenario).caption, capsys.readouterr().err):
        assert ("slow is too slow for this scenario: BE alone moves" in text) is doubted
        assert "fast is too slow" not in text


@pytest.mark.parametrize(("tail", "doubted"), [(0.001, False), (0.020, True)])
def test_lc_that_misses_alone_is_said(tail, doubted):
    slow = Measured(LiveRun("frozen", (tick(0), tick(1, tail)), 0.0, 0.01), ())
    came = [("", 0, step, one) for step, one in enumerate([alone(300.0), slow, run_of("weights", 0.5)])]
    assert ("missed 50 % of the windows, which is no manager's doing" in measured(came).caption) is doubted


def test_without_host_it_is_missing_and_said():
    came = [*repeat("a", 0, "frozen", 0.0, 0.5), *repeat("a", 1, "weights", 0.5)]
    outcome = measured(came, HostError("no host is left to measure on"))
    assert outcome.as_json()["missing"] == outcome.missing == {"frozen": 1}
    assert "MISSING runs: frozen 1. INCOMPLETE: no host is left" in outcome.caption
    with pytest.raises(HostError):
        measured([], HostError("no host is left to measure on"))


@pytest.fixture
def bench(monkeypatch):
    """`rlctl bench` of two managers, for `all` on two scenarios; a run takes no time, and `error` ends a scenario."""

    def run(*words, error=None):
        def measure(plan, _):
            return measured(repeat("", 0, "frozen", 0.0, 0.5), error, 1, plan.scenario.name)

        shipped = {name: load_scenario(name) for name in ("live-memcached", "live-nginx")}
        monkeypatch.setattr("rlctl.commands.bench.shipped_scenarios", lambda: shipped)
        monkeypatch.setattr("rlctl.commands.bench_runs.live_hosts", lambda *_, **__: contextlib.nullcontext(measure))
        return main(["bench", "--plant", "host", "--managers", "frozen,weights", "--repeats", "1", *words])

    return run


def test_several_scenarios_are_one_document_on_stdout(bench, capsys):
    assert bench("--scenario", "all", "--json") == 0
    assert list(json.loads(capsys.readouterr().out)["scenarios"]) == ["live-memcached", "live-nginx"]


@pytest.mark.slow
def test_each_scenario_has_its_report(bench, tmp_path):
    pytest.importorskip("matplotlib", reason="figures need rlctl[cli]")
    assert bench("--scenario", "all", "--report", str(tmp_path / "out")) == 0
    assert {one.name for one in (tmp_path / "out").iterdir()} == {"live-memcached", "live-nginx"}


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (KeyboardInterrupt(), 130, ""),
        (HostError("the LC is gone"), 75, "ended early: the LC is gone"),
        (subprocess.TimeoutExpired("tc", 2.0), 75, "ended early: Command 'tc' timed out"),
        (ValueError("no number"), 75, "ended early: no number"),
    ],
)
def test_ended_early_it_shows_what_was_measured(error, code, told, bench, capsys):
    assert bench("--scenario", "live-nginx", error=error) == code
    out, err = capsys.readouterr()
    assert "| weights " in out
    assert "INCOMPLETE: " in out
    assert told in err


def test_testbeds_words_are_in_workers_log(capsys):
    @contextlib.contextmanager
    def testbed(spec, say):
        say("searching the LC's maximum load")
        yield None

    plan = LivePlan(load_scenario("live-nginx"), ("frozen",), 1, load_profile("responsive"))
    with OnTestbed(plan, testbed)():
        assert capsys.readouterr().err == "searching the LC's maximum load\n"


def lose(ray_cluster, node):
    """Ray dies on it, all at once; what the testbed had started stays to be seen after by the testbed's keeper."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    workers = [one for one in raylet.children(recursive=True) if one.cmdline()[0].startswith("ray::")]
    groups = [path for one in workers for path in Path("/sys/fs/cgroup").glob(f"*/rlctl-testbed-{one.pid}")]
    begun = [one for worker in workers for one in worker.children(recursive=True)]
    ray_cluster.crash(node)
    return begun, groups


@pytest.mark.host
@pytest.mark.ray
@pytest.mark.slow
def test_dead_nodes_testbed_is_restored(ray_cluster, tmp_path):
    needs(programs=("nginx", "stress-ng", COMPILER))
    text = (configs_folder("scenarios") / "live-nginx.yaml").read_text()
    knee = next(line for line in text.splitlines() if line.startswith("knee:"))
    scenario, result, told = tmp_path / "quick.yaml", tmp_path / "result.json", tmp_path / "told"
    scenario.write_text(text.replace(knee, "knee: {start_rps: 300, step_rps: 100, top_rps: 300}"))
    offered = {"testbed": 1, "live": 1}
    first = ray_cluster.add(resources=offered)
    words = ["bench", "--plant", "host", "--scenario", scenario, "--managers", "weights,frozen", "--duration", "3"]
    with told.open("w") as file:
        bench = subprocess.Popen(
            [sys.executable, "-m", "rlctl", *words, "--repeats", "2", "--ray", ray_cluster.address, "--json", result],
            stdout=file,
            stderr=file,
        )
    try:
        until(lambda: "/4 runs" in told.read_text() or bench.poll() is not None)
        assert bench.poll() is None, told.read_text()
        begun, groups = lose(ray_cluster, first)
        assert begun
        assert groups
        until(lambda: not any(path.exists() for path in groups))
        assert not psutil.wait_procs(begun, timeout=PATIENCE_SECONDS)[1]
        ray_cluster.add(resources=offered)
        assert bench.wait(PATIENCE_SECONDS) == 0, told.read_text()
    finally:
        bench.terminate()
        bench.wait()
    found = json.loads(result.read_text())
    assert len(found["hosts"]) == 1
    assert found["managers"]["weights"]["samples"] == found["managers"]["frozen"]["samples"] == 6
    assert any("was lost, and is begun anew" in line for line in found["notes"])


class SearchedBed(Bed):
    """With each search its LC bears less."""

    def __init__(self, spec, say, kind=FakePlant):
        super().__init__(kind(Limits(cpus=1), loads=(0.1,)))
        self.searches = 0
        self.search()

    def search(self):
        self.searches += 1
        self.slo, self.searched_seconds = SLO(0.010, max_load_rps=300.0 / self.searches), time.monotonic()

    def stop_be(self):
        return Work({"matrix": 50.0}, 1.0)

    solo = stop_be


def test_repeats_loads_are_shares_of_its_maximum(monkeypatch):
    monkeypatch.setattr("rlctl.bench.testbed.FRESH_SECONDS", 0.0)
    scenario = load_scenario("live-nginx").model_copy(update={"duration_seconds": 0.2})
    plan = LivePlan(scenario, ("frozen", "learned-table"), 2, load_profile("responsive"), adapt_seconds=0.3)

    def begin(blocks, _note):
        with OnTestbed(plan, SearchedBed)() as step:
            for number, block in enumerate(blocks):
                yield from (StepResult("", number, place, step(one)) for place, one in enumerate(block))

    outcome = collected(plan, begin)
    assert "maximum load 75 to 100 rps; " in outcome.caption
    assert outcome.as_json()["max_load_rps"] == 87.5
    assert outcome.as_json()["max_loads_rps"] == [100.0, 75.0]
    assert outcome.as_json()["search_ended"] is False


def test_end_of_search_is_no_maximum_load():
    top_rps = load_scenario("live-nginx").knee.top_rps
    outcome = measured([("", 0, 0, alone(top_rps)), ("", 0, 1, run_of("frozen", 0.0))])
    assert f"maximum load {top_rps:.0f} rps (end of the search); " in outcome.caption
    assert outcome.as_json()["search_ended"] is True


def test_each_manager_learns_the_maximum_itself():
    scenario = load_scenario("live-nginx").model_copy(update={"duration_seconds": 0.2})
    plan = LivePlan(scenario, ("frozen", "learned-table"), 2, load_profile("responsive"), adapt_seconds=0.3)
    bed, learned, known = SearchedBed(scenario, None), MaxLoad("lc", 1.0), []
    bed.plant.learned = (learned,)

    def follow(*_):
        known.append(learned.missed_rps)
        learned.missed_rps = 100.0 + len(known)

    bed.follow = follow
    with OnTestbed(plan, bed)() as step:
        for manager in ("", "frozen", "learned-table", "frozen"):
            step(manager)
    assert known == [None, None, 101.0, None], "learned-table watched first, and goes on"


class BusyPlant(FakePlant):
    """In each period a command runs, as Heracles' tc does."""

    def wait(self):
        subprocess.run([sys.executable, "-S", "-c", "sum(range(10**7))"], check=True)
        return super().wait()


def test_what_a_manager_runs_is_its_cpu_time():
    scenario = load_scenario("live-nginx").model_copy(update={"duration_seconds": 0.2, "tick_seconds": 0.1})
    plan = LivePlan(scenario, ("frozen",), 1, load_profile("responsive"))
    with OnTestbed(plan, lambda *words: SearchedBed(*words, BusyPlant))() as step:
        step("")
        before = os.times()
        ratio = step("frozen").run.controller_cpu_ratio
        after = os.times()
    assert ratio * (after.elapsed - before.elapsed) > 0.8 * (after.children_user - before.children_user) > 0.0


def test_service_goes_on_from_repeat_to_repeat():
    scenario = load_scenario("live-nginx").model_copy(update={"duration_seconds": 0.2})
    names = ("frozen", "learned-table")
    plan = LivePlan(scenario, names, 2, load_profile("responsive"), adapt_seconds=0.3)
    with OnTestbed(plan, SearchedBed)() as step:
        step("")
        assert step("frozen").remarks == ()
        first, second = step("learned-table"), step("learned-table")
    (told,) = [remark for remark in first.remarks if "before" in remark]
    assert told == "had watched the host for 0.3 s before: QoS 100.0 %"
    assert told in second.remarks
    notes = [one.run.ticks[0].note for one in (first, second)]
    assert all("held here" in note and "nothing" not in note for note in notes), notes
    assert "learned-table had watched the host for 0.3 s before" in plan.described("")
    well = [one.run.guards["growth-rate"]["well_seconds"] for one in (first, second)]
    assert [one.run.ticks[0].index for one in (first, second)] == [3, 3]  # BE comes, and counts, after the start
    assert 0.0 < well[0] < well[1]  # calm that was saved counts in the next run, as in a service that goes on
    assert first.run.header["guards"]["growth-rate"]["well_seconds"] == well[0], "as of the first tick that counts"
