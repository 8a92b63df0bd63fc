"""The tick log: complete, bounded, and never in the way of the loop."""

import errno
import json
import logging
import math
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.allocation import UNLIMITED, Allocation
from rlctl.envs.applications import Placement
from rlctl.envs.telemetry import Missing, Quantile, Telemetry, Value, Why
from rlctl.log.kept import MemoryRecorder, write_ticks
from rlctl.log.reader import LoggedTick, read_log
from rlctl.log.record import Tee, Tick, TickLog, tick_as_json
from rlctl.log.why import Nearest, TickPlace, in_plain_words, shares_in_words
from rlctl.safety.symptoms import Alarm, Sign
from rlctl.safety.verdict import Bound, Reason, Verdict
from tests.doubles.tick_logs import read_ticks

FULL, FROZEN = Allocation(UNLIMITED, 2), Allocation(0.01, 1, frozen=True)


def a_tick(index: int = 0, telemetry: Telemetry | None = None, note: str = "") -> Tick:
    telemetry = telemetry or Telemetry(
        1.5,
        0.010,
        tail_latency_seconds=Quantile(0.02, 0.1, samples=50, window_seconds=1.0),
        cpi=Missing(Why.NOT_SUPPORTED, "no such counter"),
        counters={"page_faults": Value(3.0)},
    )
    bound = Bound("slack-gate", Reason.SLACK_NEGATIVE, FROZEN, "slack -1.0")
    return Tick(index, 1e9, telemetry, FROZEN, FULL, Verdict(FROZEN, FULL, (bound,)), FROZEN, "greedy", note)


def test_tick_tells_all_needed_to_explain():
    said = json.loads(json.dumps(tick_as_json(a_tick()), allow_nan=False))
    assert said["readings"]["tail_latency_seconds"] == {"value": 0.02, "age": 0.1, "samples": 50, "window": 1.0}
    assert said["readings"]["cpi"] == {"missing": "not-supported", "detail": "no such counter", "age": None}
    assert said["counters"]["page_faults"]["value"] == 3.0
    assert said["proposed"] == {"quota_cpus": None, "cpuset_cpus": 2, "frozen": False}
    assert said["applied"]["frozen"] is True
    assert said["bounds"][0]["guard"] == "slack-gate"
    assert said["bounds"][0]["reason"] == "slack-negative"
    assert said["slack_ratio"] == -1.0


SHARES = {"7:encoder": Placement(1, "node1", 0.6), "8:late": None}


def test_shares_of_applications_come_back(tmp_path):
    write_ticks(tmp_path / "ticks.jsonl", [a_tick(), replace(a_tick(1), shares=SHARES)])
    assert ["shares" in said for said in read_ticks(tmp_path / "ticks.jsonl")] == [False, True]
    found = list(read_log([tmp_path / "ticks.jsonl"], pytest.fail))
    assert [one.tick.shares for one in found] == [{}, SHARES]


def test_shares_are_told_in_few_lines_largest_first():
    many = {f"{pid}:app": Placement(0, "all", pid / 100.0) for pid in range(1, 21)} | {"99:late": None}
    lines = list(shares_in_words(replace(a_tick(), shares=many)))
    assert lines[0] == "20:app: 0.20 CPU on all, mode 0"
    assert lines[-2:] == ["and 12 more", "deferred: 99:late"]
    assert len(lines) == 10
    assert list(shares_in_words(a_tick())) == []


any_number = st.floats(allow_nan=True, allow_infinity=True)


@given(any_number, any_number, any_number, st.text())
def test_any_reading_makes_one_line_of_valid_json(time, value, age, note):
    telemetry = Telemetry(time, 0.01, tail_latency_seconds=Value(value, age))
    line = json.dumps(tick_as_json(a_tick(telemetry=telemetry, note=note)), allow_nan=False)
    assert "\n" not in line
    assert json.loads(line)["note"] == note


def test_every_written_tick_is_read_back(tmp_path):
    path = tmp_path / "new" / "ticks.jsonl"
    log = TickLog(path)
    for index in range(5):
        log.write(a_tick(index))
    assert [tick["tick"] for tick in read_ticks(path)] == list(range(5)), "readable while it is being written"
    log.close()


def test_log_that_is_fifo_is_refused(tmp_path):
    os.mkfifo(path := tmp_path / "ticks.jsonl")
    with pytest.raises(OSError, match="is a FIFO: remove it"):
        TickLog(path)


