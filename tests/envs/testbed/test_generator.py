"""The load generator against small servers in this process: what it must never do is make a bad server look good."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlctl.envs.errors import TestbedError
from rlctl.envs.testbed import generator as module
from rlctl.envs.testbed.generator import GeneratorConfig, GeneratorStats, LoadGenerator, build_generator
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler: the load generator is compiled"
)

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Answer = Callable[[bytes], bytes]


class FakeServer:
    """A thread per connection; answers each request, in pieces of `piece_bytes`, while `open_gate` is set."""

    def __init__(self, answer: Answer, path: Path | None = None, *, end: bytes = b"\r\n\r\n", piece_bytes: int = 0):
        self.answer, self.end, self.piece_bytes = answer, end, piece_bytes
        self.requests: list[bytes] = []
        self.open_gate = threading.Event()
        self.open_gate.set()
        self.listener = socket.create_server(("127.0.0.1", 0)) if path is None else socket.socket(socket.AF_UNIX)
        if path is not None:
            self.listener.bind(str(path))
            self.listener.listen(64)
        self.sockets = [self.listener]
        self.threads = [threading.Thread(target=self.accept)]
        self.threads[0].start()

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = self.listener.accept()[0]
                self.sockets.append(connection)
                self.threads.append(threading.Thread(target=self.serve, args=(connection,)))
                self.threads[-1].start()

    def serve(self, connection: socket.socket) -> None:
        pending = b""
        with contextlib.suppress(OSError), connection:
            if connection.family == socket.AF_INET:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := connection.recv(1 << 16):
                pending += data
                while self.end in pending:
                    request, _, pending = pending.partition(self.end)
                    self.requests.append(request)
                    self.open_gate.wait()
                    if not self.send(connection, self.answer(request)):
                        return

    def send(self, connection: socket.socket, reply: bytes) -> bool:
        step = self.piece_bytes or max(len(reply), 1)
        for start in range(0, len(reply), step):
            connection.sendall(reply[start : start + step])
            if self.piece_bytes:
                time.sleep(0.0002)  # so that the pieces arrive as such
        return b"close" not in reply and bool(reply)

    def stop(self) -> None:
        self.open_gate.set()
        for sock in self.sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()
        for sock in self.sockets:
            sock.close()


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as closing:
        yield closing


@pytest.fixture
def serve(stack: contextlib.ExitStack) -> Callable[..., FakeServer]:
    def start(*arguments: Any, **options: Any) -> FakeServer:
        server = FakeServer(*arguments, **options)
        stack.callback(server.stop)
        return server

    return start


@pytest.fixture
def load(stack: contextlib.ExitStack) -> Callable[..., LoadGenerator]:
    def start(
        protocol: Any = "http", *, rate_rps: float = 200.0, connections: int = 2, **options: Any
    ) -> LoadGenerator:
        config = GeneratorConfig(protocol, connections=connections, **options)
        return stack.enter_context(LoadGenerator(config, rate_rps=rate_rps))

    return start


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def finish(
    generator: LoadGenerator, seconds: float = 0.2, seen: Callable[[GeneratorStats], bool] = lambda stats: True
) -> GeneratorStats:
    """Figures over `seconds` of load, the first in which a busy machine let that happen which is to be seen."""

    def window() -> GeneratorStats:
        time.sleep(seconds)
        return generator.stats()

    return until(lambda: seen(stats := window()) and stats)  # type: ignore[return-value]


def drained(generator: LoadGenerator) -> list[GeneratorStats]:
    """Figures until all that was asked for is answered, with no further load."""
    generator.set_rate(0.0)
    figures: list[GeneratorStats] = []
    while not figures or figures[-1].outstanding > 0:
        figures.append(finish(generator, 0.01))
    return figures


# ---- replies ---------------------------------------------------------------------------------------------------------

TRAP = b"\r\n0\r\n\r\nHTTP/1.1 500 no\r\n\r\nEND\r\n"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    + b"%x;name=value\r\n%s\r\n" % (len(TRAP), TRAP)
    + b"A\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\n"
)
REPLIES = {
    "length": b"HTTP/1.1 200 OK\r\ncontent-LENGTH:  %d\r\n\r\n" % len(TRAP) + TRAP,
    "chunked": CHUNKED,
    "empty": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "interim": b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + OK,
    "long header": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 3000 + b"\r\nContent-Length: 1\r\n\r\n.",
    "said to close": b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\n.",
    "until closed": b"HTTP/1.0 200 OK\r\n\r\nthe body ends with the connection, close",
}


@pytest.mark.parametrize("piece_bytes", [0, 1])
@pytest.mark.parametrize("kind", REPLIES)
def test_http_replies_are_followed_to_their_end(serve: Any, load: Any, kind: str, piece_bytes: int) -> None:
    piece_bytes *= 1 + len(REPLIES[kind]) // 200  # every byte on its own, but for the one long reply
    server = serve(lambda _: REPLIES[kind], piece_bytes=piece_bytes)
    generator = load(port=server.port, rate_rps=100.0, http_path="/a?b=c")
    until(lambda: len(server.requests) > 5)  # a parser that stops too late would not get beyond the second
    figures = drained(generator)
    assert sum(stats.errors for stats in figures) == 0  # one that stops too early meets the rest as an error
    assert sum(stats.samples for stats in figures) == len(server.requests)
    assert server.requests[0].split(b"\r\n")[0] == b"GET /a?b=c HTTP/1.1"
    assert b"Accept-Encoding: gzip" in server.requests[0]


@pytest.mark.parametrize(
    "reply", [b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", b"nonsense\r\n", OK + b"more", b""]
)
def test_bad_reply_is_an_error_and_no_sample(serve: Any, load: Any, reply: bytes) -> None:
    generator = load(port=serve(lambda _: reply).port)
    stats = finish(generator, 0.1, lambda stats: stats.errors > 0)
    later = finish(generator, 0.1)
    assert stats.samples == 0
    assert stats.p95_seconds is None
    assert later.latency_seconds(0.95) == later.oldest_seconds >= stats.oldest_seconds + 0.1


class FakeMemcached:
    """Enough of the text protocol: `set … noreply` and multi-get; values are `END` over and over."""

    def __init__(self, forgets: Callable[[bytes], bool] = lambda _: False) -> None:
        self.stored: dict[bytes, bytes] = {}
        self.pending: bytes | None = None
        self.forgets = forgets

    def __call__(self, line: bytes) -> bytes:
        words = line.split()
        if words[0] == b"get":
            found = [key for key in words[1:] if key in self.stored]
            return b"".join(b"VALUE %s 0 %d\r\n%s\r\n" % (k, len(self.stored[k]), self.stored[k]) for k in found) + (
                b"END\r\n"
            )
        if words[0] == b"set":
            self.pending = words[1]
        elif self.pending is not None and not self.forgets(self.pending):
            self.stored[self.pending] = (b"END\r\n" * len(line))[: len(line)]
        return b"" if words[0] == b"quit" else NO_REPLY


NO_REPLY = b"\0"


class MemcachedServer(FakeServer):
    """The same over lines; a set has no reply."""

    def send(self, connection: socket.socket, reply: bytes) -> bool:
        return True if reply == NO_REPLY else super().send(connection, reply)


@pytest.mark.parametrize("piece_bytes", [0, 3])
def test_memcached_values_are_skipped_by_length(stack: Any, load: Any, piece_bytes: int) -> None:
    server = MemcachedServer(memory := FakeMemcached(), end=b"\r\n", piece_bytes=piece_bytes)
    stack.callback(server.stop)
    generator = load("memcached", port=server.port, keys_per_get=3, preload_keys=20, value_bytes=23, rate_rps=100.0)
    stats = finish(generator, 0.2, lambda stats: stats.samples > 3)
    assert len(memory.stored) == 20
    assert {len(value) for value in memory.stored.values()} == {23}
    assert (stats.errors, stats.misses) == (0, 0)


@pytest.mark.parametrize(
    ("query", "reply", "well"),
    [("", b"+PONG\r\n", True), ("", b"-LOADING a data set\r\n", False), ("EVAL x 0", b"+OK\r\n", True),
     ("EVAL x 0", b"-ERR\r\n", False)],
)  # fmt: skip
def test_redis_errors_are_failed_requests(stack: Any, load: Any, query: str, reply: bytes, *, well: bool) -> None:
    server = FakeServer(lambda _: reply, end=b"\r\n", piece_bytes=3)
    stack.callback(server.stop)
    generator = load("redis", port=server.port, rate_rps=100.0, query=query)
    stats = finish(generator, 0.2, lambda s: s.samples > 3 or s.errors > 3)
    assert (stats.samples > 3, stats.errors == 0) == (well, well)


def message(kind: bytes, body: bytes) -> bytes:
    """One of PostgreSQL's messages: its length counts itself."""
    return kind + (4 + len(body)).to_bytes(4, "big") + body


