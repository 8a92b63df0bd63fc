"""The load generator as a Python object: compile `loadgen.c` once, start it, change its rate, read its figures.

The program keeps time, this wrapper only talks to it. All reads and writes are non-blocking under a deadline, and the
program's stderr goes to a file. A generator that hangs is an error after the timeout, never a hang of the controller.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from rlctl.envs.closing import Closing
from rlctl.envs.errors import TestbedError
from rlctl.envs.host.latency.newest import Newest

SOURCE = Path(__file__).with_name("loadgen.c")
CLOSE_PATIENCE_SECONDS = 0.5  # it obeys in a millisecond, unless it is stopped
HIGHEST_RATE_RPS = 1e6  # loadgen.c refuses more


QUANTILES = {0.5: "p50_seconds", 0.95: "p95_seconds", 0.99: "p99_seconds"}
"""Those of the latency that are reported, and where."""


@dataclass(frozen=True, slots=True)
class GeneratorConfig:
    """Where the load goes and what a request is; set exactly one of `unix_path` and `port`.

    Attributes:
        protocol: HTTP/1.1 GET with keep-alive and `Accept-Encoding: gzip`, memcached multi-get in the text protocol,
            redis PING, or a statement of PostgreSQL's simple query protocol: user `rlctl`, database `postgres`.
        port: TCP port of the server.
        address: IPv4 address of that port, one of 127/8 or of 169.254/16, which no router passes on; there is no way
            to aim at another one.
        inside: Command before the generator's own that enters a network namespace, see
            `rlctl.envs.testbed.network.link`.
        connections: Requests outstanding at most; the others wait in the generator with their intended time.
        query: PostgreSQL's statement, a transaction by itself; or redis' command in place of PING, with a simple string
            as its answer.
        keys_per_get: Keys of one memcached request, drawn evenly from the key space.
        preload_keys: Size of the key space, written to memcached before the first request; with 0,
            the first 10 000 keys are taken to be there already.
        value_bytes: Bytes of every preloaded value.
        fifo_priority: Run under SCHED_FIFO at this priority if the kernel permits; None for normal scheduling.
        cpu: Run on this CPU only; None inherits the caller's affinity.
        seed: Fixes the gaps between arrivals and the choice of keys.
        queue_limit: Requests kept waiting at most; newer ones are dropped and counted.
    """

    protocol: Literal["http", "memcached", "postgres", "redis"]
    unix_path: Path | str | None = None
    port: int | None = None
    address: str = "127.0.0.1"
    inside: tuple[str, ...] = ()
    connections: int = 32
    http_path: str = "/"
    query: str = ""
    keys_per_get: int = 100
    preload_keys: int = 10_000
    value_bytes: int = 100
    fifo_priority: int | None = None
    cpu: int | None = None
    seed: int = 1
    queue_limit: int = 200_000

    def arguments(self) -> list[str]:
        """Command-line arguments for loadgen; a value it cannot use is refused there, at start."""
        options: dict[str, object] = {
            "protocol": self.protocol,
            "unix": self.unix_path,
            "port": self.port,
            "address": None if self.port is None else self.address,
            "connections": self.connections,
            "seed": self.seed,
            "queue-limit": self.queue_limit,
            "fifo": self.fifo_priority,
            "cpu": self.cpu,
        }
        if self.protocol == "http":
            options["path"] = self.http_path
        elif self.protocol in ("postgres", "redis"):
            options["query"] = self.query or None
        else:
            options |= {"gets": self.keys_per_get, "preload": self.preload_keys, "value-bytes": self.value_bytes}
        return [f"--{name}={value}" for name, value in options.items() if value is not None]


@dataclass(frozen=True, slots=True)
class GeneratorStats:
    """What happened since the previous `stats`.

    Latencies run from the intended send time; quantiles are within 0.4 %. A time is None when nothing completed.

    Attributes:
        monotonic_seconds: CLOCK_MONOTONIC at the end of the interval (`time.monotonic()`).
        rate_rps: Rate in force at its end.
        offered_rps: Arrivals per second, dropped ones included.
        done_rps: Replies per second.
        samples: Replies; the number behind the latencies.
        oldest_seconds: Age of the oldest request without a reply, be it sent, queued or waiting for a retry; 0 if none.
        errors: Failed requests (reset, refused, malformed reply, status other than 2xx) and failed connects.
        dropped: Arrivals thrown away because the queue was full.
        misses: Keys that memcached did not return.
        lag_p50_seconds, lag_p95_seconds, lag_p99_seconds: Quantiles of actual minus intended send time, over requests
            that had a free connection.
    """

    monotonic_seconds: float
    interval_seconds: float
    rate_rps: float
    offered_rps: float
    done_rps: float
    samples: int
    p50_seconds: float | None
    p95_seconds: float | None
    p99_seconds: float | None
    oldest_seconds: float
    outstanding: int
    errors: int
    dropped: int
    misses: int
    lag_p50_seconds: float | None
    lag_p95_seconds: float | None
    lag_p99_seconds: float | None

    def latency_seconds(self, quantile: float) -> float:
        """The latency that counts, as in `Telemetry`: the larger of one of `QUANTILES` and the oldest request's age.

        In overload the quantiles of completed requests lie.
        """
        return max(getattr(self, QUANTILES[quantile]) or 0.0, self.oldest_seconds)


def build_generator(cache: Path | None = None) -> Path:
    """The program, compiled on first use; see `compile_program`."""
    return compile_program(SOURCE, "-lm", cache=cache)


def _start(command: list[str], notes: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=notes,
            start_new_session=True,  # ctrl-C is for the controller, which then closes the generator
        )
    except OSError as error:
        raise TestbedError(f"cannot run {command[0]}: {error.strerror}") from error


START_SECONDS = 20.0
"""Limit for start and preload together."""


class LoadGenerator(Closing):
    """A running load generator; use it as a context manager, from one thread at a time.

    Args:
        rate_rps: Rate to start with, requests per second.

    Raises:
        TestbedError: It could not be built, did not start in time, or refused the configuration.
    """

    def __init__(self, config: GeneratorConfig, *, rate_rps: float = 0.0) -> None:
        binary = build_generator()
        self._received = b""
        self._serial = 0
        with contextlib.ExitStack() as on_failure:
            self._notes = on_failure.enter_context(tempfile.TemporaryFile())
            self._process = _start([*config.inside, str(binary), *config.arguments()], self._notes)
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._commands, self._answers = self._process.stdin, self._process.stdout
            on_failure.callback(self.close)
            os.set_blocking(self._commands.fileno(), False)
            os.set_blocking(self._answers.fileno(), False)
            self.stats(START_SECONDS)  # it answers once the preload is done
            self.set_rate(rate_rps)
            on_failure.pop_all()

    @property
    def pid(self) -> int:
        """Process id of the generator; still set after `close`."""
        return self._process.pid

    def set_rate(self, rate_rps: float) -> None:
        """Change the mean arrival rate at once.

        Args:
            rate_rps: Requests per second, 0 to 1e6; 0 stops arrivals.

        Raises:
            ValueError: The rate is out of range.
            TestbedError: The generator is gone or stuck.
        """
        if not (math.isfinite(rate_rps) and 0.0 <= rate_rps <= HIGHEST_RATE_RPS):
            raise ValueError(f"{rate_rps!r} is no rate: 0 to {HIGHEST_RATE_RPS:g} requests per second")
        self._send(f"rate {float(rate_rps)!r}\n")

    def forget(self) -> None:
        """Drop the requests that were not sent yet; they count as dropped.

        Raises:
            TestbedError: The generator is gone or stuck.
        """
        self._send("forget\n")

    def stats(self, timeout_seconds: float = 2.0) -> GeneratorStats:
        """Figures of the interval since the previous call (or since the start).

        Args:
            timeout_seconds: Longest wait for the answer. After a timeout that interval's figures are lost: the late
                answer is recognised and thrown away.

        Raises:
            TestbedError: No answer in time, or the generator is gone.
        """
        answer = self._ask("stats", timeout_seconds)
        return GeneratorStats(monotonic_seconds=answer.pop("t"), **answer)

    def peek(self, timeout_seconds: float = 2.0) -> Newest:
        """Up to 64 of the latencies since the previous `peek`, and the oldest request; `stats` has them all the same.

        Raises:
            TestbedError: As `stats`.
        """
        answer = self._ask("peek", timeout_seconds)
        return Newest(answer["newest_seconds"], answer["oldest_seconds"])

    def close(self) -> None:
        """End the generator and reap it; harmless when repeated."""
        with contextlib.suppress(OSError, ValueError):  # already gone, stuck or closed
            self._commands.write(b"quit\n")
        self._commands.close()
        self._answers.close()
        try:
            self._process.wait(CLOSE_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # SIGTERM is read by the very loop that did not see the end of its input
            self._process.wait()
        self._notes.close()

    def _ask(self, verb: str, timeout_seconds: float) -> dict[str, Any]:
        """The answer to a question; late ones to others are thrown away."""
        self._serial += 1
        deadline = time.monotonic() + timeout_seconds
        self._send(f"{verb} {self._serial}\n")
        while True:
            answer: dict[str, Any] = json.loads(self._read_line(deadline, timeout_seconds))
            if answer.pop("id") == self._serial:
                return answer

    def _send(self, command: str) -> None:
        try:
            self._check_open()
            if self._commands.write(command.encode()) is None:  # its pipe is full: thousands of unread commands
                raise TestbedError(f"the load generator (pid {self.pid}) no longer reads its commands")
        except BrokenPipeError as error:
            raise TestbedError(self._epitaph()) from error

    def _read_line(self, deadline: float, timeout_seconds: float) -> bytes:
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        while b"\n" not in self._received:
            left_seconds = max(deadline - time.monotonic(), 0.0)
            if not poll.poll(math.ceil(left_seconds * 1e3)):
                raise TestbedError(f"the load generator (pid {self.pid}) did not answer in {timeout_seconds:g} s")
            data = os.read(self._answers.fileno(), 1 << 16)
            if not data:
                raise TestbedError(self._epitaph())
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _check_open(self) -> None:
        if self._commands.closed:
            raise TestbedError("the load generator has been closed")

    def _epitaph(self) -> str:
        """Why it died: its own last words, else its exit code."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)
        size = os.fstat(self._notes.fileno()).st_size
        words = os.pread(self._notes.fileno(), 2000, max(size - 2000, 0)).decode(errors="replace").strip()
        return f"the load generator ended with code {self._process.returncode}: {words or 'it said nothing'}"


