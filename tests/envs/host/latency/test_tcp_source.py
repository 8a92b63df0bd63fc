"""`kind: tcp` against real sockets of this process on loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rlctl.envs.errors import ConfigError, HostError, SensorError
from rlctl.envs.host.latency.inet_diag import InetDiag, jiffy_seconds
from rlctl.envs.host.latency.newest import LatencySource
from rlctl.envs.host.latency.tcp import TcpSource
from rlctl.envs.telemetry import Missing, Quantile, Reading, Value
from rlctl.envs.workload import SLO
from tests.waiting import reading, until


def answers() -> bool:
    with contextlib.suppress(SensorError), contextlib.closing(InetDiag()) as diag:
        diag.listeners()
        return True
    return False


pytestmark = pytest.mark.skipif(not answers(), reason="this kernel does not list TCP sockets (tcp_diag)")


@pytest.fixture
def slow() -> SLO:
    return SLO(target_seconds=0.050, quantile=0.95, max_load_rps=1000.0)


@pytest.fixture
def server() -> Iterator[tuple[int, Callable[[float], None]]]:
    """A server of one connection that answers each byte after a time; its port, and how to send a request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        peer, _ = listener.accept()

        def ask(seconds: float) -> None:
            client.send(b"?")
            time.sleep(seconds)
            peer.recv(1)
            peer.send(b"!")
            client.recv(1)

        with client, peer:
            yield port, ask


def source(slo: SLO, *ports: int) -> TcpSource:
    return TcpSource(slo, lambda: (os.getpid(),), ports=ports, cpu_ratio=1.0)


def value(found: Reading) -> float:
    assert isinstance(found, Value), found
    return found.value


def test_requests_are_timed_and_counted(slow: SLO, server: tuple[int, Callable[[float], None]]) -> None:
    port, ask = server
    with contextlib.closing(source(slow, port)) as tcp:
        assert isinstance(tcp, LatencySource)
        for _ in range(12):
            ask(0.060)
        readings = tcp.read(time.monotonic())
        tail = readings["tail_latency_seconds"]
        assert isinstance(tail, Quantile)
        assert tail.value > 0.050
        assert value(readings["done_rps"]) > 5.0
        assert set(readings) == set(tcp.provides)


def test_an_idle_lc_is_known_to_be_idle(slow: SLO, server: tuple[int, Callable[[float], None]]) -> None:
    port, ask = server
    with contextlib.closing(source(slow, port)) as tcp:
        ask(0.0)
        until(lambda: reading(tcp, "lc_idle", Value).value == 1.0)
        assert isinstance(tcp.read(time.monotonic())["tail_latency_seconds"], Missing)


def test_a_hung_server_speaks_between_the_ticks(slow: SLO, server: tuple[int, Callable[[float], None]]) -> None:
    port, ask = server
    with contextlib.closing(source(slow, port)) as tcp:
        thread = threading.Thread(target=ask, args=(1.0,))
        thread.start()
        until(lambda: (tcp.newest().oldest_seconds or 0.0) > slow.target_seconds)
        readings = tcp.read(time.monotonic())
        assert value(readings["lc_idle"]) == 0.0
        assert value(readings["oldest_request_seconds"]) > slow.target_seconds
        assert value(readings["lc_saturated_ratio"]) > 0.0
        thread.join()


def test_ports_are_found_by_the_lcs_own_sockets(slow: SLO, server: tuple[int, Callable[[float], None]]) -> None:
    port, _ = server
    with contextlib.closing(source(slow)) as tcp:
        assert str(port) in str(tcp)
        assert "of a core" in str(tcp)


def test_a_target_below_two_jiffies_is_refused() -> None:
    with pytest.raises(ConfigError, match="two jiffies"):
        source(SLO(target_seconds=1.9 * jiffy_seconds(), quantile=0.95, max_load_rps=1.0))