READY = message(b"Z", b"I")
COMMITTED = message(b"C", b"INSERT 0 1\0") + READY
GREETED = message(b"R", bytes(4)) + message(b"S", b"a\0Z\0\0\0\5I\0") + message(b"K", bytes(8)) + READY
END = b"(1)\0"


@pytest.mark.parametrize("piece_bytes", [0, 1])
def test_postgresql_is_greeted_once(serve: Any, load: Any, piece_bytes: int) -> None:
    server = serve(lambda asked: GREETED * (b"user" in asked) + COMMITTED, end=END, piece_bytes=piece_bytes)
    generator = load("postgres", port=server.port, rate_rps=50.0, query="INSERT INTO entries VALUES (1)", connections=2)
    until(lambda: len(server.requests) > 5)
    figures = drained(generator)
    assert sum(stats.errors for stats in figures) == 0
    assert sum(stats.samples for stats in figures) == len(server.requests)
    statement = message(b"Q", b"INSERT INTO entries VALUES (1)\0").removesuffix(END)
    greeting = (38).to_bytes(4, "big") + b"\0\3\0\0user\0rlctl\0database\0postgres\0\0"
    assert server.requests.count(greeting + statement) == 2
    assert set(server.requests) == {greeting + statement, statement}


@pytest.mark.parametrize(
    "reply",
    [
        message(b"E", b"SFATAL\0\0"),
        GREETED + message(b"E", b"SERROR\0\0") + READY,
        GREETED + COMMITTED + b"Z",
        b"Z\0\0\0\0",
    ],
)
def test_an_error_of_postgresql_is_no_sample(serve: Any, load: Any, reply: bytes) -> None:
    stats = finish(load("postgres", port=serve(lambda _: reply, end=END).port, query="VALUES (1)"), 0.1)
    assert stats.errors > 0
    assert stats.samples == 0