FLAGS = ("-std=gnu11", "-O2")
COMPILE_TIMEOUT_SECONDS = 120.0


def compile_program(source: Path, *libraries: str, headers: Sequence[Path] = (), cache: Path | None = None) -> Path:
    """The program of one C file, compiled unless this very source has been compiled before.

    Args:
        source: The C file to compile.
        libraries: Options that come after it, such as `-lm`.
        headers: Files of ours that it includes; their folders are searched.
        cache: Folder for the binary; default `$XDG_CACHE_HOME/rlctl`, else `~/.cache/rlctl`.

    Returns:
        Path of the executable; its name holds the hash of source and flags, so a stale one is never used.

    Raises:
        TestbedError: There is no compiler, it failed, or the folder cannot be written.
    """
    cache = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlctl"
    text = b"".join(file.read_bytes() for file in (source, *headers))
    digest = hashlib.sha256(text + " ".join((*FLAGS, *libraries)).encode()).hexdigest()
    binary = cache / f"{source.stem}-{digest[:32]}"
    if binary.exists():
        return binary
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise TestbedError(f"no C compiler (cc, gcc, clang) on PATH: {source.name} is compiled on first use")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            options = (*(f"-I{header.parent}" for header in headers), *libraries)
            _compile(compiler, source, options, Path(scratch, source.stem)).replace(binary)  # never half a binary
    except OSError as error:
        raise TestbedError(f"cannot keep the compiled {source.name} in {cache}: {error.strerror}") from error
    return binary


def _compile(compiler: str, source: Path, options: tuple[str, ...], output: Path) -> Path:
    command = [compiler, *FLAGS, "-o", str(output), str(source), *options]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise TestbedError(f"{compiler} took more than {COMPILE_TIMEOUT_SECONDS:g} s over {source}") from error
    except subprocess.CalledProcessError as error:
        raise TestbedError(f"{compiler} could not compile {source}: {error.stderr.strip()}") from error
    return output
