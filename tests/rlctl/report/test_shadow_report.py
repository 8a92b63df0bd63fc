"""A shadow report says what a log can tell, how far, and nothing more; the gate gives every reason."""

import contextlib
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents import catalogue
from rlctl.cli import main
from rlctl.envs.allocation import Limits
from rlctl.envs.sim.loads import from_config
from rlctl.envs.sim.plant import SimPlant
from rlctl.envs.sim.profile import load_profile as load_host
from rlctl.envs.ticklog import encode_line
from rlctl.envs.yaml_edge import configs_folder
from rlctl.log.record import TickLog, header_of
from rlctl.loop.control import Controller
from rlctl.report.shadow_gate import load_gate, read_qos
from rlctl.report.shadow_report import be_gain, mean_over_blocks, share_over_blocks
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield

TICKS = 1500
BUNDLE = str(configs_folder("bundles") / "ppo")

GATE = """\
least_hours: 0.4
load: {from_percent: 20, to_percent: 80, least_minutes_per_band: 2}
most_error_percent: 0.1
most_override_percent: 30
most_drift_percent: 1
least_be_gain_points: 0
"""


def report(capsys, *words):
    code = main(["shadow", "report", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(scope="module")
def simulated_log(tmp_path_factory):
    """25 minutes of a simulated host under a cautious manager."""
    folder = tmp_path_factory.mktemp("simulated")
    load = from_config({"kind": "sinusoid", "low": 0.25, "high": 0.85, "period": 300})
    plant = SimPlant(load_host("two-core-host"), load, TICKS, seed=99)
    policy, shield = catalogue.build("koord-suppress"), Shield(load_profile("responsive"), plant.limits)
    plant.set_weight(policy.weight)
    log = TickLog(folder / "ticks.jsonl")
    log.header = header_of(plant, policy, shield)

    class Recorder:
        def write(self, tick):
            log.write(replace(tick, wall_seconds=1.8e9 + tick.index))

    Controller(plant, policy, shield, Recorder()).run(ticks=TICKS)
    log.close()
    return folder


@pytest.fixture
def gate(tmp_path):
    path = tmp_path / "gate.yaml"
    path.write_text(GATE)
    return path


def reasons(out):
    """Refusals by shadow."""
    found, name = {}, None
    for line in out.splitlines():
        if line.startswith("promote "):
            name, _, verdict = line.removeprefix("promote ").partition(": ")
            found[name] = (verdict, [])
        elif name and line.startswith("  NO  "):
            found[name][1].append(line.removeprefix("  NO  ").partition(":")[0])
    return found


def benched(path, **qos):
    """What `rlctl bench --json` writes, with the QoS of each seed by manager."""
    rows = {name: {"per_seed": {"qos_guarantee_percent": seeds}} for name, seeds in qos.items()}
    path.write_text(json.dumps({"plant": "sim", "scenario": "two-core", "managers": rows}))
    return path


@pytest.mark.slow
def test_good_shadow_is_promoted_bad_ones_refused(capsys, simulated_log, gate, tmp_path):
    qos = {"koord-suppress": [99.0, 99.2], "prm-hybrid-tuned": [98.8, 99.0], "none": [45.0, 46.0], "frozen": [100, 100]}
    words = ("--policy", "prm-hybrid-tuned,none,frozen", "--gate", gate)
    words += ("--bench", benched(tmp_path / "bench.json", **qos))
    code, out, err = report(capsys, simulated_log, *words, "--json", tmp_path / "all.json")
    assert code == 0, out + err
    found = reasons(out)
    assert found["prm-hybrid-tuned"] == ("yes", [])
    assert "section policy:   name: prm-hybrid-tuned\n  then: systemctl reload rlctl\n" in out
    assert found["frozen"] == ("no", ["BE's gain by the log, lower bound"])
    assert [reason[:20] for reason in found["none"][1]] == ["QoS lost in two-core"]
    said = json.loads((tmp_path / "all.json").read_text())
    assert (said["ticks"], said["acting"]) == (TICKS, "koord-suppress")
    assert said["gate"]["frozen"]["promote"] is False
    assert {reason["bound"] for reason in said["gate"]["frozen"]["reasons"]} >= {0.4, 2.0, 30.0}


def test_without_a_benchmark_nobody_is_promoted(capsys, simulated_log, gate, tmp_path):
    words = (simulated_log, "--policy", "greedy-shield", "--gate", gate)
    code, out, _ = report(capsys, *words)
    assert code == 1
    assert (
        "upper bound by --bench FILE of `rlctl bench --managers koord-suppress,greedy-shield --json FILE`: unk" in out
    )
    infinite = benched(tmp_path / "bench.json", none=[math.inf]).read_text()
    for text in ("[]", infinite, infinite.replace("Infinity", "null")):
        (tmp_path / "bench.json").write_text(text)
        code, _, err = report(capsys, *words, "--bench", tmp_path / "bench.json")
        assert (code, err.count("\n")) == (78, 1)
        assert "is not a result of `rlctl bench --json`" in err


@pytest.mark.parametrize(
    ("qos", "said"),
    [
        ({"always": [99.0, 99.0], "ppo": [99.0, 99.0]}, "unknown points (> 0.5)"),
        ({"always": [99.0, 99.0], BUNDLE: [98.6, 98.6]}, "0.4 points (<= 0.5)"),
        ({"always": [99.0, 99.0], BUNDLE: [98.3, 98.9]}, "4.21 points (> 0.5)"),
        ({"always": [99.0], BUNDLE: [98.6]}, "unknown points (> 0.5)"),
    ],
    ids=["another of that label", "as good", "too wide", "one seed"],
)
def test_benchmark_clears_whom_it_measured(capsys, recorded_run, tmp_path, qos, said):
    """One with another policy's weights, or too short to tell, would put the LC under whatever was trained last."""
    words = ("--policy", BUNDLE, "--gate", "--bench", benched(tmp_path / "bench.json", **qos))
    code, out, _ = report(capsys, recorded_run().go(3), *words)
    assert code == 1
    assert f"`rlctl bench --managers always,{BUNDLE} --json FILE`: {said}" in out


def test_live_rounds_pair_the_two(tmp_path):
    rounds = [{"qos_percent": {"a": 99.0, "b": 98.0}, "be_percent": {}}, {"qos_percent": {"a": 98.0}, "be_percent": {}}]
    live = {"plant": "host", "scenario": "live-nginx", "managers": {"a": {}, "b": {}}, "rounds": rounds}
    (tmp_path / "bench.json").write_text(json.dumps({"scenarios": {"live-nginx": live}}))
    assert read_qos(tmp_path / "bench.json") == {"live-nginx": [{"a": 99.0, "b": 98.0}, {"a": 98.0}]}


def test_who_fails_is_refused(capsys, simulated_log, gate, monkeypatch):
    from rlctl.agents.managers.references import GreedyShield

    def fail(self, telemetry):
        raise RuntimeError("no idea\x1b[2J")

    monkeypatch.setattr(GreedyShield, "decide", fail)
    code, out, err = report(capsys, simulated_log, "--policy", "greedy-shield", "--gate", gate)
    assert code == 1
    refused = reasons(out)["greedy-shield"][1]
    assert refused[0] == "errors and late answers"
    assert "greedy-shield failed first with: RuntimeError: no idea?[2J" in out
    assert "\x1b" not in out
    assert err == "rlctl: error: the gate lets none of greedy-shield be promoted\n"


def test_the_gate_that_ships_wants_a_day(capsys, simulated_log):
    assert load_gate().least_hours == 24
    code, out, _ = report(capsys, simulated_log, "--policy", "frozen", "--gate")
    assert code == 1
    assert "NO  watched: 0.417 h (< 24)" in out


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("least_hours", "last_hours", "gate.yaml:1: unknown key 'last_hours'; did you mean 'least_hours'?"),
        ("most_error_percent: 0.1", "most_error_percent: 101", "gate.yaml:3: most_error_percent is 101"),
        (
            "most_drift_percent: 1",
            "most_drift_percent: 1\nsimulator: {needed: true}",
            "'simulator' was removed: compare policies on a profile",
        ),
    ],
)
def test_a_gate_with_a_mistake_is_one_line(capsys, simulated_log, gate, old, new, said):
    gate.write_text(GATE.replace(old, new))
    code, out, err = report(capsys, simulated_log, "--policy", "frozen", "--gate", gate)
    assert (code, out) == (78, "")
    assert said in err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 78, "name a LOG"),
        (("--policy", "frozen"), 78, "name one"),
        (("LOG",), 78, "there is no shadow log"),
        (
            ("LOG", "--shadow", "x"),
            78,
            "name a LOG, or what `rlctl shadow watch` wrote with --shadow FILE: one of them",
        ),
        (("LOG", "--policy", "frozen", "--bench", "x"), 78, "--bench is for the gate; add --gate"),
        (("LOG", "--policy", "heracls"), 78, "did you mean 'heracles'?"),
        (("LOG", "--policy", "frozen,frozen"), 78, "names 'frozen' twice"),
        (("LOG", "--policy", ","), 78, "names none"),
        (("LOG", "--policy", "frozen", "--shadow", "x"), 2, "not allowed with"),
        (("LOG/none", "--policy", "frozen"), 78, "there is no such log"),
        (("LOG", "--policy", "frozen", "--profile", "two-core-host"), 2, "--profile was removed: name the profile in"),
    ],
)
def test_what_cannot_be_is_one_line(capsys, recorded_run, words, code, said):
    folder = recorded_run().go(3)
    got, out, err = report(capsys, *(word.replace("LOG", str(folder)) for word in words))
    assert (got, out) == (code, "")
    assert said in err
    assert err.count("\n") == 1