def test_memcached_misses_are_counted_and_seed_decides_keys(stack: Any, load: Any) -> None:
    firsts = []
    for seed in (7, 7, 8):
        server = MemcachedServer(FakeMemcached(lambda key: key.endswith(b"1")), end=b"\r\n")
        stack.callback(server.stop)
        generator = load("memcached", port=server.port, keys_per_get=30, preload_keys=40, value_bytes=5, seed=seed)
        finish(generator, 0.1, lambda stats: stats.misses > 0)
        firsts.append(next(line for line in server.requests if line.count(b" ") > 10))
    assert firsts[0] == firsts[1] != firsts[2]


# ---- time ------------------------------------------------------------------------------------------------------------


def test_latency_counts_from_the_intended_time(serve: Any, load: Any) -> None:
    server = serve(lambda _: OK)
    generator = load(port=server.port)
    finish(generator)
    server.open_gate.clear()
    during = finish(generator, 0.2, lambda stats: stats.oldest_seconds >= 0.1)
    later = finish(generator, 0.2, lambda stats: stats.outstanding > 20)  # arrivals went on, both connections busy
    assert later.oldest_seconds >= during.oldest_seconds + 0.2
    server.open_gate.set()
    after = until(lambda: (stats := generator.stats()).samples > 0 and stats)
    assert after.p99_seconds >= 0.35  # the first that were answered waited longest
    assert after.p95_seconds > 0.1  # those that queued count their wait as well
    assert until(lambda: generator.stats().outstanding < 10)


def test_a_peek_takes_nothing_from_the_figures(serve: Any, load: Any) -> None:
    server = serve(lambda _: OK)
    generator = load(port=server.port, rate_rps=150.0)
    generator.stats()
    seen = until(lambda: (one := generator.peek()).latencies and one)
    assert all(0.0 < latency < 60.0 for latency in seen.latencies)
    assert generator.stats().samples >= len(seen.latencies)
    server.open_gate.clear()
    assert until(lambda: (generator.peek().oldest_seconds or 0.0) >= 0.1)
    server.open_gate.set()
    assert until(lambda: generator.peek().oldest_seconds < 0.1)
    generator.set_rate(0.0)
    assert until(lambda: not generator.peek().latencies)