def test_a_port_on_which_nothing_listens_is_refused(slow: SLO) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(HostError, match=f"TCP port {port}"):
        source(slow, port)


@pytest.mark.parametrize(("kind", "words"), [
    ("AF_INET, socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0)", "UDP"),
    ("AF_UNIX); s.bind(chr(0) + 'rlctl-test'); s.listen(", "UNIX socket"),
])  # fmt: skip
def test_other_sockets_are_refused_by_name(slow: SLO, kind: str, words: str) -> None:
    code = f"import socket, sys; s = socket.socket(socket.{kind}); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as lc:
        assert lc.stdout is not None
        lc.stdout.readline()
        with pytest.raises(HostError, match=f"no TCP port.*{words}"):
            TcpSource(slow, lambda: (lc.pid,))


def test_pipelined_requests_are_refused_in_words(slow: SLO, server: tuple[int, Callable[[float], None]]) -> None:
    port, _ = server
    with contextlib.closing(source(slow, port)) as tcp, socket.create_connection(("127.0.0.1", port)) as client:
        for _ in range(60):
            client.send(b"GET")
            time.sleep(0.025)
        tail = tcp.read(time.monotonic())["tail_latency_seconds"]
        assert isinstance(tail, Missing)
        assert "HTTP/2" in tail.detail


def test_the_kernel_filters_ports() -> None:
    """Many ports, both families, and none of another port's connections."""
    with contextlib.ExitStack() as opened:
        diag = opened.enter_context(contextlib.closing(InetDiag()))
        ports = []
        for address, family in [("127.0.0.1", socket.AF_INET)] * 5 + [("::1", socket.AF_INET6)]:
            with contextlib.suppress(OSError):  # a host without IPv6
                listener = opened.enter_context(socket.create_server((address, 0), family=family))
                ports.append(listener.getsockname()[1])
                opened.enter_context(socket.create_connection((address, ports[-1])))
        assert len(diag.connections(ports)) == len(ports)
        assert [len(diag.connections([port])) for port in ports] == [1] * len(ports)
        assert len(diag.connections([*range(1, 300), ports[0]])) == 1


def test_the_looks_cost_no_more_than_they_may(slow: SLO, server: tuple[int, Callable[[float], None]]) -> None:
    tcp = TcpSource(slow, lambda: (os.getpid(),), ports=(server[0],), cpu_ratio=0.001)
    with contextlib.closing(tcp):
        began = time.process_time()
        time.sleep(2.0)
        assert time.process_time() - began < 0.1


IN_A_NETWORK_OF_ITS_OWN = """
import fcntl, os, socket, struct, sys, time
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
fcntl.ioctl(sock, 0x8914, struct.pack("16sh", b"lo", 0x41))  # SIOCSIFFLAGS: up and running
with socket.create_server(("127.0.0.1", 7)) as listener, socket.create_connection(("127.0.0.1", 7)) as client:
    peer, _ = listener.accept()
    print(flush=True)
    while True:
        client.send(b"?")
        time.sleep(0.06)
        peer.send(peer.recv(1))
        client.recv(1)
"""


@pytest.mark.host
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="takes root and unshare")
def test_another_network_namespace_is_entered(slow: SLO) -> None:
    """A container's: its port 7 is not this host's, and this thread stays where it is."""
    here = os.readlink("/proc/thread-self/ns/net")
    command = ["unshare", "--net", sys.executable, "-c", IN_A_NETWORK_OF_ITS_OWN]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as lc:
        try:
            assert lc.stdout is not None
            lc.stdout.readline()
            with contextlib.closing(TcpSource(slow, lambda: (lc.pid,), cpu_ratio=1.0)) as tcp:
                assert "port 7:" in str(tcp)
                assert reading(tcp, "tail_latency_seconds", Quantile).value > 0.0
                assert os.readlink("/proc/thread-self/ns/net") == here
        finally:
            lc.kill()