def test_only_ticks_under_the_last_acting_policy_count(capsys, recorded_run):
    run = recorded_run()
    run.go(10)
    run.log.close()
    other = recorded_run()
    other.policy.name = "heracles"
    other.log.header = header_of(
        other.plant, catalogue.build("heracles"), Shield(load_profile("responsive"), Limits(2))
    )
    code, out, _ = report(capsys, other.go(7), "--policy", "frozen")
    assert code == 0
    assert "7 ticks" in out
    assert "acting heracles" in out
    assert "left out: 10 ticks with another acting policy" in out


# --- estimates ---


def gained(had, used, got, follows=None):
    """BE's gain on two CPUs, by what it could use, used, and could have used in each tick."""
    count = len(used)
    columns = np.zeros((7, count))
    columns[0] = np.arange(count) > 0 if follows is None else follows
    columns[3], columns[5] = used, had
    return be_gain(columns, np.full(count, got), 2, np.arange(count) // 300)


@pytest.mark.parametrize(
    ("had", "used", "got", "points"),
    [
        (1.0, 1.0, 1.5, 25.0),  # held, and given half a CPU more of two
        (1.0, 1.0, 0.5, -25.0),
        (1.0, 0.95, 2.0, 47.5),  # in proportion to what it used
        (1.0, 0.3, 2.0, 0.0),  # not held: it had what it wanted
        (1.0, 0.3, 0.1, -10.0),
        (1.0, 0.3, 0.0, -15.0),  # would have been frozen
        (0.0, 0.0, 0.0, 0.0),
    ],
)
def test_be_s_gain_of_a_tick(had, used, got, points):
    gain = gained([had] * 3, [0.0, used, used], got)
    assert gain.points.mean == pytest.approx(points)
    assert gain.assumed_percent == (100.0 if got > had else 0.0) * (used >= 0.9 * had)


def test_frozen_be_would_take_what_it_takes():
    gain = gained([1.0, 0.0, 0.0], [0.0, 0.5, 0.0], 1.0)
    assert gain.points.mean == pytest.approx(100 * 0.5 / 2 / 2)  # the second of two ticks
    assert gain.assumed_percent == 50.0


def test_gain_is_not_counted_over_gaps():
    assert gained([1.0] * 3, [1.0, 1.0, np.nan], 2.0, follows=[False, False, True]) is None


def test_intervals_do_not_believe_that_ticks_are_independent():
    rng = np.random.default_rng(0)
    level = np.zeros(6000)
    for tick, news in enumerate(rng.normal(size=6000)):
        level[tick] = 0.98 * level[tick - 1] + news
    blocks = np.arange(6000) // 300
    low, high = mean_over_blocks(level, blocks).ci95
    naive = 2 * 1.96 * level.std() / math.sqrt(len(level))
    assert high - low > 4 * naive
    share = share_over_blocks((level > 0.0).astype(float), blocks, 10.0)
    assert share.ci95[1] - share.ci95[0] > 4 * 100 * 2 * 1.96 * 0.5 / math.sqrt(len(level))


def test_share_of_nothing_has_an_upper_bound():
    assert share_over_blocks(np.zeros(600), np.zeros(600, int), 10.0).ci95[1] == pytest.approx(6.0, abs=0.1)
    assert mean_over_blocks(np.ones(300), np.zeros(300, int)).ci95 == (-math.inf, math.inf)


# --- damage ---

WILD = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.floats(width=64) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def whole_logs(simulated_log):
    """The begin of a tick log, and what shadows say of it."""
    from rlctl.log.reader import read_log
    from rlctl.report.shadow_watch import ShadowLog, Shadows

    ticks = (simulated_log / "ticks.jsonl").read_bytes().splitlines(keepends=True)[:30]
    begin, said = simulated_log / "begin.jsonl", simulated_log / "said.jsonl"
    begin.write_bytes(b"".join(ticks))
    shadows, log = Shadows([catalogue.build("feedforward")]), ShadowLog(said)
    for decision in read_log([begin], print):
        log.write(shadows.see(decision))
    log.close()
    shadows.close()
    return ticks, said.read_bytes().splitlines(keepends=True)


def changed(line, draw):
    """A line with one value anywhere in it replaced, and sealed again, as a program with a fault would."""
    said = {key: value for key, value in json.loads(line).items() if key != "crc"}
    place, key = said, draw(st.sampled_from(sorted(said)))
    while isinstance(place[key], dict) and place[key] and draw(st.booleans()):
        place = place[key]
        key = draw(st.sampled_from(sorted(place)))
    if draw(st.booleans()):
        place[key] = draw(WILD)
    else:
        del place[key]
    with contextlib.suppress(ValueError):  # not finite
        return encode_line(said)
    return line


@given(data=st.data())
@pytest.mark.parametrize("which", [0, 1])
def test_a_damaged_log_never_ends_in_a_traceback(whole_logs, tmp_path_factory, which, data):
    lines = list(whole_logs[which])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(lines) - 1))
        match data.draw(st.sampled_from(("changed", "flipped", "removed", "cut", "twice"))):
            case "changed":
                with contextlib.suppress(ValueError):
                    lines[place] = changed(lines[place], data.draw)
            case "flipped":
                raw = bytearray(lines[place] or b" ")
                raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
                lines[place] = bytes(raw)
            case "removed":
                lines[place] = b""
            case "cut":
                lines[place] = lines[place][: data.draw(st.integers(0, 200))]
            case "twice":
                lines.insert(place, lines[place])
    path = Path(tmp_path_factory.getbasetemp()) / f"damaged-{which}.jsonl"
    path.write_bytes(b"".join(lines))
    words = (str(path), "--policy", "feedforward,hipster") if which == 0 else ("--shadow", str(path))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(["shadow", "report", *words, "--gate"])
    assert code in (1, 78), err.getvalue()


def test_tick_log_leads_to_what_was_said(capsys, simulated_log, tmp_path):
    said = tmp_path / "shadow.jsonl"
    said.write_bytes(b"")
    (tmp_path / "ticks.jsonl").write_bytes((simulated_log / "ticks.jsonl").read_bytes())
    code, _, err = report(capsys, tmp_path / "ticks.jsonl")
    assert (code, "damaged" in err) == (1, False)
    assert str(said) in err
