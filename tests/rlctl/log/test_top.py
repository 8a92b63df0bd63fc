"""`rlctl top`: what is shown is the log's end, through rotations, on any kind of screen."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from rlctl.cli import main
from rlctl.envs.telemetry import Value
from rlctl.log.record import TickLog
from rlctl.log.tail import LogTail
from rlctl.log.top import PLAIN_BLOCKS, Mood, ScreenRow, is_stale, rows, sparkline
from tests.waiting import PATIENCE_SECONDS

BEGAN = 1_800_000_000.0


def top(capsys, folder, *words):
    code = main(["top", "--log", str(folder), "--once", *words])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def follow():
    """Opens the end of a log, and closes it again."""
    with contextlib.ExitStack() as stack:
        yield lambda folder: stack.enter_context(contextlib.closing(LogTail(folder)))


def numbers(tail):
    return [tick.index for tick in tail.ticks]


def test_new_ticks_are_followed_through_rotations(recorded_run, follow):
    run = recorded_run(rotate_bytes=30_000)
    tail = follow(run.go(3))
    for _ in range(20):
        run.go(4)
        tail.poll()
    assert numbers(tail) == list(range(83))
    assert len(list(run.folder.iterdir())) > 3
    late = numbers(follow(run.folder))
    assert late == numbers(tail)[-len(late) :]


def test_half_line_is_waited_for_damage_is_counted(recorded_run, follow):
    run = recorded_run()
    tail = follow(run.go(2))
    log = run.folder / "ticks.jsonl"
    last = log.read_bytes().splitlines(keepends=True)[-1]
    for part in (last[:50], last[50:], b"nonsense\n"):
        with log.open("ab") as file:
            file.write(part)
        tail.poll()
    assert (numbers(tail), tail.damaged) == ([0, 1, 1], 1)


def test_lost_or_cut_log_is_followed_again(recorded_run, follow):
    run = recorded_run()
    tail = follow(run.go(2))
    log = run.folder / "ticks.jsonl"
    whole = log.read_bytes()
    log.unlink()
    tail.poll()
    log.write_bytes(whole)
    assert [one.unbroken for one in tail.poll()] == [False, True], "what came between is not known"
    os.truncate(log, 0)
    log.write_bytes(whole[: len(whole) // 2])
    tail.poll()
    assert numbers(tail)[:4] == [0, 1, 0, 1]


def test_screen_names_slack_load_allocation_verdict_and_actor(recorded_run, follow):
    run = recorded_run()
    ticks = list(follow(run.go(10)).ticks)
    shown = {row.word: row.text for row in rows(ticks, BEGAN + 9.5) if row.word}
    assert shown["tick"].endswith("0.5 s ago")
    assert "target 10 ms; latency " in shown["slack"]
    assert shown["load"].startswith("30.0 % of the maximum")
    assert "; used " in shown["BE"]
    assert shown["decision"].startswith("the shield tightened policy always: ")
    lines = [row.text for row in rows(ticks, BEGAN + 9.5)]
    assert any(line.startswith("asked for unlimited on 2 CPUs (as ever), allowed ") for line in lines)
    assert shown["acting"] == "always"
    fallen = [*ticks[:-1], replace(ticks[-1], acting="safe", fallback="NaN")]
    row = next(row for row in rows(fallen, BEGAN) if row.word == "acting")
    assert (row.text, row.mood) == ("safe, not policy always: NaN", Mood.WARN)


def test_changes_are_those_of_the_service_log(capsys, recorded_run):
    _, out, _ = top(capsys, recorded_run().go(10))
    changes = out.partition("\nchanges   ")[2]
    assert re.match(r"\d\d:\d\d:\d\d BE (thawed|raised|reduced|frozen)", changes)


def test_what_the_lc_waits_for_and_what_helps(recorded_run, follow):
    last = list(follow(recorded_run().go(3)).ticks)[-1]
    waiting = last.telemetry.but(lc_pressure_ratio=Value(0.04), counters={"lc_io_pressure_ratio": Value(0.6)})
    shown = rows([replace(last, telemetry=waiting)], BEGAN)
    place = next(number for number, row in enumerate(shown) if row.word == "LC waits")
    assert shown[place].text == "for its disk 60%, a CPU 4%"
    assert shown[place].mood is Mood.WARN
    assert "`be.reins`" in shown[place + 1].text
    calm = rows([replace(last, telemetry=last.telemetry.but(lc_pressure_ratio=Value(0.001)))], BEGAN)
    assert next(row for row in calm if row.word == "LC waits").text == "for next to nothing"


@pytest.mark.parametrize(("age", "stale"), [(0.0, False), (2.9, False), (3.1, True), (-5.0, False)])
def test_a_tick_that_is_overdue_is_stale(recorded_run, age, stale, follow):
    ticks = list(follow(recorded_run().go(10)).ticks)
    assert is_stale(ticks, BEGAN + 9 + age) is stale
    assert ("STALE" in rows(ticks, BEGAN + 9 + age)[0].text) is stale


def test_no_row_is_wider_than_the_screen(recorded_run, follow):
    ticks = list(follow(recorded_run().go(40)).ticks)
    for columns in (20, 80, 200):
        lines = [line.plain() for row in rows(ticks, BEGAN, columns) for line in row.wrap(columns)]
        assert max(map(len, lines)) <= columns
    assert all(len(row.plain()) <= 80 for row in rows(ticks, BEGAN, 80)), "80 columns break nothing usual"
    assert len(rows(ticks, BEGAN)) < 24


def test_long_text_goes_on_in_the_next_line():
    """Once the explanation ended in three dots, before its reason."""
    long = ScreenRow("asked", "0.5 CPU on 1 CPU (slack and load allow growth)", Mood.WARN)
    assert [line.plain() for line in long.wrap(30)] == [
        "asked     0.5 CPU on 1 CPU",
        "          (slack and load",
        "          allow growth)",
    ]
    assert {line.mood for line in long.wrap(30)} == {Mood.WARN}
    assert [line.text for line in ScreenRow("log", "/a/path").wrap(3)] == list("/a/path"), "however narrow it is"


def test_sparkline_ends_at_its_most_and_keeps_peaks():
    assert sparkline([0.0, 1.0, 2.0, 9.0, None], 2.0, 5, PLAIN_BLOCKS) == "_+@@ "
    assert sparkline([0.0] * 99 + [2.0], 2.0, 10, PLAIN_BLOCKS) == "_" * 9 + "@"
    assert sparkline([], 2.0, 10) == ""
    assert sparkline([1.0, float("nan")], 0.0, 10) == "  "


def test_one_look_as_text_and_as_json(capsys, recorded_run):
    folder = recorded_run().go(5)
    code, out, _ = top(capsys, folder)
    assert code == 0
    assert out.startswith("log       ")
    assert "\x1b" not in out
    said = json.loads(top(capsys, folder, "--json")[1])
    assert (said["ticks"], said["last"]["tick"], said["damaged"]) == (5, 4, 0)


def test_no_log_and_an_empty_one(capsys, tmp_path):
    code, _, err = top(capsys, tmp_path)
    assert (code, "there is no tick log" in err) == (78, True)
    TickLog(tmp_path / "ticks.jsonl").close()
    code, out, _ = top(capsys, tmp_path)
    assert (code, "no tick is recorded yet" in out) == (0, True)


def test_a_terminal_that_knows_ascii_only_gets_ascii(recorded_run):
    environ = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    words = [sys.executable, "-m", "rlctl", "top", "--once", "--log", str(recorded_run().go(5))]
    done = subprocess.run(words, env=environ, capture_output=True, check=True)
    assert done.stdout.isascii()


@pytest.mark.slow
@pytest.mark.parametrize("colours", [True, False])
def test_in_terminal_it_is_live_and_restores_it(recorded_run, colours):
    pytest.importorskip("rich")
    run = recorded_run()
    environ = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | {"TERM": "xterm-256color"}
    environ |= {} if colours else {"NO_COLOR": "1"}
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "rlctl", "top", "--interval", "0.05", "--log", str(run.go(5))]
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, env=environ)
    os.close(theirs)
    seen = read_until(ours, b"4 at 2027-")
    run.go(1)
    seen += read_until(ours, b"5 at 2027-")
    process.send_signal(signal.SIGTERM)
    seen += read_until(ours, b"\x1b[?1049l")
    assert process.wait(PATIENCE_SECONDS) == 0
    os.close(ours)
    assert b"\x1b[?1049h" in seen
    assert b"\x1b[?25h" in seen
    assert (b"\x1b[33m" in seen or b"\x1b[31m" in seen or b"\x1b[1;31m" in seen) is colours


def read_until(terminal, wanted):
    """All that comes up to and with some bytes; pytest's own time limit ends what never comes."""
    seen, until = b"", time.monotonic() + PATIENCE_SECONDS
    while wanted not in seen and time.monotonic() < until:
        seen += os.read(terminal, 4096)
    assert wanted in seen
    return seen
