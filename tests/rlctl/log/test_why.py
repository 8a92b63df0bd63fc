"""`rlctl why`: the decision that somebody means, found and told whole, whatever the log went through."""

import contextlib
import json
import time
from dataclasses import replace
from datetime import datetime

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from rlctl.cli import main
from rlctl.config.serve import LogSection
from rlctl.envs.errors import printable
from rlctl.log.why import TickPlace, parse_moment
from tests.examples import examples

BEGAN = 1_800_000_000.0
NOW = datetime(2026, 11, 21, 12, 0, 0).timestamp()


def why(capsys, folder, *words):
    code = main(["why", *words, "--log", str(folder)])
    out, err = capsys.readouterr()
    return code, out, err


def first(capsys, folder, *words):
    code, out, err = why(capsys, folder, *words)
    assert (code, err) == (0, "")
    return out.splitlines()[0]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", TickPlace()),
        ("11:59:30", TickPlace(NOW - 30.0)),
        ("11:59", TickPlace(NOW - 60.0)),
        ("12:00:01", TickPlace(NOW + 1.0 - 86400.0)),
        ("11:59:59.500", TickPlace(NOW - 0.5)),
        ("2026-11-21T11:59:00", TickPlace(NOW - 60.0)),
        ("2026-11-21 11:59", TickPlace(NOW - 60.0)),
        ("1970-01-01T00:01:00Z", TickPlace(60.0)),
        ("-90s", TickPlace(NOW - 90.0)),
        ("-1.5m", TickPlace(NOW - 90.0)),
        ("-2h", TickPlace(NOW - 7200.0)),
        ("-1d", TickPlace(NOW - 86400.0)),
        ("tick 1234", TickPlace(index=1234)),
        ("#0", TickPlace(index=0)),
    ],
)
def test_times_as_people_write_them(text, wanted):
    assert parse_moment(text, NOW) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("01:30", "2026-03-29T00:30Z"),
        ("03:30", "2026-03-29T01:30Z"),
        ("12:30", "2026-03-28T11:30Z"),  # later than now: yesterday, in winter time
    ],
)
def test_summer_time_begins_and_times_are_the_clocks(monkeypatch, text, wanted):
    noon = datetime.fromisoformat("2026-03-29T10:00Z").timestamp()
    with monkeypatch.context() as there:
        there.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0")  # Europe/Berlin
        time.tzset()
        found = parse_moment(text, noon)
    time.tzset()
    assert found == TickPlace(datetime.fromisoformat(wanted).timestamp())


@given(st.text(max_size=30) | st.from_regex(r"-?[0-9:T. -]{1,20}[smhd]?"))
def test_any_other_text_is_one_clear_error(text):
    with contextlib.suppress(ValueError):
        assert isinstance(parse_moment(text, NOW), TickPlace)


def test_a_time_that_is_none_is_told(capsys, recorded_run):
    code, _, err = why(capsys, recorded_run().go(3), "yesterday")
    assert code == 2
    assert err.startswith("rlctl: error: 'yesterday' is not a time")


def test_one_decision_tells_what_came_of_what(capsys, recorded_run):
    folder = recorded_run().go(12)
    code, out, _ = why(capsys, folder, "tick", "5")
    assert code == 0
    lines = {line[:9].strip(): line[9:] for line in out.splitlines() if line[0] != " "}
    assert out.splitlines()[0].startswith("tick 5 at 2027-")
    assert out.splitlines()[0].endswith("ticks.jsonl:7")
    assert lines["acted"] == "always"
    assert lines["seen"].startswith("slack ")
    assert " ms of 500 requests in 1 s, 0.00 s old" in out
    assert "cpi: not-configured" in out
    assert lines["asked"] == "unlimited on 2 CPUs (as ever)"
    assert lines["verdict"].endswith(": the shield tightened policy always: BE may grow only step by step")
    assert "  guard growth-rate (growth-rate) allows " in out
    assert lines["written"].endswith("read back the same")
    assert lines["effect"] == "1.0 s later"
    assert "         be_cpus " in out
    assert "shield responsive (" in lines["under"]


def test_a_failed_write_and_a_fallback_are_told(capsys, recorded_run):
    run = recorded_run()
    write = run.log.write
    trouble = {"error": "cpu.max: Permission denied", "acting": "prm-hybrid-tuned", "fallback": "late answer"}
    run.log.write = lambda tick: write(replace(tick, **trouble))
    _, out, _ = why(capsys, run.go(1))
    assert "acted    prm-hybrid-tuned, not policy always: late answer" in out
    assert "written  failed: cpu.max: Permission denied" in out
    assert "effect   not known: this is the last tick of the log" in out


