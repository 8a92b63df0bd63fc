"""The mode channel: who is told what, and what a client can do to the service."""

import contextlib
import os
import socket
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.applications import Placement, WorkingMode
from rlctl.envs.errors import HostError
from rlctl.envs.host.apps import channel as module
from rlctl.envs.host.apps.channel import ModeChannel, mode_line, parse_gap
from rlctl.envs.host.apps.launch import _listener
from rlctl.envs.host.apps.rlctl_mode import Mode, ModeClient, threads_at_start
from tests.waiting import PATIENCE_SECONDS

LINE = mode_line(Placement(1, "all", 1.5), WorkingMode(1.0, 4, 1.0, 4096))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "mode.sock"


@pytest.fixture
def channel(path):
    """Takes every process of this test for application `app`."""
    made = ModeChannel(lambda _: "app", path)
    yield made
    made.close()


def a_client(path):
    return ModeClient(str(path))


def test_who_asks_who_listens_waits_for_nobody(path):
    with socket.socket(socket.AF_UNIX) as busy, contextlib.ExitStack() as waiting:
        busy.bind(str(path))
        busy.listen(1)
        assert _listener(path) == os.getpid()
        for _ in range(9):  # nobody takes them
            end = waiting.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            with contextlib.suppress(BlockingIOError):
                end.connect(str(path))
        with pytest.raises(HostError, match="does the service hang"):
            _listener(path)
    assert _listener(path.with_name("nobody")) == 0


def test_the_line_says_all_of_a_mode():
    assert LINE == "mode 1 threads 4 millicpus 1500 memory 4096\n"


def test_a_client_hears_the_mode_of_now_and_each_change(channel, path):
    channel.tell({"app": LINE})
    client = a_client(path)
    channel.poll()
    assert client.poll() == Mode(1, 4, 1.5, 4096)
    assert client.poll() is None
    channel.tell({"app": LINE})
    assert client.poll() is None, "nothing has changed"
    channel.tell({"app": mode_line(Placement(0, "all", 0.5), WorkingMode(0.5, 1, 0.5))})
    assert client.poll() == Mode(0, 1, 0.5, 0)
    client.close()


def test_only_the_newest_mode_counts(channel, path):
    client = a_client(path)
    channel.poll()
    for threads in (1, 2, 3):
        channel.tell({"app": mode_line(Placement(0, "all", 1.0), WorkingMode(1.0, threads, 1.0))})
    assert client.poll().threads == 3
    assert client.poll() is None
    client.close()


def test_a_stranger_is_told_nothing(path):
    channel = ModeChannel(lambda _: None, path)
    channel.tell({"app": LINE})
    client = a_client(path)
    channel.poll()
    assert client.poll() is None
    assert client.mode is None
    client.close()
    channel.close()


def test_the_kernel_says_which_process_it_is(path):
    seen = []
    channel = ModeChannel(lambda pid: seen.append(pid), path)
    program = f"import socket; socket.socket(socket.AF_UNIX).connect({str(path)!r})"
    with subprocess.Popen([sys.executable, "-S", "-c", program]) as child:
        while child.poll() is None and not seen:
            channel.poll()
        channel.poll()
    assert seen == [child.pid]
    channel.close()


def test_a_client_that_does_not_read_is_dropped_and_delays_nobody(channel, path):
    deaf, good = a_client(path), a_client(path)
    channel.poll()
    for number in range(200):
        channel.tell({"app": mode_line(Placement(0, "all", 1.0), WorkingMode(1.0, number + 1, 1.0))})
        assert good.poll() is not None
    assert len(channel._clients) == 1
    assert deaf.poll().threads < 200, "it hears what had been sent, then comes back"
    deaf.close()
    good.close()


def test_an_application_has_a_few_connections_the_latest_ones(channel, path):
    clients = [a_client(path) for _ in range(3 * module.MOST_CLIENTS_EACH)]
    channel.poll()
    channel.tell({"app": LINE})
    assert [client.poll() is not None for client in clients] == [False] * 8 + [True] * 4
    for client in clients:
        client.close()


