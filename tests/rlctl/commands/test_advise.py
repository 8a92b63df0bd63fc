"""Advice: what a log says of a host is found again, and what it does not say stays wide."""

import argparse
import json
import math
import pickle
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rlctl.agents import catalogue
from rlctl.agents.policy_runner import PolicyRunner
from rlctl.cli import main
from rlctl.commands import advise
from rlctl.commands.advise import Asked, answer, question_on
from rlctl.config.serve import load_config
from rlctl.envs.allocation import Allocation
from rlctl.envs.sim.loads import from_config
from rlctl.envs.sim.plant import SimPlant
from rlctl.envs.sim.profile import load_profile as load_host
from rlctl.envs.telemetry import Missing, Quantile, Telemetry, Value, Why, number, worst_of
from rlctl.envs.ticklog import decode_line, encode_line
from rlctl.envs.workload import Weight
from rlctl.log.reader import limits_in, read_log
from rlctl.log.record import TickLog, header_of
from rlctl.loop.control import Controller
from rlctl.report.advice import _worst
from rlctl.report.advice_page import _supports, parts_on
from rlctl.report.page import html_page, markdown
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield

TICKS = 400
LOAD = {"kind": "sinusoid", "low": 0.2, "high": 0.8, "period": 100}
BEGAN = 1.8e9


def watch(folder, profile, policy):
    """A log of a simulated host under a policy, with BE at the least weight."""
    host = load_host(profile) if isinstance(profile, str) else profile
    key = host.model_dump_json(), policy
    if key not in LOGS:
        LOGS[key] = watched(host, policy)
    (folder / "ticks.jsonl").write_bytes(LOGS[key])
    return folder


LOGS: dict[tuple[str, str], bytes] = {}
"""Each log that a test had already: a host and a policy give the same one each time."""


def watched(host, policy):
    """The log's bytes."""
    plant, shielded = SimPlant(host, from_config(LOAD), TICKS, seed=3), policy != "none"
    decider = catalogue.build(policy)
    shield = Shield(load_profile("responsive"), plant.limits) if shielded else None
    with tempfile.TemporaryDirectory() as folder:
        log = TickLog(Path(folder) / "ticks.jsonl")
        log.header = header_of(plant, decider, shield)

        class Recorder:
            def write(self, tick):
                log.write(replace(tick, wall_seconds=BEGAN + tick.index))

        plant.set_weight(Weight.MINIMUM)
        Controller(plant, decider, shield, Recorder()).run(ticks=TICKS)
        log.close()
        return (Path(folder) / "ticks.jsonl").read_bytes()


def would_have(profile, policy):
    """QoS and BE percent of a policy on that very host, behind the shield as in a service."""
    plant = SimPlant(load_host(profile), from_config(LOAD), TICKS, seed=3)
    plant.set_weight(Weight.MINIMUM)
    decider = catalogue.build(policy)
    shield = Shield(load_profile("responsive"), plant.limits)
    runner = PolicyRunner(decider, shield, plant.limits, 1.0)
    plant.apply(runner.start())
    held, work = [], []
    for _ in range(TICKS):
        plant.wait()
        held.append(not plant.batch.truth().missed[0])
        work.append(float(plant.batch.window.be_work_ratio[0]))
        plant.apply(runner.decide(plant.read(), plant.current).verdict.allocation)
    return 100.0 * float(np.mean(held)), 100.0 * float(np.mean(work))


def question(log, policies=("frozen",)):
    return question_on(log, Asked(policies, (), None, 0.95, 1.0))


def asked(log, policies):
    return answer(question(log, policies))


@pytest.fixture(autouse=True)
def few(monkeypatch, request):
    """Few hosts are drawn: most tests are of what is said, the slow one is of how true it is."""
    if request.node.originalname == "test_what_be_could_have_had_is_within_interval":
        return
    monkeypatch.setattr("rlctl.envs.sim.identify.DRAWN", 60)
    monkeypatch.setattr("rlctl.envs.sim.identify.KEPT", 20)


@pytest.fixture
def long_logs(monkeypatch):
    """400 ticks are a long log, of which 8 pieces of 20 ticks are lived through."""
    monkeypatch.setattr("rlctl.report.advice.MOST_TICKS", 160)
    monkeypatch.setattr("rlctl.report.advice.PIECES", 8)
    monkeypatch.setattr("rlctl.report.advice.SETTLE_TICKS", 5)


PIECE_STARTS = [0, 54, 108, 162, 217, 271, 325, 380]