def test_figures_agree_with_each_other(serve: Any, load: Any) -> None:
    before = time.monotonic()
    generator = load(port=serve(lambda _: OK).port, rate_rps=150.0, connections=20)
    stats = finish(generator, 0.4, lambda stats: 0 < stats.samples < 100)
    assert stats.interval_seconds >= 0.3
    assert before < stats.monotonic_seconds < time.monotonic()
    assert stats.done_rps == pytest.approx(stats.samples / stats.interval_seconds, rel=1e-3)
    assert stats.p50_seconds is not None
    assert stats.p50_seconds <= stats.p95_seconds <= stats.p99_seconds  # type: ignore[operator]
    assert stats.lag_p50_seconds is not None
    assert 0 < stats.lag_p50_seconds <= stats.lag_p99_seconds  # type: ignore[operator]


def test_rate_changes_at_run_time(serve: Any, load: Any) -> None:
    generator = load(port=serve(lambda _: OK).port, rate_rps=0.0)
    assert finish(generator, 0.1).offered_rps == 0.0
    generator.set_rate(1000.0)
    wanted = pytest.approx(1000.0, rel=0.3)  # 400 arrivals: 6 standard deviations
    assert finish(generator, 0.4, lambda stats: stats.offered_rps == wanted).rate_rps == 1000.0
    generator.set_rate(0.0)
    generator.stats()
    assert finish(generator, 0.1).offered_rps == 0.0
    for wrong in (-1.0, float("nan"), 2e6):
        with pytest.raises(ValueError, match="no rate"):
            generator.set_rate(wrong)


# ---- trouble ---------------------------------------------------------------------------------------------------------


def test_dead_server_ages_and_its_return_is_served(serve: Any, load: Any, tmp_path: Path) -> None:
    generator = load(unix_path=tmp_path / "socket")
    first = finish(generator)
    second = finish(generator, 0.2, lambda stats: stats.errors > 0)
    assert second.samples == 0
    assert second.oldest_seconds >= first.oldest_seconds + 0.2
    serve(lambda _: OK, tmp_path / "socket")
    served = until(lambda: (stats := generator.stats()).samples > 0 and stats)
    assert served.p99_seconds > second.oldest_seconds
    assert until(lambda: generator.stats().outstanding < 10)


def test_broken_connections_request_is_retried(serve: Any, load: Any) -> None:
    refuse = iter([True] * 4)
    server = serve(lambda _: b"" if next(refuse, False) else OK)
    generator = load(port=server.port)
    until(lambda: len(server.requests) > 24)
    figures = drained(generator)
    assert sum(stats.errors for stats in figures) == 4
    assert sum(stats.samples for stats in figures) == len(server.requests) - 4
    assert sum(stats.samples for stats in figures) == round(
        sum(stats.offered_rps * stats.interval_seconds for stats in figures)
    )


def test_full_queue_keeps_oldest_and_drops_newest(load: Any) -> None:
    generator = load(port=free_port(), rate_rps=1000.0, queue_limit=10)
    stats = finish(generator, 0.2, lambda stats: stats.dropped > 50)
    assert stats.outstanding == 10
    assert finish(generator).oldest_seconds >= stats.oldest_seconds + 0.2


def test_what_was_not_sent_yet_can_be_forgotten(serve: Any, load: Any) -> None:
    server = serve(lambda _: OK)
    server.open_gate.clear()
    generator = load(port=server.port, rate_rps=1000.0)
    assert until(lambda: generator.stats().outstanding > 100)
    generator.set_rate(0.0)
    generator.forget()
    stats = generator.stats()
    assert stats.outstanding == 2, "those that were sent are answered as ever"
    assert stats.dropped > 90
    server.open_gate.set()
    assert until(lambda: generator.stats().outstanding == 0)


def test_hung_generator_is_an_error(load: Any) -> None:
    generator = load(port=free_port(), rate_rps=0.0)
    os.kill(generator.pid, signal.SIGSTOP)
    with pytest.raises(TestbedError, match=r"did not answer in 0\.1 s"):
        generator.stats(timeout_seconds=0.1)
    resumed = time.monotonic()
    os.kill(generator.pid, signal.SIGCONT)
    time.sleep(0.1)
    assert generator.stats().interval_seconds <= time.monotonic() - resumed
    os.kill(generator.pid, signal.SIGSTOP)
    generator.close()
    assert not Path(f"/proc/{generator.pid}").exists()


