"""Tail latency of Redis (7 and later) and Valkey, by `LATENCY HISTOGRAM`: how long commands took, by powers of two.

One connection a second with two or three commands in it and answers of four types: what a client library would do
beyond that, it would do in the daemon's memory.
"""

from __future__ import annotations

import io
import math
import socket
import time
from collections.abc import Iterator, Mapping, Sequence

from rlctl.envs.errors import shown
from rlctl.envs.host.latency.figures import Figures, TimeUnit
from rlctl.envs.host.latency.histogram import Histogram, together
from rlctl.envs.telemetry import Missing, Why
from rlctl.envs.workload import SLO

OWN_COMMANDS = frozenset({"auth", "latency|histogram", "quit"})
"""What rlctl asks itself; no request of the LC."""

LONGEST_MICROSECONDS = 1_000_000
"""src/server.h of Redis, LATENCY_HISTOGRAM_MAX_VALUE: what takes longer is counted as that, so it bounds nothing."""

MOST_BYTES = 1 << 20
MOST_DEPTH = 4
MOST_ITEMS = 10_000


def ask_redis(
    address: str, commands: Sequence[str], username: str | None, password: str | None, timeout_seconds: float
) -> bytes | Missing:
    """One connection: all that the server says to `LATENCY HISTOGRAM` and before it.

    Args:
        address: HOST:PORT, or the path of a socket.
        timeout_seconds: For all of it.
    """
    words = [["AUTH", *filter(None, [username]), password]] if password is not None else []
    # it answers to QUIT, and closes: where its answer ends need not be known
    words += [["LATENCY", "HISTOGRAM", *commands], ["QUIT"]]
    deadline = time.monotonic() + timeout_seconds
    said = b""
    try:
        with _connected(address, timeout_seconds) as connection:
            connection.sendall(b"".join(map(_command, words)))
            while chunk := connection.recv(1 << 16):
                said += chunk
                if len(said) > MOST_BYTES:
                    return Missing(Why.MALFORMED, f"{address}: an answer of more than {MOST_BYTES >> 20} MiB")
                if (left := deadline - time.monotonic()) <= 0.0:
                    return Missing(Why.NO_DATA, f"{address}: no whole answer in {timeout_seconds:g} s")
                connection.settimeout(left)
    except (OSError, ValueError) as error:  # ValueError: no name of a host can be like that
        return Missing(Why.GONE, f"{address}: {getattr(error, 'strerror', None) or error}")
    return said


def _connected(address: str, timeout_seconds: float) -> socket.socket:
    if not address.startswith("/"):
        host, _, port = address.rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), timeout_seconds)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_seconds)
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def _command(words: Sequence[str]) -> bytes:
    parts = [word.encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


class RedisDigest:
    """Turns one answer after the other into figures: what came between two of them.

    A command's time is the server's own: what waited in a socket until its turn came is not in it.

    Args:
        commands: Those that were asked for; none for all.
    """

    def __init__(self, commands: Sequence[str], slo: SLO) -> None:
        self._commands, self._slo = tuple(commands), slo
        self._before: tuple[float, Mapping[str, Histogram]] | None = None

    def __call__(self, body: bytes, now_seconds: float) -> Figures | Missing:
        """Figures since the previous answer, in all the commands together."""
        said = next((one for one in replies(body) if isinstance(one, (RedisError, list))), None)
        if not isinstance(said, list):
            self._before = None
            return Missing(Why.MALFORMED, "no array came for LATENCY HISTOGRAM") if said is None else _refused(said)
        now = {name: one for name, one in _histograms(said).items() if name not in OWN_COMMANDS}
        before, self._before = self._before, (now_seconds, now)
        if before is None or now_seconds <= before[0]:
            return Missing(Why.NO_DATA, "a histogram's window takes two answers")
        if not now:
            wanted = " or ".join(self._commands) or "command"
            return Missing(Why.NO_DATA, f"no {wanted} was ever counted: CONFIG SET latency-tracking yes?")
        grown = together([histogram.since(before[1].get(name)) for name, histogram in now.items()])
        return grown.figures("Redis", TimeUnit.MICROSECONDS, self._slo, now_seconds, now_seconds - before[0])


def _refused(error: RedisError) -> Missing:
    code = str(error).partition(" ")[0]
    denied = code in ("NOAUTH", "NOPERM", "WRONGPASS") or "without any password" in str(error)
    why = Why.NO_PERMISSION if denied else Why.NO_DATA if code == "LOADING" else Why.NOT_SUPPORTED
    return Missing(why, shown(str(error))[:200])


def _histograms(said: Sequence[object]) -> dict[str, Histogram]:
    """By command.

    Raises:
        ValueError: It is no answer to LATENCY HISTOGRAM.
    """
    found = {}
    for name, about in _pairs(said):
        told = dict(_pairs(about))
        calls, buckets = told.get("calls"), list(_pairs(told.get("histogram_usec")))
        if not isinstance(name, str) or not isinstance(calls, int) or calls < 0:
            raise ValueError("not an answer to LATENCY HISTOGRAM")
        found[name] = Histogram.of({**_cumulative(buckets), math.inf: float(calls)}) or Histogram()
    return found


def _cumulative(buckets: Sequence[tuple[object, object]]) -> dict[float, float]:
    """Counts by finite bound.

    Empty buckets are left out of an answer, so that a bound's neighbour below, half of it, has the count of the one
    before.
    """
    counts: dict[float, float] = {}
    below = 0
    for bound, count in buckets:
        if not isinstance(bound, int) or not isinstance(count, int) or bound < 1 or count < below:
            raise ValueError(f"a bucket of {bound!r} microseconds with {count!r} calls")
        if bound < LONGEST_MICROSECONDS:
            counts.setdefault(float(bound // 2), float(below))
            counts[float(bound)] = float(count)
        below = count
    return counts


def _pairs(flat: object) -> Iterator[tuple[object, object]]:
    """Maps are arrays of keys and values in turn."""
    if not isinstance(flat, list) or len(flat) % 2:
        raise ValueError("not an answer to LATENCY HISTOGRAM")
    return zip(flat[::2], flat[1::2], strict=True)


class RedisError(str):
    """What the server says instead of an answer."""

    __slots__ = ()


def replies(body: bytes) -> Iterator[object]:
    """Each reply in RESP2: a status or text as str, a number as int, an array as list, a refusal as RedisError.

    Raises:
        ValueError: It is something else.
    """
    stream = io.BytesIO(body)
    while stream.tell() < len(body):
        yield _reply(stream, MOST_DEPTH)


def _reply(stream: io.BytesIO, depth: int) -> object:
    line = stream.readline()
    kind, text = line[:1], line[1:-2].decode(errors="replace")
    if not line.endswith(b"\r\n") or depth == 0:
        raise ValueError("not what Redis says")
    if kind == b"-":
        return RedisError(text)
    if kind == b"+":
        return text
    number = int(text)
    if kind == b":":
        return number
    if kind == b"$" and 0 <= number <= MOST_BYTES:
        return stream.read(number + 2)[:-2].decode(errors="replace")
    if kind == b"*" and 0 <= number <= MOST_ITEMS:
        return [_reply(stream, depth - 1) for _ in range(number)]
    raise ValueError("not what Redis says")