def shortened(log, to, ticks=29):
    """The first ticks of a log; 29 say too little."""
    lines = (log / "ticks.jsonl").read_bytes().splitlines(keepends=True)
    to.mkdir()
    (to / "ticks.jsonl").write_bytes(b"".join(lines[: ticks + 1]))
    return to


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["two-core-nginx", "capped-link"])
@pytest.mark.parametrize("policy", ["none", "frozen"])
def test_what_be_could_have_had_is_within_interval(tmp_path, profile, policy):
    log = watch(tmp_path, profile, policy)
    advice = asked(log, ("weights", "prm-hybrid-tuned"))
    assert advice.within_twice_percent > 75.0
    for option in advice.options:
        _, be = would_have(profile, option.policy)
        assert option.be_percent.low * 0.85 - 1.0 <= be <= option.be_percent.high * 1.15 + 1.0, option


def apart():
    """A host with the LC on one CPU and BE on another."""
    shared = load_host("two-core-nginx")
    own = shared.be.model_copy(update={"own_cpus": 1.0, "shared_cpus": 0.0, "host_cpus": 1.0})
    return shared.model_copy(update={"be": own})


def test_share_of_learned_maximum_is_the_offered(tmp_path, monkeypatch):
    """`max_load_rps: auto` says .4 of a maximum of which it soon thinks twice as much."""
    log = watch(tmp_path, "two-core-nginx", "frozen")
    before = question(log).watched
    monkeypatch.setattr("rlctl.report.advice.read_log", learning)
    after = question(log).watched
    ratio = after.load_ratio / before.load_ratio
    assert ratio[:100] == pytest.approx(ratio[-1])


def learning(files, damaged):
    """A log's ticks as if the maximum had been taken for half of it in the first hundred."""
    for logged in read_log(files, damaged):
        tick, load = logged.tick, logged.tick.telemetry.load_ratio
        if tick.index < 100 and isinstance(load, Value):
            tick = replace(tick, telemetry=tick.telemetry.but(load_ratio=Value(2.0 * load.value)))
        yield replace(logged, tick=tick)


def test_windows_of_failing_requests_count_as_missed(tmp_path, monkeypatch):
    log = watch(tmp_path, "two-core-nginx", "frozen")
    monkeypatch.setattr("rlctl.report.advice.read_log", failing)
    found = question(log).watched
    known = np.isfinite(found.missed)
    assert found.missed[known][1::2].all()


def failing(files, damaged):
    """A log's ticks as if most of the LC's requests had failed in every second one."""
    for logged in read_log(files, damaged):
        tick = logged.tick
        if tick.index % 2:
            gone = Missing(Why.FAILING)
            tick = replace(tick, telemetry=tick.telemetry.but(tail_latency_seconds=gone))
        yield replace(logged, tick=tick)


def test_idle_windows_say_nothing_of_a_target(tmp_path):
    """Nights would have "no target below 0.00 ms" as what the log supports."""
    log = watch(tmp_path, "two-core-nginx", "frozen")
    watched = question(log).watched
    nights = np.where(np.arange(len(watched.missed)) % 50, math.nan, watched.latency_ratio)
    assert next(_supports(replace(watched, latency_ratio=nights))).startswith(
        "target, error budget: BE had its minimum"
    )
    endless = np.where(np.arange(len(watched.missed)) % 50, watched.latency_ratio, math.inf)
    assert next(_supports(replace(watched, latency_ratio=endless))).endswith("only a lower limit is known")