def test_nearest_tick_is_found_in_rotated_files(capsys, recorded_run):
    folder = recorded_run(rotate_bytes=30_000).go(60)
    assert len(list(folder.iterdir())) > 2
    assert first(capsys, folder).startswith("tick 59 at ")
    assert "(the last)" in first(capsys, folder)
    for index in range(0, 60, 7):
        at = datetime.fromtimestamp(BEGAN + index + 0.3).isoformat()
        assert first(capsys, folder, at).startswith(f"tick {index} at ")
        assert "(0.3 s before the time asked for)" in first(capsys, folder, at)
        assert first(capsys, folder, f"#{index}").startswith(f"tick {index} at ")
        _, out, _ = why(capsys, folder, f"#{index}")
        assert "1.0 s later" in out, "across files too"
    assert "(41 ticks before the one asked for, which is not recorded)" in first(capsys, folder, "tick", "100")
    assert first(capsys, folder, "1999-01-01").startswith("tick 0 at ")


def test_number_that_two_runs_have_means_later_one(capsys, recorded_run):
    recorded_run().go(5)
    folder = recorded_run().go(3)
    assert first(capsys, folder, "tick", "1").endswith("ticks.jsonl:9")
    _, out, _ = why(capsys, folder, "tick", "4")
    assert "not known: the run ended with this tick" in out


def test_time_ago_is_argument_and_no_option(capsys, recorded_run):
    assert first(capsys, recorded_run().go(3), "-90s").startswith("tick 0 at ")


def test_json_has_tick_its_header_and_next(capsys, recorded_run):
    _, out, _ = why(capsys, recorded_run().go(4), "tick", "2", "--json")
    said = json.loads(out)
    assert (said["tick"]["tick"], said["next"]["tick"], said["line"]) == (2, 3, 4)
    assert said["header"]["limits"]["cpus"] == 2


def test_nothing_to_explain_is_told(capsys, tmp_path):
    code, _, err = why(capsys, tmp_path)
    assert (code, "holds no ticks.jsonl" in err) == (78, True)
    (tmp_path / "ticks.jsonl").write_text("")
    code, _, err = why(capsys, tmp_path)
    assert (code, "no tick is recorded here" in err) == (1, True)


@pytest.mark.parametrize("command", ["why", "top"])
def test_without_default_log_naming_one_is_told(capsys, monkeypatch, tmp_path, command):
    monkeypatch.setattr("rlctl.commands.log.LogSection", lambda: LogSection(directory=tmp_path / "absent"))
    code = main([command])
    assert (code, "absent: there is no log" in (err := capsys.readouterr().err)) == (78, True)
    assert "has `rlctl serve` run?" in err


def test_the_configuration_names_the_log(capsys, recorded_run, serve_yaml):
    folder = recorded_run().go(2)
    assert main(["why", "--config", str(serve_yaml(new=f"log: {{directory: {folder}}}\n"))]) == 0
    assert capsys.readouterr().out.startswith("tick 1 at ")


def test_damage_is_told_with_file_and_line(capsys, recorded_run):
    folder = recorded_run().go(4)
    log = folder / "ticks.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"tick":2,', b'"tick":3,'))
    code, out, err = why(capsys, folder, "tick", "1")
    assert code == 0
    assert err.startswith(f"rlctl: damaged: {log}:4: ")
    assert "at tick 3 (1 between are not recorded)" in out


def test_text_of_the_log_cannot_steer_the_terminal():
    assert printable("\x1b[2Jgone\ud800\n") == "?[2Jgone??"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("1" * 5000),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@pytest.mark.slow
@examples(20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_log_with_any_damage_gives_no_traceback(capsys, recorded_run, tmp_path, data):
    folder = tmp_path / "log"
    if not folder.exists():
        recorded_run().go(4)
        (tmp_path / "whole").write_bytes((folder / "ticks.jsonl").read_bytes())
    lines = (tmp_path / "whole").read_bytes().splitlines()
    number = data.draw(st.integers(0, len(lines) - 1))
    if data.draw(st.booleans()):
        lines[number] = data.draw(st.binary(max_size=60))
    else:  # sound JSON that no tick is
        said = [{k: v for k, v in json.loads(line).items() if k != "crc"} for line in lines]
        spot = said[number]
        while isinstance(inner := spot[key := data.draw(st.sampled_from(sorted(spot)))], dict) and inner:
            if data.draw(st.booleans()):
                break
            spot = inner
        spot[key] = data.draw(values)
        lines = [json.dumps(one).encode() for one in said]
    (folder / "ticks.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    for words in (["why"], ["why", "tick", "2", "--json"], ["top", "--once"], ["top", "--once", "--json"]):
        assert main([*words, "--log", str(folder)]) in (0, 1)
    assert main(["replay", str(folder)]) in (0, 1, 78)
    assert main(["replay", str(folder), "--shield", "heracles", "--json"]) in (0, 1)
    capsys.readouterr()
