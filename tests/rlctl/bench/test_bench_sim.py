"""A benchmark in the simulator: the same numbers however it is divided, common random numbers, the truth as judge."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest

from rlctl.bench.participants import no_idle_class
from rlctl.bench.scenarios import load_scenario
from rlctl.bench.score import SimOutcome
from rlctl.bench.sim_plan import SimPlan, record_model, run_sim
from rlctl.bench.workforce import workforce
from rlctl.cli import main
from rlctl.envs.run_metrics import METRICS, Windows, per_run
from rlctl.envs.sim.seeds import SeedKind, kind_of
from rlctl.envs.workload import Weight
from rlctl.envs.yaml_edge import configs_folder
from rlctl.safety.profile import load_profile
from tests.waiting import PATIENCE_SECONDS


def plan(*managers, scenario="noisy", seeds=3, seconds=40.0, **changes):
    one = load_scenario(scenario).model_copy(update={"duration_seconds": seconds, **changes})
    return SimPlan(one, one.host(), managers, seeds, load_profile("responsive").scale_time(one.time_scale))


def same(one, other):
    assert one.managers.keys() == other.managers.keys()
    for name in one.managers:
        for metric in METRICS:
            assert np.array_equal(one.managers[name][metric], other.managers[name][metric]), (name, metric)
        assert np.array_equal(one.traces[name].be_work_ratio, other.traces[name].be_work_ratio)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["noisy", "two-core"])
def test_numbers_do_not_depend_on_division(scenario):
    chosen = plan("prm-hybrid-tuned", "greedy-shield", "oracle-model", scenario=scenario, seconds=40.0)
    whole = run_sim(chosen)
    same(whole, run_sim(chosen, chunk=1))
    with workforce(2) as workers:
        same(whole, run_sim(chosen, workers, chunk=2))


def assert_it_ends(words, number, told):
    """A Python with a pool of two, at a signal: in order, at once, and with nothing left."""
    with told.open("w") as file:
        process = subprocess.Popen([sys.executable, *words], stdout=file, stderr=file, process_group=0)
    while len(begun := psutil.Process(process.pid).children()) < 3:  # multiprocessing's own, and the two
        assert process.poll() is None, told.read_text()
        time.sleep(0.05)
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)  # Ctrl-C goes to all
    assert process.wait(PATIENCE_SECONDS) == 128 + number, "the work would take an hour"
    _, left = psutil.wait_procs(begun, timeout=PATIENCE_SECONDS)
    assert not left
    assert "Traceback" not in told.read_text()
    assert "resource_tracker" not in told.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ended_early_it_leaves_no_process(number, tmp_path):
    words = ["-m", "rlctl", "bench", "--managers", "parties", "--seeds", "2000", "--jobs", "2"]
    assert_it_ends(words, number, tmp_path / "told")


@pytest.mark.slow
def test_pool_ends_in_order_by_itself(tmp_path):
    code = "import time; from rlctl.bench.workforce import workforce\nwith workforce(2) as workers: "
    code += "workers.map(time.sleep, [3600.0] * 2)"
    assert_it_ends(["-c", code], signal.SIGTERM, tmp_path / "told")


def test_every_manager_meets_the_same_host_and_load():
    found = run_sim(plan("frozen", "none", "oracle"))
    load = [found.traces[name].load_ratio for name in ("frozen", "none", "oracle")]
    assert np.array_equal(load[0], load[1])
    assert np.array_equal(load[0], load[2])
    qos = {name: values["qos_guarantee_percent"] for name, values in found.managers.items()}
    assert np.all(qos["frozen"] >= qos["none"])
    assert np.all(qos["oracle"] >= qos["frozen"])
    assert found.scores["frozen"].be_throughput_percent.mean < 1.0


@pytest.mark.slow
def test_a_host_teaches_before_the_windows_that_count():
    cold = plan("frozen", "learned-table", scenario="capped-link", seconds=30.0)
    warm = run_sim(replace(cold, adapt_seconds=60.0))
    assert warm.ticks == len(warm.traces["frozen"].load_ratio) == 30
    said = "capped-link: had learned for 60 s before: QoS "
    assert [any(one.startswith(said) for one in warm.remarks[name]) for name in ("learned-table", "frozen")] == [
        True,
        False,
    ]
    missed = {name: 100.0 - one.scores["learned-table"].qos_guarantee_percent.mean for name, one in
              (("cold", run_sim(cold)), ("warm", warm))}  # fmt: skip
    assert missed["warm"] < missed["cold"]


def test_bound_behind_guards_tells_their_leavings():
    """Without it a policy looks poor where the shield decides: at the upper loads of `thesis` no policy may run BE."""
    found = run_sim(plan("oracle-model", "oracle-shielded", scenario="thesis", seconds=60.0))
    bare, ruled = (found.managers[name] for name in ("oracle-model", "oracle-shielded"))
    assert ruled["be_throughput_percent"].mean() < bare["be_throughput_percent"].mean()
    assert ruled["shield_override_percent"].mean() > 0.0
    assert bare["shield_override_percent"].max() == 0.0


def test_what_is_reported_comes_from_evaluation_seeds():
    tasks = plan("frozen", seeds=5).tasks(chunk=2)
    assert [len(task.seeds) for task in tasks] == [2, 2, 1]
    assert {kind_of(seed) for task in tasks for seed in task.seeds} == {SeedKind.EVALUATION}


def test_weights_and_none_are_what_their_names_say():
    one = plan("none", "weights", "prm-hybrid", scenario="thesis")
    assert [one.weight(name) for name in one.managers] == [Weight.EQUAL, Weight.MINIMUM, Weight.MINIMUM]
    other = plan("none", "weights", "prm-hybrid", scenario="two-core")
    assert [other.weight(name) for name in other.managers] == [Weight.EQUAL, Weight.MINIMUM, Weight.EQUAL]


def test_bad_sensors_change_not_the_judging():
    silent = plan("none", constants={"missing_ratio": 0.9, "delay_ticks": 5})
    plain = plan("none", constants={"missing_ratio": 0.0, "delay_ticks": 0})
    same(run_sim(silent), run_sim(plain))


@pytest.mark.slow
def test_prm_model_is_recorded_on_lc_alone():
    pytest.importorskip("sklearn")
    chosen = plan("prm-thesis", scenario="thesis", seconds=240.0, seeds=2)
    model = record_model(chosen)
    assert model.lc_cpus == 17
    assert any("cpi" in one.upper for one in model.bins)
    same(run_sim(chosen), run_sim(replace(chosen, threshold_model=model)))


@pytest.mark.parametrize("missed", [0, 1, 7, 40])
def test_qos_interval_stays_within_0_and_100(missed):
    windows = Windows.none(40, 4)
    windows.latency_ratio[:missed, 0] = 2.0
    found = SimOutcome("s", "", "", {"x": per_run(windows, 1.0)}, {}, 40.0).score("x")
    for one in (found.qos_guarantee_percent, found.qos_15s_percent):
        for low, high in (one.ci95, one.ci99):
            assert 0.0 <= low <= one.mean <= high <= 100.0
            assert high - low > 0.5


def test_result_says_how_to_run_again(capsys, tmp_path):
    path = tmp_path / "out" / "result.json"
    arguments = ["--managers", "frozen,weights", "--seeds", "2", "--duration", "30", "--jobs", "1"]
    assert main(["bench", *arguments, "--json", str(path)]) == 0
    assert capsys.readouterr().out.startswith("| manager")
    found = json.loads(path.read_text())
    assert (found["schema"], found["plant"], found["scenario"], found["seeds"]) == (1, "sim", "thesis", 2)
    assert (found["duration_seconds"], found["target_milliseconds"]) == (30.0, 10.0)
    assert {"profile_digest", "scenario_digest", "shield_digest", "rlctl"} <= found.keys()
    weights = found["managers"]["weights"]
    assert weights["samples"] == 60
    for metric in METRICS:
        assert len(weights["per_seed"][metric]) == 2
        assert {"mean", "ci95", "ci99"} == weights[metric].keys()


def test_json_on_stdout_is_nothing_but_json(capsys):
    assert main(["bench", "--managers", "frozen", "--seeds", "1", "--duration", "20", "--jobs", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["managers"]["frozen"]["samples"] == 20


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--managers", "heracels"], 78, "did you mean 'heracles'?"),
        (["--managers", ","], 78, "names none"),
        (["--managers", "frozen,frozen"], 78, "twice"),
        (["--managers", "htb"], 78, "only where there is a link"),
        (["--scenario", "live-nginx", "--managers", "frozen,htb"], 78, "only where there is a link"),
        (["--scenario", "live-disk", "--managers", "htb"], 78, "only where there is a link"),
        (["--scenario", "live-network", "--managers", "htb,io-max"], 78, "io-max: only where there is a disk"),
        (["--scenario", "live-network", "--managers", "htb,io-max@2"], 78, "io-max@2: only where there is a disk"),
        (["--scenario", "live-ngnix"], 78, "live-nginx"),
        (["--scenario", "thesys"], 78, "did you mean 'thesis'?"),
        (["--plant", "host", "--scenario", "thesis"], 78, "--plant sim"),
        (["--plant", "sim", "--scenario", "live-nginx"], 78, "--plant host"),
        (["--scenario", "thesis,live-nginx"], 78, "live-nginx is for --plant host, not sim"),
        (["--scenario", ","], 78, "names nothing"),
        (["--plant", "host", "--seeds", "3"], 78, "--repeats"),
        (["--plant", "host", "--managers", "oracle"], 78, "simulator only"),
        (["--repeats", "3"], 78, "--seeds"),
        (["--duration", "1"], 78, "two ticks"),
        (["--shield", "none"], 78, "none"),
        (["--plant", "sim", "--be-weight", "idle"], 78, "--be-weight idle: the simulated hosts know no idle class"),
        (["--be-weight", "huge"], 2, "be-weight"),
        (["--source", "tcp"], 78, "--source is the live host's"),
        (["--seeds", "0"], 2, "positive"),
        (["--repeats", "0"], 2, "positive"),
        (["--jobs", "many"], 2, "--jobs"),
        (["--time-scale", "x"], 2, "time-scale"),
    ],
)
def test_bad_arguments_are_one_line_before_anything_starts(capsys, arguments, code, said):
    assert main(["bench", "--dry-run", *arguments]) == code
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1, told


def test_dry_run_says_what_it_would_do(capsys):
    assert main(["bench", "--dry-run", "--scenario", "all", "--managers", "all"]) == 0
    out, told = capsys.readouterr()
    assert out == ""
    for name in ("thesis", "diurnal", "bursty", "flash-crowd", "noisy", "two-core", "oracle-model"):
        assert name in told


def test_others_may_be_named_beside_all(capsys):
    assert main(["bench", "--dry-run", "--managers", "ppo-bare,all,ppo"]) == 0
    told = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("managers "))
    assert told.count(" ppo,") == told.count("ppo-bare") == told.count("oracle-model") == 1, told


def test_several_scenarios_may_be_named(capsys):
    assert (
        main(["bench", "--dry-run", "--scenario", "capped-link,capped-disk,capped-link", "--managers", "frozen"]) == 0
    )
    told = capsys.readouterr().err
    assert told.count("capped-link:") == told.count("capped-disk:") == 1, told


BRIEF = ["bench", "--seeds", "1", "--duration", "20", "--jobs", "1"]


def without_sklearn(monkeypatch):
    monkeypatch.setattr("rlctl.bench.participants.find_spec", lambda name: None)


@pytest.mark.parametrize("plant", ["sim", "host"])
def test_all_managers_leave_missing_libraries_out(plant, capsys, monkeypatch):
    without_sklearn(monkeypatch)
    assert main(["bench", "--plant", plant, "--dry-run"]) == 0
    lines = capsys.readouterr().err.split("\n")
    assert lines[0].startswith("left out prm-eris, prm-thesis: scikit-learn")
    assert "scripts/install cli,baselines" in lines[0]
    assert "prm-latency" in "".join(lines[1:])
    assert "prm-eris" not in "".join(lines[1:])


@pytest.mark.parametrize(("release", "told"), [("6.18.0-rc1", ""), ("5.15.0", ""), ("5.4.0-1", "this is 5.4.0-1")])
def test_the_idle_class_came_with_a_kernel(release, told):
    reason = no_idle_class(live=True, release=release)
    assert told in reason
    assert bool(reason) == bool(told)


def test_two_scenarios_of_one_name_are_refused(tmp_path, capsys):
    copy = tmp_path / "mine.yaml"
    copy.write_text((configs_folder("scenarios") / "noisy.yaml").read_text())
    assert main(["bench", "--scenario", f"noisy,{copy}", "--managers", "frozen"]) == 78
    assert "two scenarios have the name noisy" in capsys.readouterr().err


def test_early_end_shows_and_writes_what_was_done(tmp_path, capsys, monkeypatch):
    def once(plan, *rest):
        monkeypatch.setattr("rlctl.commands.bench_runs.run_sim", interrupted)
        return run_sim(plan, *rest)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("rlctl.commands.bench_runs.run_sim", once)
    asked = ["bench", "--scenario", "noisy,bursty", "--managers", "frozen", "--seeds", "2", "--duration", "30"]
    report = tmp_path / "report"
    assert main([*asked, "--jobs", "1", "--json", "--report", str(report)]) == 130
    assert json.loads(capsys.readouterr().out)["scenario"] == "noisy"
    assert "--scenario noisy,bursty" in (report / "report.md").read_text()


def test_single_seeds_interval_is_not_narrower():
    one, two = (run_sim(plan("none", seeds=seeds)).scores["none"].qos_guarantee_percent for seeds in (1, 2))
    assert one.ci95[1] - one.ci95[0] > two.ci95[1] - two.ci95[0]


def test_the_caption_says_at_which_weight_each_ran():
    assert "BE weight minimum (none: equal); " in plan("none", "frozen", scenario="thesis").caption


def test_cpu_idle_is_a_live_row_only(capsys):
    assert main(["bench", "--plant", "sim", "--dry-run"]) == 0
    lines = capsys.readouterr().err
    assert "left out cpu-idle: the simulated hosts know no idle class" in lines
    assert main(["bench", "--plant", "host", "--managers", "weights,cpu-idle,frozen", "--dry-run"]) == 0
    assert "BE weight equal (weights: minimum, cpu-idle: idle)" in capsys.readouterr().err


@pytest.mark.parametrize("plant", ["sim", "host"])
def test_named_manager_that_cannot_run_is_error(plant, capsys, monkeypatch):
    without_sklearn(monkeypatch)
    assert main(["bench", "--plant", plant, "--managers", "prm-eris,none", "--dry-run"]) == 78
    assert "pip install 'rlctl[baselines]', or in a checkout scripts/install cli,baselines" in capsys.readouterr().err


def test_plan_says_weights_of_references(capsys):
    assert main(["bench", "--managers", "none,weights,frozen", "--dry-run"]) == 0
    assert "BE weight minimum (weights: minimum, none: equal);" in capsys.readouterr().err
    assert main(["bench", "--managers", "frozen", "--dry-run"]) == 0
    assert "BE weight minimum;" in capsys.readouterr().err


def test_the_help_names_what_all_scenarios_are(capsys):
    main(["bench", "--help"])
    words = "".join(capsys.readouterr().out.split())
    assert "all:thesis,diurnal,bursty,flash-crowd,noisy,two-coreinthesimulator" in words


@pytest.mark.parametrize("plant", ["sim", "host"])
@pytest.mark.parametrize("option", ["--report", "--json"])
def test_unwritable_place_is_told_before_the_run(plant, option, capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="figures need rlctl[cli]")
    (tmp_path / "file").write_text("")
    arguments = ["bench", "--plant", plant, "--managers", "frozen", option, str(tmp_path / "file" / "out")]
    for more in ([], ["--dry-run"]):
        assert main([*arguments, *more]) == 78
        error = capsys.readouterr().err
        assert "file: is not a folder; name another" in error
        assert error.count("\n") == 1


@pytest.mark.slow
def test_a_reader_who_has_left_costs_no_result(tmp_path):
    """`rlctl bench ... | less`, and `q` before the end."""
    ours, theirs = os.pipe()
    os.close(ours)
    words = [*BRIEF, "--managers", "frozen", "--json", str(tmp_path / "out.json")]
    done = subprocess.run([sys.executable, "-m", "rlctl", *words], stdout=theirs, stderr=subprocess.PIPE, check=False)
    os.close(theirs)
    assert done.returncode == 141
    assert json.loads((tmp_path / "out.json").read_text())["managers"].keys() == {"frozen"}


def test_unwritable_report_costs_no_table(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("rlctl.commands.bench_runs.write_json", full)
    assert main([*BRIEF, "--managers", "frozen", "--json", str(tmp_path / "out.json")]) == 75
    assert "| frozen" in capsys.readouterr().out


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_needs_more_cpus_is_left_out(capsys, monkeypatch):
    monkeypatch.setattr("rlctl.envs.host.topology.read_list", lambda _: frozenset({0, 1}))
    assert main(["bench", "--plant", "host", "--scenario", "all", "--managers", "frozen", "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert "left out live-memory-16: lc.cpus" in said or "left out live-memory-16: be.cpus" in said
    assert "live-nginx: " in said
    assert main(["bench", "--scenario", "live-memory-16", "--managers", "frozen", "--dry-run"]) == 78


def test_folder_for_json_is_told(capsys, tmp_path):
    assert main([*BRIEF, "--managers", "frozen", "--json", str(tmp_path)]) == 78
    assert "is a folder; name a file" in capsys.readouterr().err
    assert main([*BRIEF, "--managers", "frozen", "--json", "/dev/null"]) == 78
    assert "/dev/null: is not a regular file; name another for --json" in capsys.readouterr().err
    assert main([*BRIEF, "--managers", "frozen", "--json", str(tmp_path / "new" / "out.json"), "--dry-run"]) == 0
    assert not (tmp_path / "new").exists()


def test_unwritable_folder_is_a_missing_permission(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("rlctl.commands.outputs.os.access", lambda *_: False)
    assert main([*BRIEF, "--managers", "frozen", "--json", str(tmp_path / "out.json")]) == 77
    assert "may not be written" in capsys.readouterr().err


def test_reports_folder_is_no_place_for_result(capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="figures need rlctl[cli]")
    words = ["--report", str(tmp_path / "out"), "--json", str(tmp_path / "out/result.json")]
    assert main([*BRIEF, "--managers", "frozen", *words]) == 78
    assert "is what --report writes" in capsys.readouterr().err


def test_columns_and_report_are_told_after_run(capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="figures need rlctl[cli]")
    assert main([*BRIEF, "--managers", "frozen", "--report", str(tmp_path / "out")]) == 0
    told = capsys.readouterr()
    assert "decide ms: p99 of the controller's own" in told.out
    assert f"report: {tmp_path / 'out' / 'index.html'}\n" in told.err
    assert (tmp_path / "out" / "index.html").is_file()


@pytest.mark.slow
def test_load_beyond_the_fit_is_told(capsys, tmp_path):
    far = tmp_path / "far.yaml"
    load = "load: {kind: sinusoid, low: 0.01, high: 1.5, period: 30}"
    far.write_text(f"name: far\ndescription: far\nplant: sim\nprofile: two-core-host\nduration_seconds: 60\n{load}\n")
    assert main(["bench", "--scenario", str(far), "--managers", "frozen", "--seeds", "1"]) == 0
    said = capsys.readouterr().err
    assert "warning: far: the load falls to" in said
    assert "warning: far: the load rises to" in said
    assert main(["bench", "--scenario", "two-core", "--managers", "frozen", "--seeds", "1", "--duration", "60"]) == 0
    assert "warning" not in capsys.readouterr().err
