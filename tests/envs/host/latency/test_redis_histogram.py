"""Redis's own histograms: what came between two answers, and what it says instead of one."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.host.latency.figures import Figures
from rlctl.envs.host.latency.polled import PolledSource
from rlctl.envs.host.latency.redis_histogram import RedisDigest, RedisError, ask_redis, replies
from rlctl.envs.telemetry import Missing, Value, Why
from rlctl.envs.workload import SLO
from tests.waiting import reading, until

FIXTURES = Path(__file__).parents[3] / "fixtures/latency"
CAPTURED = [(FIXTURES / f"redis-{number}.resp").read_bytes() for number in (1, 2)]


def answer(**commands: tuple[int, dict[int, int]]) -> bytes:
    """Calls, and cumulative calls by microseconds."""
    said = b"*%d\r\n" % (2 * len(commands))
    for name, (calls, buckets) in commands.items():
        said += b"$%d\r\n%b\r\n*4\r\n$5\r\ncalls\r\n:%d\r\n" % (len(name), name.encode(), calls)
        said += b"$14\r\nhistogram_usec\r\n*%d\r\n" % (2 * len(buckets))
        said += b"".join(b":%d\r\n:%d\r\n" % bucket for bucket in buckets.items())
    return said + b"+OK\r\n"


def figures(slo: SLO, *answers: bytes) -> Figures | Missing:
    digest = RedisDigest((), slo)
    found: Figures | Missing = Missing(Why.NO_DATA)
    for second, one in enumerate(answers):
        found = digest(one, float(second))
    return found


def sound(found: Figures | Missing) -> Figures:
    assert isinstance(found, Figures), found
    return found


def test_a_real_server(slo: SLO) -> None:
    """100 SET, 100 GET, one slow EVAL, and what redis-cli asks by itself; what rlctl asked is none of them."""
    found = sound(figures(slo, *CAPTURED))
    assert found.samples == 202
    assert isinstance(found.tail_seconds, float)
    assert found.tail_seconds <= 1e-6
    slow = sound(figures(SLO(0.010, quantile=0.999), *CAPTURED))
    assert isinstance(slow.tail_seconds, float)
    assert 8.454e-3 < slow.tail_seconds <= 16.908e-3


def test_a_bucket_begins_where_the_empty_one_below_it_ends(slo: SLO) -> None:
    """Between 132 and 264 microseconds; from the last bucket with anything in it, the tail would seem shorter."""
    found = sound(figures(SLO(0.010, quantile=0.51), answer(), answer(get=(100, {1: 50, 264: 100}))))
    assert isinstance(found.tail_seconds, float)
    assert found.tail_seconds > 132e-6


def test_what_takes_a_second_or_more_has_no_upper_bound(slo: SLO) -> None:
    """Redis counts 20 s as 1 s."""
    found = sound(figures(slo, answer(), answer(get=(100, {1: 50, 1082130: 100}))))
    assert found.tail_is_lower_limit
    patient = sound(figures(SLO(2.0), answer(), answer(get=(100, {1: 50, 1082130: 100}))))
    assert isinstance(patient.tail_seconds, Missing)
    assert patient.tail_seconds.why is Why.NOT_SUPPORTED


def test_statistics_that_were_reset_start_anew(slo: SLO) -> None:
    found = sound(figures(slo, answer(get=(500, {1: 500})), answer(get=(7, {2: 7}))))
    assert found.samples == 7


def test_a_window_takes_two_answers(slo: SLO) -> None:
    found = figures(slo, CAPTURED[0])
    assert isinstance(found, Missing)
    assert found.why is Why.NO_DATA


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"-NOAUTH Authentication required.\r\n+OK\r\n", Why.NO_PERMISSION),
        (b"-ERR AUTH <password> called without any password configured\r\n*0\r\n", Why.NO_PERMISSION),
        (b"-ERR Unknown subcommand or wrong number of arguments for 'HISTOGRAM'\r\n", Why.NOT_SUPPORTED),
        (b"-LOADING Redis is loading the dataset in memory\r\n", Why.NO_DATA),
        (b"+OK\r\n", Why.MALFORMED),
        (b"", Why.MALFORMED),
        (b"-ERR \x1b[2J\r\n", Why.NOT_SUPPORTED),
    ],
)
def test_a_refusal_is_told_in_the_servers_words(slo: SLO, said: bytes, why: Why) -> None:
    found = RedisDigest((), slo)(said, 0.0)
    assert isinstance(found, Missing)
    assert found.why is why
    assert found.detail.isprintable()


def test_commands_that_nobody_called_are_named(slo: SLO) -> None:
    digest = RedisDigest(("get", "set"), slo)
    digest(answer(), 0.0)
    found = digest(answer(), 1.0)
    assert isinstance(found, Missing)
    assert found.detail.startswith("no get or set was ever counted")


@given(st.binary(max_size=80) | st.integers(0, 400).map(lambda cut: CAPTURED[1][:cut]))
def test_no_answer_raises_but_a_value_error(body: bytes) -> None:
    digest = RedisDigest((), SLO(0.010))
    digest(CAPTURED[0], 0.0)
    try:
        found = digest(body, 1.0)
    except ValueError:
        return
    assert isinstance(found, Missing) or found.samples >= 0


def test_types_of_replies() -> None:
    assert list(replies(b"+OK\r\n:7\r\n$2\r\nab\r\n*1\r\n:1\r\n-ERR no\r\n")) == ["OK", 7, "ab", [1], "ERR no"]
    assert isinstance(next(replies(b"-ERR no\r\n")), RedisError)


class Server:
    """Says one thing to whoever comes, and keeps what was asked."""

    def __init__(self, path: Path) -> None:
        self.path, self.said, self.asked = path, CAPTURED[0], b""
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(path))
        self.socket.listen()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while True:
            try:
                peer, _ = self.socket.accept()
            except OSError:
                return
            with peer:
                self.asked = peer.recv(4096)
                peer.sendall(self.said)

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.thread.join()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "redis.sock")
    yield made
    made.close()


def test_what_is_asked(server: Server) -> None:
    assert ask_redis(str(server.path), ("get",), "watcher", "secret", 5.0) == CAPTURED[0]
    assert list(replies(server.asked)) == [
        ["AUTH", "watcher", "secret"], ["LATENCY", "HISTOGRAM", "get"], ["QUIT"],
    ]  # fmt: skip


def test_an_answer_is_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlctl.envs.host.latency.redis_histogram.MOST_BYTES", 10)
    found = ask_redis(str(server.path), (), None, None, 5.0)
    assert isinstance(found, Missing)
    assert found.why is Why.MALFORMED


@pytest.mark.parametrize("address", ["/nowhere/redis.sock", "127.0.0.1:9", "[::1]:9"])
def test_a_server_that_is_not_there_is_gone(address: str, slo: SLO) -> None:
    def ask(seconds: float) -> bytes | Missing:
        return ask_redis(address, (), None, None, seconds)

    source = PolledSource("redis", address, RedisDigest((), slo), slo, ask=ask, interval_seconds=0.02)
    try:

        def gone() -> bool:
            found = source.read(time.monotonic())["tail_latency_seconds"]
            return isinstance(found, Missing) and found.why is Why.GONE and found.detail.startswith(address)

        assert until(gone)
    finally:
        source.close()


def test_a_server_that_stays_away_is_told_when_its_figures_are_old(server: Server, slo: SLO) -> None:
    def ask(seconds: float) -> bytes | Missing:
        return ask_redis(str(server.path), (), None, None, seconds)

    source = PolledSource(
        "redis", str(server.path), RedisDigest((), slo), slo, ask=ask, interval_seconds=0.02, stale_seconds=0.2
    )
    try:
        reading(source, "done_rps", Value)
        server.path.unlink()

        def stale() -> bool:
            found = source.read(time.monotonic())["tail_latency_seconds"]
            return isinstance(found, Missing) and found.why is Why.STALE and "No such file" in found.detail

        assert until(stale)
    finally:
        source.close()
