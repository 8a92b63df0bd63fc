"""What happened to a log while it lay on a disk is seen and told, and never stops the reader."""

import contextlib
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs import ticklog
from rlctl.envs.errors import ConfigError
from rlctl.envs.log_lines import log_files, read_lines
from rlctl.envs.ticklog import decode_line, encode_line
from tests.examples import examples


def write_log(path, count, start=0):
    path.write_bytes(b"".join(encode_line({"tick": number}) for number in range(start, start + count)))


def read(*paths):
    damages = []
    lines = list(read_lines(paths, damages.append))
    return [line.content.get("tick") for line in lines], [one.number for one in damages]


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "ticks.jsonl"
    write_log(path, 6)
    return path


def changed(path, change):
    lines = path.read_bytes().splitlines(keepends=True)
    change(lines)
    path.write_bytes(b"".join(lines))


def test_a_line_is_json_with_its_checksum(log):
    line = json.loads(log.read_text().splitlines()[1])
    assert line == {"tick": 1, "crc": line["crc"]}
    assert read(log) == ([0, 1, 2, 3, 4, 5], [])


@pytest.mark.parametrize(
    ("change", "left", "damages"),
    [
        (lambda lines: lines.__setitem__(2, lines[2].replace(b":2", b":9")), [0, 1, 3, 4, 5], [3]),
        (lambda lines: lines.__setitem__(2, lines[2][:9]), [0, 1, 4, 5], [3]),
        (lambda lines: lines.__setitem__(2, b'{"tick":2}\n'), [0, 1, 3, 4, 5], [3]),
        (lambda lines: lines.insert(2, b"\n"), [0, 1, 2, 3, 4, 5], []),
        (lambda lines: lines.__setitem__(5, lines[5][:-4]), [0, 1, 2, 3, 4], []),  # still being written, or cut off
    ],
)
def test_each_damage_costs_its_own_line(log, change, left, damages):
    changed(log, change)
    assert read(log) == (left, damages)


def test_rotated_files_are_read_oldest_first(tmp_path):
    oldest, older, newest = (tmp_path / name for name in ("ticks.jsonl.2", "ticks.jsonl.1", "ticks.jsonl"))
    for start, path in enumerate((oldest, older, newest)):
        write_log(path, 2, 2 * start)
    assert log_files(tmp_path) == (oldest, older, newest)
    assert read(*log_files(tmp_path)) == ([0, 1, 2, 3, 4, 5], [])


OLD = b'{"tick":0,"prev":"","crc":"67aa28e2"}\n'


def test_older_logs_are_read(tmp_path):
    path = tmp_path / "ticks.jsonl"
    path.write_bytes(b'{"tick":8}\n{"tick":9}\n' + OLD + encode_line({"tick": 1}))
    assert read(path) == ([8, 9, 0, 1], [])
    assert decode_line(OLD) == ({"tick": 0}, True)
    with pytest.raises(ValueError, match="was changed"):
        decode_line(OLD.replace(b":0", b":7"))


def test_file_rotated_meanwhile_is_read_once(tmp_path):
    newest, older = tmp_path / "ticks.jsonl", tmp_path / "ticks.jsonl.1"
    write_log(newest, 2)
    os.link(newest, older)  # as it is found when the rename comes between the two openings
    assert read(older, newest) == ([0, 1], [])


@pytest.mark.parametrize("name", ["ticks.jsonl.x", "ticks.jsonl.0", "ticks.jsonl.1.gz", "journal.jsonl"])
def test_other_files_are_no_part_of_log(tmp_path, name):
    (tmp_path / name).write_text("")
    with pytest.raises(ConfigError, match=r"holds no ticks\.jsonl"):
        log_files(tmp_path)


def test_no_file_is_told_in_one_line(tmp_path):
    with pytest.raises(ConfigError, match="there is no such log"):
        read(tmp_path / "none.jsonl")


def test_line_without_end_is_not_taken_into_memory(log, monkeypatch):
    monkeypatch.setattr(ticklog, "MOST_LINE_BYTES", 100)
    changed(log, lambda lines: lines.insert(2, b"x" * 10_000 + b"\n"))
    assert read(log) == ([0, 1, 2, 3, 4, 5], [3])


@examples(40)
@given(st.binary(max_size=300))
def test_any_bytes_are_a_line_or_damage(raw):
    with contextlib.suppress(ValueError):
        decode_line(raw)


@examples(40)
@given(st.integers(0, 5), st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_never_goes_unnoticed(number, place, mask):
    line = bytearray(encode_line({"tick": number, "note": "as ever"})[:-1])
    line[place % len(line)] ^= mask
    try:
        _, checked = decode_line(bytes(line))
    except ValueError:
        return
    assert not checked, "a line that lost its checksum is damage among others"