def test_level_on_the_link_holds_no_cpus(tmp_path, monkeypatch):
    """BE at a tenth of the link has its CPUs beside the LC: taken for a quota, the host would look worse than it is."""
    log = watch(tmp_path, "two-core-nginx", "frozen")
    monkeypatch.setattr("rlctl.report.advice.read_log", on_its_link)
    found = question(log).watched
    assert (found.record.quota_cpus[: TICKS // 2] >= found.record.limits.cpus).all()
    assert not found.alone[: TICKS // 2].any()
    assert found.alone[TICKS // 2 :].all(), "the least holds on the CPUs"


def on_its_link(files, damaged):
    """A log's ticks as if a tenth of the link, and then the least, had held BE."""
    for logged in read_log(files, damaged):
        limits = limits_in(logged.header)
        level = Allocation(0.1 * limits.cpus, limits.cpus) if logged.tick.index < TICKS // 2 else limits.minimum
        tick = replace(logged.tick, before=level, telemetry=logged.tick.telemetry.but(rein="link"))
        yield replace(logged, tick=tick)


def test_worst_off_of_several_lcs_is_told(tmp_path, monkeypatch):
    """Their targets are no change of settings, tick by tick."""
    log = watch(tmp_path, "two-core-nginx", "frozen")
    alone = question(log).watched.load_ratio
    monkeypatch.setattr("rlctl.report.advice.read_log", taking_turns)
    found = question(log).watched
    assert found.load_ratio == pytest.approx(alone, rel=0.05), "requests of one say nothing of the other's load"
    assert len(found.load_ratio) == TICKS
    assert found.earlier_ticks == 0
    assert found.record.target_seconds == 0.010
    assert found.record.tail_seconds[1::2] == pytest.approx(0.0095), "in shares of its own target"


def taking_turns(files, damaged):
    """A log's ticks as if a second LC, with twice the target, were the worst off in every second one."""
    for logged in read_log(files, damaged):
        own = logged.tick.telemetry
        load, tail = number(own.load_ratio) or 0.0, Quantile(0.019 * (logged.tick.index % 2), samples=500)
        second = own.but(target_seconds=0.020, tail_latency_seconds=tail, load_ratio=Value(0.5 * load))
        second = second.but(counters={"offered_rps": Value(25e3 * load)})
        both = worst_of({"web": own, "cache": second})
        yield replace(logged, tick=replace(logged.tick, telemetry=both))


@pytest.mark.slow
def test_log_that_begins_unread_has_advice(tmp_path, monkeypatch):
    log = watch(tmp_path, "two-core-nginx", "frozen")
    monkeypatch.setattr("rlctl.report.advice.read_log", unread_at_first)
    found = asked(log, ("frozen",)).watched
    assert (len(found.load_ratio), found.earlier_ticks, found.record.target_seconds) == (TICKS - 1, 0, 0.010)


def unread_at_first(files, damaged):
    """A log's ticks as if the first could not be read: nobody knew of a target then."""
    ticks = read_log(files, damaged)
    first = next(ticks)
    yield replace(first, tick=replace(first.tick, telemetry=Telemetry(1.0, 0.0)))
    yield from ticks


@pytest.mark.slow
def test_which_cpus_are_bes_own_is_in_log(tmp_path):
    """They share none, though BE has no more CPUs than the LC."""
    watch(tmp_path, apart(), "frozen")
    assert asked(tmp_path, ("frozen",)).watched.record.own_cpus == 1.0


def test_page_says_what_was_and_could_be(tmp_path, capsys):
    log = watch(tmp_path, "two-core-nginx", "frozen")
    code = main(
        [
            "advise",
            str(log),
            "--policies",
            "frozen,weights",
            "--html",
            str(tmp_path / "a.html"),
            "--json",
            str(tmp_path / "a.json"),
        ]
    )
    out = capsys.readouterr().out
    assert code == 0
    assert "under frozen; BE may have 1 CPU, the LC has 1; target p95 of 10 ms" in out
    assert "BE never ran beside the LC in this log" in out
    assert "best with at most 1 % of windows missed: " in out
    assert "no target below" in out
    assert "maximum load of the LC: " in out
    assert "lived through: all of the log" in out
    plain = json.loads((tmp_path / "a.json").read_text())
    assert plain["max_load_rps"]["borne_out"] == ("maximum load of the LC: at least" in out)
    assert plain["lived_through"]["percent"] == 100.0
    assert [one["policy"] for one in plain["options"]] == ["frozen", "weights"]
    assert plain["options"][0]["be_percent"]["mean"] == pytest.approx(0.0, abs=1.0)
    page = (tmp_path / "a.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "http" not in page.replace("<!doctype html>", ""), "needs nothing but itself"
    assert (page.count("<h2"), page.count("<h3")) == (1, 3)
    for said in (out, page):
        assert "BE CPU-hours a day" in said
    for option in plain["options"]:
        day = {name: pytest.approx(24.0 * cpus) for name, cpus in option["be_cpus"].items()}
        assert option["be_cpu_hours_a_day"] == day
    assert 1.0 < plain["options"][1]["be_cpu_hours_a_day"]["mean"] < 24.0


def test_long_logs_page_says_what_was_lived(tmp_path, capsys, long_logs):
    log = watch(tmp_path, "two-core-nginx", "frozen")
    files = [tmp_path / "a.html", tmp_path / "a.json"]
    words = ["--policies", "weights", "--html", str(files[0]), "--json", str(files[1])]
    assert main(["advise", str(log), *words]) == 0
    for said in (capsys.readouterr().out, files[0].read_text()):
        assert "lived through: 0.04 of 0.11 h (40.0 %), in 8 pieces evenly spread over the log, with loads of " in said
        assert "only the 40.0 % of the log that were lived through were looked at" in said
    lived = json.loads(files[1].read_text())["lived_through"]
    assert (lived["ticks"], lived["counted_ticks"], lived["percent"]) == (160, 160 - 7 * 5, 40.0)
    assert lived["pieces"] == [{"begins_seconds": BEGAN + start, "ticks": 20} for start in PIECE_STARTS]


def test_stretch_that_went_wrong_lies_in_one_piece(tmp_path, long_logs):
    log = watch(tmp_path, "two-core-nginx", "frozen")
    seen = question(log).watched
    missed = np.zeros(400)
    missed[[70, 71, 72, 73, 113, 114]] = 1.0  # the last four ticks of the second piece, the first two of the third
    worst = _worst(seen, missed[seen.lived[seen.counted]])
    found = [(one.begins_seconds - BEGAN, one.seconds, one.missed_percent) for one in worst]
    assert found == [(59.0, 15.0, pytest.approx(400 / 15)), (113.0, 15.0, pytest.approx(200 / 15))]


def test_stretch_ends_where_log_has_gap(tmp_path):
    log = watch(tmp_path, "two-core-nginx", "frozen")
    seen = question(log).watched
    later = np.where(np.arange(400) >= 30, 1000.0, 0.0)
    missed = np.zeros(400)
    missed[27:32] = 1.0
    worst = _worst(replace(seen, wall_seconds=seen.wall_seconds + later), missed)
    assert [(one.begins_seconds - BEGAN, one.seconds) for one in worst] == [(0.0, 30.0), (1030.0, 60.0)]


@pytest.mark.slow
def test_ticks_of_another_host_are_told(tmp_path):
    lines = []
    for name, host in (("apart", apart()), ("shared", "two-core-nginx")):
        (tmp_path / name).mkdir()
        watch(tmp_path / name, host, "frozen")
        lines.append((tmp_path / name / "ticks.jsonl").read_bytes().splitlines(keepends=True))
    (tmp_path / "both.jsonl").write_bytes(b"".join(lines[0][:50] + lines[1]))
    advice = asked(tmp_path / "both.jsonl", ("frozen",))
    assert advice.watched.earlier_ticks == 49
    assert "49 earlier ticks are of another host" in markdown(parts_on("both", advice))


@pytest.mark.slow
def test_several_shields_have_rows_of_their_own(tmp_path, capsys):
    log = watch(tmp_path, "two-core-nginx", "frozen")
    words = ["advise", str(log), "--policies", "frozen,weights", "--json"]
    assert main([*words, "--shield", "responsive,knee"]) == 0
    plain = json.loads(capsys.readouterr().out)
    rows = [(one["shield"], one["policy"]) for one in plain["options"]]
    assert rows == [(shield, policy) for shield in ("responsive", "knee") for policy in ("frozen", "weights")]
    assert (plain["best"]["shield"], plain["best"]["policy"]) in rows
    assert main([*words, "--shield", "knee,knee"]) == 78
    assert "twice" in capsys.readouterr().err


@pytest.mark.slow
def test_several_hosts_are_added_up(tmp_path, capsys):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        watch(tmp_path / name, "two-core-nginx", "frozen")
    logs = [str(tmp_path / name) for name in ("one", "two")]
    assert main(["advise", *logs, "--policies", "weights", "--allowed", "99.9", "--workers", "1", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert [one["log"] for one in plain["hosts"]] == logs
    days = [one["options"][0]["be_cpu_hours_a_day"] for one in plain["hosts"]]
    summed = {name: pytest.approx(sum(day[name] for day in days)) for name in ("mean", "low", "high")}
    assert plain["total"] == {"hosts": 2, "unanswered": 0, "be_cpu_hours_a_day": summed}
    assert main(["advise", *logs, "--policies", "weights", "--workers", "2"]) == 0
    assert "hosts: 2; CPU-hours of BE a day: " in capsys.readouterr().out


def test_a_bad_log_costs_the_others_nothing(tmp_path, capsys):
    (tmp_path / "good").mkdir()
    good = shortened(watch(tmp_path / "good", "two-core-nginx", "frozen"), tmp_path / "brief", 80)
    short, gone = shortened(good, tmp_path / "short"), tmp_path / "gone"
    files = ["--html", str(tmp_path / "a.html"), "--json", str(tmp_path / "a.json")]
    logs = [str(short), str(good), str(gone)]
    assert main(["advise", *logs, "--policies", "frozen", "--workers", "1", *files]) == 1
    out, err = capsys.readouterr()
    assert f"no advice on 2 of 3 logs: {short}: 29 ticks have load" in err
    plain = json.loads((tmp_path / "a.json").read_text())
    assert [("error" in one, one["log"]) for one in plain["hosts"]] == [(True, str(short)), (False, str(good)),
                                                                       (True, str(gone))]  # fmt: skip
    assert plain["total"]["unanswered"] == 2
    for said in (out, (tmp_path / "a.html").read_text()):
        assert f"{short}: 29 ticks have load" in said
        assert f"{gone}: there is no such log" in said
        assert "hosts: 1; " in said
        assert "What BE could have had" in said


@pytest.mark.slow
def test_one_hosts_novelty_costs_others_nothing(tmp_path, capsys, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        watch(tmp_path / name, "two-core-nginx", "frozen")
    logs = [str(tmp_path / name) for name in ("one", "two")]
    raised = iter([FloatingPointError("overflow"), None])

    def answered(_):
        if error := next(raised):
            raise error
        return asked(tmp_path / "two", ("frozen",))

    monkeypatch.setattr("rlctl.commands.advise.answer", answered)
    assert main(["advise", *logs, "--policies", "frozen", "--workers", "1"]) == 1
    out = capsys.readouterr().out
    assert f"{logs[0]}: FloatingPointError: overflow" in out
    assert "hosts: 1; " in out


@pytest.mark.slow
def test_a_worker_needs_no_file_of_ours(tmp_path):
    """A node of a cluster has neither the log nor, at a relative path, anything else."""
    log = watch(tmp_path, "two-core-nginx", "frozen")
    shipped = pickle.dumps(question(log))
    (log / "ticks.jsonl").unlink()
    assert answer(pickle.loads(shipped)).options[0].policy == "frozen"


@pytest.mark.ray
@pytest.mark.slow
def test_on_ray_logs_and_shields_are_read_here(tmp_path, capsys, monkeypatch, ray_cluster):
    (tmp_path / "good").mkdir()
    good = watch(tmp_path / "good", "two-core-nginx", "frozen")
    shortened(good, tmp_path / "short")
    mine = load_profile("responsive").model_copy(update={"name": "mine"}).model_dump_json()
    (tmp_path / "mine.yaml").write_text(mine)  # JSON is YAML
    monkeypatch.chdir(tmp_path)  # the nodes were started elsewhere
    words = ["--policies", "frozen", "--shield", "./mine.yaml", "--ray", ray_cluster.address, "--json"]
    assert main(["advise", "good", "short", *words]) == 1
    out, err = capsys.readouterr()
    plain = json.loads(out)
    assert plain["hosts"][0]["options"][0]["shield"] == "mine"
    assert "60 are needed" in plain["hosts"][1]["error"]
    assert "no advice on 1 of 2 logs: short: " in err


def test_relative_bundle_is_none_that_nodes_have(capsys, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.chdir(Path(__file__).parents[3] / "configs")
    assert main(["advise", "a", "b", "--policies", "bundles/ppo", "--ray", "10.0.0.1:6379"]) == 78
    assert "give the path at which every node has it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 78, "name --lc and --be, a LOG"),
        (["nowhere"], 78, "nowhere"),
        (["--policies", "nobody"], 78, "nobody"),
        (["--quantile", "100"], 2, "below 100"),
        (["--allowed", "250"], 2, "below 100"),
        (["--html", "FILE", "--json", "FILE"], 78, "is what --html writes; name another file for --json"),
        (["--shield", "nothing"], 78, "nothing"),
        (["--html", "/proc/version/a.html"], 78, "is not a folder"),
        (["--workers", "2"], 78, "--workers is for several logs"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, capsys, words, code, said):
    if words and words[0].startswith("--"):
        watch(tmp_path, "two-core-nginx", "frozen")
        words = [str(tmp_path), *(word.replace("FILE", str(tmp_path / "file")) for word in words)]
    assert main(["advise", *words]) == code
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


def test_a_log_that_is_too_short_is_told(tmp_path, capsys):
    log = watch(tmp_path, "two-core-nginx", "frozen")
    lines = (log / "ticks.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "short.jsonl").write_bytes(b"".join(lines[:30]))
    assert main(["advise", str(tmp_path / "short.jsonl")]) == 78
    assert "60 are needed" in capsys.readouterr().err
    (tmp_path / "bare.jsonl").write_bytes(b"".join(lines[1:]))
    assert main(["advise", str(tmp_path / "bare.jsonl")]) == 1
    assert "says what host it is of" in capsys.readouterr().err


def test_text_of_a_log_is_escaped(tmp_path):
    log = shortened(watch(tmp_path, "two-core-nginx", "frozen"), tmp_path / "brief", 80)
    advice = asked(log, ("frozen",))
    page = parts_on("<script>", advice)
    assert "<script>" not in html_page("advice", page)
    assert "<script>" in markdown(page)


@pytest.mark.slow
def test_misses_its_hosts_lack_are_told(tmp_path):
    log = watch(tmp_path, "two-core-nginx", "frozen")
    advice = asked(log, ("frozen",))
    line = "the LC alone missed 10.0 % of windows in this log, and at least "
    assert line not in markdown(parts_on("log", advice))
    missed = np.where(np.arange(TICKS) % 10, advice.watched.missed, 1.0)
    assert line in markdown(parts_on("log", replace(advice, watched=replace(advice.watched, missed=missed))))


def test_of_several_lcs_the_strictest_counts(serve_yaml):
    path = serve_yaml()
    latency = "latency: {kind: jsonl, path: /nowhere/requests}"
    web = f"{{name: web, slo: {{target_milliseconds: 20}}, workload: {{kind: cgroup, path: /web}}, {latency}}}"
    slo = "slo: {target_milliseconds: 5, quantile_percent: 99, error_budget_percent: 0.1}"
    cache = f"{{name: cache, {slo}, workload: {{kind: cgroup, path: /cache}}, {latency}}}"
    path.write_text(f"lc:\n  - {web}\n  - {cache}\nbe:\n" + path.read_text().partition("be:\n")[2])
    given = {"policies": "frozen", "log": [Path("x")], "config": path}
    unasked = dict.fromkeys(("shield", "quantile", "allowed", "own_cpus", "lc", "be"))
    _, found = advise._parse_request(argparse.Namespace(**given, **unasked))
    assert (found.allowed_percent, found.quantile_ratio) == (0.1, 0.99)


@pytest.fixture
def two_names(serve_yaml, monkeypatch, tmp_path):
    """Two names that are found, and where their log is."""
    config = load_config(serve_yaml(new=f"log: {{directory: {tmp_path / 'log'}}}\n"))
    monkeypatch.setattr(advise.TwoNames, "find", lambda *_: SimpleNamespace(config=config))
    (tmp_path / "log").mkdir()
    return config, ["advise", "--lc", "web", "--be", "batch"]


def test_names_without_a_log_say_what_to_run(two_names, capsys):
    assert main(two_names[1]) == 78
    assert "run `rlctl serve --lc web --be batch --target auto`" in capsys.readouterr().err


def test_a_log_of_other_names_is_refused(two_names, tmp_path, capsys):
    config, typed = two_names
    (log,) = watch(tmp_path / "log", "two-core-nginx", "frozen").iterdir()
    asked = Asked(("frozen",), (), None, 0.95, 1.0, workloads=config.named_workloads)
    assert question_on(log, asked).watched.workloads is None, "an older log does not say whose it is"
    lines = log.read_bytes().splitlines(keepends=True)
    header = decode_line(lines[0])[0] | {"workloads": {"lc": {"lc": {"kind": "cgroup", "path": "/other"}}, "be": []}}
    log.write_bytes(b"".join([encode_line(header), *lines[1:]]))
    assert main(typed) == 1
    assert "is of another LC or BE" in capsys.readouterr().err


def test_one_name_alone_is_refused(capsys):
    assert main(["advise", "--lc", "web"]) == 78
    assert "--lc and --be together" in capsys.readouterr().err


def test_a_proposed_target_is_named_so(tmp_path):
    log = shortened(watch(tmp_path, "two-core-nginx", "frozen"), tmp_path / "brief", 80)
    advice = asked(log, ("frozen",))
    proposed = replace(advice, watched=replace(advice.watched, proposed=True))
    assert "10 ms, auto (proposed)" in markdown(parts_on("log", proposed))
