"""The Python client reads the line that the service writes."""

from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.applications import Placement, WorkingMode
from rlctl.envs.host.apps.registry import mode_line
from rlctl.envs.host.apps.rlctl_mode import Mode, ModeClient, parse_mode, threads_at_start


def test_each_mode_is_told_once(tmp_path):
    file = tmp_path / "mode"
    client = ModeClient(str(file))
    assert client.poll() is None, "there is no service yet"
    file.write_text("mode 1 threads 2 millicpus 1500 memory 0 later 7\n")
    assert client.poll() == client.mode == Mode(1, 2, 1.5, 0)
    assert client.poll() is None
    assert client.wait(0.01) is None
    file.write_text("half a li")
    assert client.poll() is None
    assert client.mode == Mode(1, 2, 1.5, 0)


def test_outside_rlctl_it_does_no_harm(monkeypatch):
    for name in ("RLCTL_MODE_FILE", "RLCTL_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert ModeClient().poll() is None
    assert threads_at_start(3) == 3
    monkeypatch.setenv("RLCTL_THREADS", "7")
    assert threads_at_start(3) == 7


@given(st.integers(0, 31), st.integers(1, 64), st.integers(1, 10**6), st.integers(0, 1 << 50))
def test_what_is_written_is_what_is_read(mode, threads, millicpus, memory):
    line = mode_line(Placement(mode, "all", millicpus / 1e3), WorkingMode(1.0, threads, 1.0, memory))
    assert parse_mode(line.encode()) == Mode(mode, threads, millicpus / 1e3, memory)


@given(st.binary(max_size=600))
def test_any_bytes_are_a_mode_or_none(line):
    parse_mode(line)