def test_killed_or_closed_generator_is_an_error(load: Any) -> None:
    generator = load(port=free_port())
    os.kill(generator.pid, signal.SIGKILL)
    with pytest.raises(TestbedError, match="ended with code -9"):
        [generator.stats() for _ in range(3)]
    generator.close()
    with pytest.raises(TestbedError, match="closed"):
        generator.stats()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "one of --unix and --port"),
        ({"port": 1, "unix_path": "/x"}, "one of --unix and --port"),
        ({"port": 70_000}, "a number from 1 to 65535"),
        ({"port": 1, "connections": 0}, "a number from 1 to 1000"),
        ({"port": 1, "http_path": "/a b"}, "hold no space"),
        ({"unix_path": "/" + "x" * 200}, "too long"),
        ({"port": 1, "address": "10.0.0.1"}, r"only addresses of 127/8 and 169\.254/16"),
        ({"port": 1, "address": "8.8.8.8"}, r"only addresses of 127/8 and 169\.254/16"),
        ({"port": 1, "address": "localhost"}, "an IPv4 address is needed"),
    ],
)
def test_impossible_configuration_is_refused_in_words(options: Any, words: str) -> None:
    with pytest.raises(TestbedError, match=words):
        LoadGenerator(GeneratorConfig("http", **options))


# ---- the program -----------------------------------------------------------------------------------------------------


def start_program(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    command = [str(build_generator()), "--protocol=http", f"--port={free_port()}", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)


def test_program_ends_with_its_input() -> None:
    with start_program() as program:
        output, _ = program.communicate(b"rate 100\n", timeout=PATIENCE_SECONDS)
        assert (program.returncode, output) == (0, b"")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_program_ends_cleanly_on_a_signal(number: int) -> None:
    with start_program() as program:
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write(b"stats 1\n")
        program.stdin.flush()
        program.stdout.readline()
        program.send_signal(number)
        assert program.wait(timeout=PATIENCE_SECONDS) == 0


def test_unknown_command_is_noted_and_ignored() -> None:
    with start_program(stderr=subprocess.PIPE) as program:
        output, notes = program.communicate(
            b"rate x\nrate -1\nhello\nrate 5\nstats 42\nquit\n", timeout=PATIENCE_SECONDS
        )
        assert output.count(b"\n") == 1
        assert b'"id":42' in output
        assert b'"rate_rps":5.000' in output
        assert notes.count(b"not understood") == 3


def test_program_ends_with_its_parent() -> None:
    script = (
        "import subprocess, sys, time\n"
        "print(subprocess.Popen(sys.argv[1:], stdin=0, stdout=subprocess.DEVNULL).pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    read_end, write_end = os.pipe()  # held open by this process
    command = [sys.executable, "-Sc", script, str(build_generator()), "--protocol=http", f"--port={free_port()}"]
    with subprocess.Popen(command, stdin=read_end, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        until(lambda: b"loadgen" in Path(f"/proc/{pid}/cmdline").read_bytes())
        time.sleep(0.1)  # until it has asked for the signal
        parent.kill()
    until(lambda: not Path(f"/proc/{pid}").exists() or ") Z " in Path(f"/proc/{pid}/stat").read_text())
    os.close(read_end)
    os.close(write_end)


def test_generator_outlives_the_thread_that_started_it(load: Any) -> None:
    started: list[LoadGenerator] = []
    thread = threading.Thread(target=lambda: started.append(load(port=free_port())))
    thread.start()
    thread.join()
    time.sleep(0.05)
    assert started[0].stats().rate_rps == 200.0


def test_binary_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.c"
    other.write_text("int main(void) { return 3; }")
    first = build_generator(tmp_path / "cache")
    stamp = first.stat().st_mtime_ns
    assert build_generator(tmp_path / "cache").stat().st_mtime_ns == stamp
    monkeypatch.setattr(module, "SOURCE", other)
    second = build_generator(tmp_path / "cache")
    assert second != first
    assert subprocess.run([second], check=False).returncode == 3
    other.write_text("no C at all")
    with pytest.raises(TestbedError, match="could not compile"):
        build_generator(tmp_path / "cache")
    assert sorted((tmp_path / "cache").iterdir()) == sorted([first, second])


def test_missing_compiler_and_unwritable_cache_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TestbedError, match=r"cannot keep the compiled loadgen\.c"):
        build_generator(tmp_path / "file" / "cache")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TestbedError, match=r"no C compiler .* loadgen\.c"):
        build_generator(tmp_path)
