"""Following a file as tail -F does."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.host.latency import growing_file
from rlctl.envs.host.latency.growing_file import GrowingFile
from rlctl.envs.telemetry import Missing, Why


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "access.log"
    path.write_bytes(b"old\n")
    return path


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_begins_at_the_end_and_gives_whole_lines(log: Path) -> None:
    follower = GrowingFile(log)
    assert follower.read() == b""
    append(log, b"one\ntw")
    assert follower.read() == b"one\n"
    append(log, b"o\n")
    assert follower.read() == b"two\n"
    follower.close()
    follower.close()


def test_begun_line_is_not_a_whole_one(log: Path) -> None:
    append(log, b"0.0")
    follower = GrowingFile(log)
    append(log, b"05\nnext\n")
    assert follower.read() == b"next\n"
    follower.close()


def test_rotation_loses_nothing(log: Path, tmp_path: Path) -> None:
    follower = GrowingFile(log)
    append(log, b"last of the old\nunfinished")
    log.rename(tmp_path / "access.log.1")
    log.write_bytes(b"first of the new\n")
    assert follower.read() == b"last of the old\nunfinished\nfirst of the new\n"
    append(log, b"second\n")
    assert follower.read() == b"second\n"
    follower.close()


def test_old_file_is_read_until_reopen(log: Path, tmp_path: Path) -> None:
    follower = GrowingFile(log)
    log.rename(tmp_path / "access.log.1")
    append(tmp_path / "access.log.1", b"still here\n")
    assert follower.read() == b"still here\n"
    silent = follower.read()
    assert isinstance(silent, Missing)
    log.write_bytes(b"new\n")
    assert follower.read() == b"new\n"
    follower.close()


def test_old_log_moved_in_says_nothing(log: Path, tmp_path: Path) -> None:
    follower, old = GrowingFile(log), tmp_path / "old.log"
    append(log, b"last of the present one\n")
    old.write_bytes(b"of last year\nbegun last year")
    os.utime(old, (1e9, 1e9))
    old.rename(log)
    assert follower.read() == b"last of the present one\n"
    append(log, b" and ended now\nnew\n")
    assert follower.read() == b"new\n"
    follower.close()


def test_touched_log_has_nothing_new(log: Path) -> None:
    follower = GrowingFile(log)
    append(log, b"a line\n")
    assert follower.read() == b"a line\n"
    os.utime(log, ns=(0, 1))
    assert follower.read() == b""
    assert not follower.gap
    follower.close()


@pytest.mark.parametrize("new", [b"new\n", b"so many lines that the file is as long as ever\n" * 9])
def test_truncation_in_place_starts_over_and_is_told(log: Path, new: bytes) -> None:
    """Lines that were added before it, and that nobody has read, are not to be had: such a tick has no load."""
    follower = GrowingFile(log)
    append(log, b"a long line before the truncation\n")
    follower.read()
    assert not follower.gap
    log.write_bytes(new)
    assert follower.read() == new
    assert "truncated" in follower.gap
    append(log, b"next\n")
    assert follower.read() == b"next\n"
    assert not follower.gap
    follower.close()


@pytest.mark.parametrize("looks", [False, True])
def test_two_renames_between_two_readings_are_told(log: Path, tmp_path: Path, looks: bool) -> None:
    follower = GrowingFile(log)
    append(log, b"one\n")
    log.rename(tmp_path / "access.log.1")
    log.write_bytes(b"two\n")
    early = follower.early(1 << 16) if looks else b""
    log.rename(tmp_path / "access.log.2")
    log.write_bytes(b"three\n")
    found = follower.read()
    assert early + found == (b"one\ntwo\nthree\n" if looks else b"one\nthree\n")  # type: ignore[operator]
    assert bool(follower.gap) is not looks
    follower.close()


def test_a_rotation_that_was_seen_is_no_gap(log: Path, tmp_path: Path) -> None:
    follower = GrowingFile(log)
    for name in ("access.log.2", "access.log.1"):
        append(log, b"one\n")
        log.rename(tmp_path / name)
        log.write_bytes(b"two\n")
        assert follower.read() == b"one\ntwo\n"
        assert not follower.gap
    follower.close()


def test_lines_belong_to_when_size_was_taken(log: Path) -> None:
    """A controller that stands still within a look may not say until when the lines are, so it looks again."""
    times = [1.0, 1.0, 1.0, 5.0, 5.0, 5.001]
    follower = GrowingFile(log, clock=lambda: times.pop(0) if len(times) > 1 else times[0])
    assert follower.read() == b""
    assert follower.read_seconds == pytest.approx(5.001)
    assert not follower.gap
    follower.close()


def test_later_file_is_read_from_its_start(tmp_path: Path) -> None:
    follower = GrowingFile(tmp_path / "late.log")
    missing = follower.read()
    assert isinstance(missing, Missing)
    assert "late.log" in missing.detail
    (tmp_path / "late.log").write_bytes(b"here\n")
    assert follower.read() == b"here\n"
    follower.close()


def test_a_burst_is_cut_to_its_newest_part(log: Path) -> None:
    follower = GrowingFile(log)
    append(log, b"x" * 99 + b"\n")
    line = b"y" * 99 + b"\n"
    append(log, line * (growing_file.MOST_BYTES // 100 + 50))
    data = follower.read()
    assert isinstance(data, bytes)
    assert 0 < len(data) <= growing_file.MOST_BYTES
    assert set(data.splitlines()) == {b"y" * 99}
    assert follower.taken_ratio == pytest.approx(growing_file.MOST_BYTES / (growing_file.MOST_BYTES + 5000), rel=1e-3)
    append(log, line)
    assert follower.read() == line
    assert follower.taken_ratio == 1.0
    follower.close()


def test_fifo_is_never_opened(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    follower = GrowingFile(path)
    found = follower.read()
    assert isinstance(found, Missing)
    assert "FIFO" in found.detail
    with pytest.raises(OSError, match="No such device"):  # ENXIO: nobody has it open for reading
        os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    follower.close()


def test_a_directory_is_missing_and_no_crash(tmp_path: Path) -> None:
    found = GrowingFile(tmp_path).read()
    assert isinstance(found, Missing)
    assert found.why is not Why.MALFORMED


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_however_it_is_written_lines_are_same(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    log = tmp_path_factory.mktemp("follow") / "log"
    log.touch()
    follower = GrowingFile(log)
    got = b""
    for piece in pieces:
        append(log, piece)
        lines = follower.read()
        assert isinstance(lines, bytes)
        got += lines
    follower.close()
    whole = b"".join(pieces)
    assert got == whole[: whole.rfind(b"\n") + 1]


def test_look_takes_only_the_memory_it_reads(log: Path) -> None:
    """A megabyte asked for at every tick, and shrunk to some lines, wore the heap out: 0.2 MB in a thousand ticks."""
    follower = GrowingFile(log)
    append(log, b"one\n")
    tracemalloc.start()
    try:
        assert follower.read() == b"one\n"
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()
    follower.close()


def test_looking_ahead_takes_nothing_from_the_next_reading(log: Path) -> None:
    follower = GrowingFile(log)
    assert follower.ahead(100) == b"", "what was there before is none of it"
    append(log, b"one\ntwo\nthr")
    assert follower.ahead(100) == b"one\ntwo\n"
    append(log, b"ee\n")
    assert follower.ahead(100) == b"three\n"
    assert follower.ahead(100) == b""
    assert follower.read() == b"one\ntwo\nthree\n"
    append(log, b"four\n")
    assert follower.ahead(100) == b"four\n"
    assert follower.read() == b"four\n"
    assert follower.ahead(100) == b""
    follower.close()
    assert follower.ahead(100) == b""


def test_of_burst_newest_whole_lines_are_looked_at(log: Path) -> None:
    follower = GrowingFile(log)
    append(log, b"".join(b"%03d\n" % n for n in range(500)))
    assert follower.ahead(10) == b"498\n499\n"
    assert follower.ahead(10) == b""
    assert follower.read().count(b"\n") == 500  # type: ignore[union-attr]
    follower.close()


def test_looking_ahead_outlives_truncation_rotation_and_absence(log: Path, tmp_path: Path) -> None:
    follower = GrowingFile(log)
    append(log, b"long enough to be noticed\n")
    assert follower.ahead(100) != b""
    log.write_bytes(b"anew\n")
    assert follower.ahead(100) == b"anew\n"
    follower.read()
    log.rename(tmp_path / "access.log.1")
    log.write_bytes(b"next\n")
    assert follower.ahead(100) == b""
    assert follower.read() == b"next\n"
    append(log, b"more\n")
    assert b"more\n" in follower.ahead(100)
    follower.close()
    absent = GrowingFile(tmp_path / "absent.log")
    assert absent.ahead(100) == b""


@given(
    st.lists(st.tuples(st.sampled_from([b"a\n", b"bcd", b"\n", b"efgh\nij\n"]), st.sampled_from("raw")), max_size=30)
)
def test_every_line_is_read_and_looked_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bytes, str]]
) -> None:
    path = tmp_path_factory.mktemp("log") / "access.log"
    path.write_bytes(b"")
    follower, read, looked = GrowingFile(path), b"", b""
    for data, step in steps:
        append(path, data)
        if step == "r":
            read += follower.read()  # type: ignore[operator]
        elif step == "a":
            looked += follower.ahead(1000)
    read += follower.read()  # type: ignore[operator]
    looked += follower.ahead(1000)
    follower.close()
    whole = b"".join(data for data, _ in steps)
    assert read == looked == whole[: whole.rfind(b"\n") + 1]