@given(st.integers(0, 400))
def test_crash_in_last_line_costs_that_line_only(cut):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ticks.jsonl"
        write_ticks(path, [a_tick(0), a_tick(1)])
        whole = path.read_bytes()
        path.write_bytes(whole[: max(len(whole) - 1 - cut, len(whole) // 2)])
        log = TickLog(path)
        log.write(a_tick(2))
        log.close()
        read = [tick["tick"] for tick in read_ticks(path)]
        assert read in ([0, 2], [0, 1, 2])


def test_the_log_is_rotated_and_the_oldest_goes(tmp_path):
    path = tmp_path / "ticks.jsonl"
    size = len(json.dumps(tick_as_json(a_tick()))) * 3
    log = TickLog(path, most_bytes=size, keep=2)
    for index in range(30):
        log.write(a_tick(index))
    log.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ticks.jsonl", "ticks.jsonl.1", "ticks.jsonl.2"]
    assert all(p.stat().st_size <= size for p in tmp_path.iterdir())
    kept = [
        tick["tick"]
        for name in ("ticks.jsonl.2", "ticks.jsonl.1", "ticks.jsonl")
        for tick in read_ticks(tmp_path / name)
    ]
    assert kept == list(range(kept[0], 30)), "in order and without a gap"


class FullDisk:
    """A file on a disk that takes `room` bytes more."""

    def __init__(self, path: Path, room: int) -> None:
        self.file = path.open("a+b", buffering=0)
        self.room = room

    def write(self, data: bytes) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = min(self.room, len(data))
        self.room -= taken
        return self.file.write(data[:taken])

    def __getattr__(self, name: str) -> object:
        return getattr(self.file, name)


def test_full_disk_drops_records_tears_nothing(tmp_path, caplog):
    path = tmp_path / "ticks.jsonl"
    log = TickLog(path)
    log.write(a_tick(0))
    log.close()
    log._file = disk = FullDisk(path, room=100)
    with caplog.at_level(logging.WARNING):
        for index in range(1, 4):
            log.write(a_tick(index))
    assert log.dropped == 3
    assert len(caplog.records) == 1
    disk.room = 1 << 20
    log.write(a_tick(4))
    log.close()
    assert [tick["tick"] for tick in read_ticks(path)] == [0, 4]


def test_disk_full_again_is_told_again(tmp_path, caplog):
    log = TickLog(tmp_path / "ticks.jsonl")
    log.close()
    log._file = disk = FullDisk(log.path, room=0)
    with caplog.at_level(logging.WARNING):
        for index, room in enumerate((0, 0, 1 << 20, 0)):
            disk.room = room
            log.write(a_tick(index))
    log.close()
    full = "[Errno 28] No space left on device; records are dropped until it can be written again"
    again = "is written again; 2 records since the start are lost"
    assert caplog.messages == [f"{log.path}: {said}" for said in (full, again, full)]


def test_folder_that_vanished_does_not_stop_loop(tmp_path):
    path = tmp_path / "log" / "ticks.jsonl"
    log = TickLog(path)
    log.write(a_tick(0))
    path.unlink()
    path.parent.rmdir()
    path.parent.touch()
    log.write(a_tick(1))
    assert log.dropped == 1
    path.parent.unlink()
    log.write(a_tick(2))  # which makes the folder again
    log.close()
    assert [tick["tick"] for tick in read_ticks(path)] == [2]


def test_a_log_that_somebody_removed_is_begun_anew(tmp_path):
    log = TickLog(tmp_path / "ticks.jsonl")
    log.header = lambda tick: {"log": 1}
    log.write(a_tick(0))
    log.path.unlink()
    log.write(a_tick(1))
    log.close()
    assert [tick["tick"] for tick in read_ticks(log.path)] == [1]
    assert log.path.read_text().startswith('{"log":1,')


def test_emptied_log_says_again_what_it_is(tmp_path):
    log = TickLog(tmp_path / "ticks.jsonl")
    log.header = lambda tick: {"log": 1}
    log.write(a_tick(0))
    os.truncate(log.path, 0)
    log.write(a_tick(1))
    log.close()
    assert log.path.read_text().startswith('{"log":1,')


def test_two_services_do_not_write_one_log(tmp_path):
    log = TickLog(tmp_path / "ticks.jsonl")
    with pytest.raises(OSError, match="another process writes it"):
        TickLog(log.path)
    log.close()
    TickLog(log.path).close()


def test_kept_files_are_what_is_left(tmp_path):
    path = tmp_path / "ticks.jsonl"
    for number in (1, 2, 3, 10):
        (tmp_path / f"ticks.jsonl.{number}").write_bytes(b"x" * 6000)
    (tmp_path / "ticks.jsonl.old").write_text("somebody's own")
    TickLog(path, most_bytes=4000, keep=2).close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ticks.jsonl", "ticks.jsonl.1", "ticks.jsonl.old"]


def test_record_that_file_cannot_hold_is_dropped(tmp_path):
    log = TickLog(tmp_path / "ticks.jsonl", most_bytes=4000, keep=1)
    log.write(a_tick(0))
    log.write(a_tick(1, note="x" * 5000))
    log.write(a_tick(2))
    log.close()
    assert log.dropped == 1
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) <= 8000


def headers(path):
    return [number for number, line in enumerate(path.read_text().splitlines(), 1) if line.startswith('{"log"')]


def test_header_stands_at_each_start(tmp_path):
    path = tmp_path / "ticks.jsonl"
    for _ in range(2):
        log = TickLog(path, most_bytes=9000)
        log.header = lambda tick: {"log": 1, "before": tick.index}
        log.write(a_tick(0))
        log.write(a_tick(1, note="x" * 10000))
        log.write(a_tick(2))
        log.write(a_tick(3))
        log.renew_header()
        log.write(a_tick(4))
        log.close()
    assert headers(tmp_path / "ticks.jsonl.1")[0] == 1
    assert headers(path)[0] == 1
    assert log.dropped == 1
    damages = []
    assert [tick["tick"] for tick in read_ticks(path, damages.append)][-3:] == [2, 3, 4]
    assert damages == [], "what was never written is no damage"


def test_unspeakable_header_costs_records_and_not_the_loop(tmp_path):
    log = TickLog(tmp_path / "ticks.jsonl")
    log.header = lambda tick: {"log": 1, "guards": math.nan}
    log.write(a_tick(0))
    log.close()
    assert log.dropped == 1


def test_damage_is_reported_with_file_and_line(tmp_path):
    path = tmp_path / "ticks.jsonl"
    write_ticks(path, [a_tick(index) for index in range(3)])
    path.write_bytes(path.read_bytes().replace(b'"tick":1,', b'"tick":7,'))
    damages = []
    assert [tick["tick"] for tick in read_ticks(path, damages.append)] == [0, 2]
    assert str(damages[0]).startswith(f"{path}:2: its checksum does not fit")


def test_unopenable_log_is_refused_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        TickLog(tmp_path / "file" / "ticks.jsonl")


def test_tee_hands_the_same_tick_to_all():
    one, two = MemoryRecorder(), MemoryRecorder()
    tick = a_tick()
    Tee(one, two).write(tick)
    assert one.ticks == two.ticks == [tick]


def test_tick_says_who_acted_and_why():
    plain = tick_as_json(replace(a_tick(), acting="safe", fallback="late answer"))
    assert (plain["acting"], plain["fallback"]) == ("safe", "late answer")


def test_every_reading_of_telemetry_is_in_the_log():
    said = tick_as_json(a_tick())["readings"]
    assert {"tail_latency_seconds", "load_ratio", "cpi", "be_work_rate", "lc_run_delay_ratio"} <= said.keys()
    assert not math.isnan(said["tail_latency_seconds"]["value"])


ALARM = Alarm(Sign.OLDEST, "LC web: 21.5 ms, above 10 ms at two looks", 0.203, 0.004)


def test_alarm_comes_back_where_there_is_one(tmp_path):
    write_ticks(tmp_path / "ticks.jsonl", [a_tick(), replace(a_tick(1), alarm=ALARM)])
    assert ["alarm" in said for said in read_ticks(tmp_path / "ticks.jsonl")] == [False, True]
    found = [one.tick for one in read_log([tmp_path / "ticks.jsonl"], pytest.fail)]
    assert [one.alarm for one in found] == [None, ALARM]
    assert not found[1].false_alarm, "the window missed its target"


def test_violations_price_comes_back_where_a_budget_is(tmp_path):
    path = tmp_path / "ticks.jsonl"
    write_ticks(path, [a_tick(), replace(a_tick(1), price=0.25)])
    assert [one.tick.price for one in read_log([path], pytest.fail)] == [1.0, 0.25]
    damages = []
    write_ticks(path, [replace(a_tick(1), price=1e6)])
    assert list(read_log([path], damages.append)) == []
    assert len(damages) == 1


def test_an_alarm_and_events_are_told_in_words():
    good = Telemetry(1.5, 0.010, tail_latency_seconds=Quantile(0.004, samples=50))
    tick = replace(a_tick(1, good), alarm=ALARM, events=("foreign-write: be: quota",))
    nearest = Nearest(LoggedTick(tick, Path("ticks.jsonl"), 2), None, 0.0)
    lines = list(in_plain_words(nearest, TickPlace()))
    assert (
        "between  oldest-request 0.203 s into the period (LC web: 21.5 ms, above 10 ms at two looks): BE held in 4.0 ms"
        "; false: the target was met all the same"
    ) in lines
    assert "         foreign-write: be: quota" in lines


def test_rein_is_a_word_of_the_log(tmp_path):
    path = tmp_path / "ticks.jsonl"
    telemetry = a_tick().telemetry
    write_ticks(path, [a_tick(), a_tick(1, telemetry.but(rein="disk"))])
    assert [one.tick.telemetry.rein for one in read_log([path], pytest.fail)] == ["cpu", "disk"]
    assert "rein" not in path.read_text().partition("\n")[0], "logs of before have none"
    path.write_text(path.read_text().replace('"disk"', '"tape"'))
    damages = []
    assert len(list(read_log([path], damages.append))) == len(damages) == 1