def test_all_together_have_a_bound_too(path, monkeypatch):
    monkeypatch.setattr(module, "MOST_CLIENTS", 3)
    names = iter(range(100))
    channel = ModeChannel(lambda _: f"app{next(names)}", path)
    clients = [a_client(path) for _ in range(10)]
    channel.poll()
    assert len(channel._clients) == 3
    for client in clients:
        client.close()
    channel.close()


def test_a_gap_is_kept_while_its_sender_is_there(channel, path):
    client = a_client(path)
    channel.poll()
    assert client.send_gap(12.5)
    channel.poll()
    assert channel.gaps == {"app": 12.5}
    assert not client.send_gap(101.0)
    client.close()
    channel.poll()
    assert channel.gaps == {}


@pytest.mark.parametrize("said", [b"gap 12.5", b"gap 1e3\ngap nan\nGAP 5\nmode 1\n\n", b"gap 5", b"\xff\n", b"gap \n"])
def test_what_is_no_gap_is_not_one(channel, path, said):
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(path))
        raw.sendall(said)
        channel.poll()
        channel.poll()
        assert channel.gaps == {}


def test_a_line_without_end_costs_the_connection(channel, path):
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(path))
        raw.sendall(b"x" * 1000)
        channel.poll()
        assert channel._clients == []


@given(st.binary(max_size=200))
def test_any_bytes_are_a_gap_in_bounds_or_none(line):
    gap = parse_gap(line)
    assert gap is None or -100.0 <= gap <= 100.0


@given(st.floats(-100.0, 100.0))
def test_every_gap_that_a_client_can_send_is_understood(percent):
    assert parse_gap(f"gap {percent:.2f}".encode()) == pytest.approx(percent, abs=0.006)


def test_a_dead_service_s_socket_is_taken_over_and_a_live_one_s_is_not(channel, path):
    with pytest.raises(HostError, match="another service has it"):
        ModeChannel(lambda _: None, path)
    channel._socket.close()  # as if it had been killed
    ModeChannel(lambda _: None, path).close()
    assert not path.exists()


def test_a_file_that_is_no_socket_is_never_removed(tmp_path):
    path = tmp_path / "precious"
    path.write_text("x")
    with pytest.raises(HostError, match="is no socket"):
        ModeChannel(lambda _: None, path)
    assert path.read_text() == "x"


def test_a_path_that_is_too_long_is_told(tmp_path):
    with pytest.raises(HostError, match="no mode channel"):
        ModeChannel(lambda _: None, tmp_path / ("x" * 200))


def test_a_client_finds_a_service_that_comes_later_and_reads_its_file_until_then(tmp_path, path):
    file = tmp_path / "1:app"
    file.write_text(LINE)
    client = ModeClient(str(path), str(file))
    assert client.poll() == Mode(1, 4, 1.5, 4096)
    assert client.poll() is None
    channel = ModeChannel(lambda _: "app", path)
    channel.tell({"app": mode_line(Placement(0, "all", 0.5), WorkingMode(0.5, 1, 0.5))})
    client._retry_at = 0.0  # a second later
    client.poll()
    channel.poll()
    assert client.wait(PATIENCE_SECONDS) == Mode(0, 1, 0.5, 0)
    channel.close()
    assert client.poll() is None, "the service has left: nothing new"
    client.close()


def test_outside_rlctl_a_client_answers_nothing_and_does_no_harm(monkeypatch):
    for name in ("RLCTL_MODE_SOCKET", "RLCTL_MODE_FILE", "RLCTL_THREADS"):
        monkeypatch.delenv(name, raising=False)
    client = ModeClient()
    assert client.poll() is None
    assert not client.send_gap(1.0)
    assert threads_at_start(3) == 3
    monkeypatch.setenv("RLCTL_THREADS", "7")
    assert threads_at_start(3) == 7


def test_waiting_ends_in_time_without_news(channel, path):
    client = a_client(path)
    channel.poll()
    begun = time.monotonic()
    assert client.wait(0.05) is None
    assert time.monotonic() - begun >= 0.05
    client.close()


def test_the_socket_is_open_to_all_and_gone_afterwards(channel, path):
    assert os.stat(path).st_mode & 0o777 == 0o666
    channel.close()
    assert not path.exists()
    channel.close()
