"""What latency sources may be told: logs, JSON lines, endpoints, exports, a generator's figures.

Each source is read three times, while time goes on, stands still or goes back. Every reading is a number that can be,
or missing. A tail latency is one that stands in the input, by a second, plain reading of it; and where the shield
allows more than the safe allocation there is such a tail, and a load. One case in twenty goes through a real endpoint
on loopback that answers with these bytes: whole, in drips, without an end, or not in HTTP at all.
"""

from __future__ import annotations

import contextlib
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from rlctl.envs.host.latency import polled
from rlctl.envs.host.latency.figures import FigureKeys, Figures, JsonDigest, Reporter, TimeUnit
from rlctl.envs.host.latency.line_formats import JsonRequests, PostgresLines, nginx_lines
from rlctl.envs.host.latency.prometheus import PrometheusDigest, PrometheusNames
from rlctl.envs.host.sensors.sensor import Sensor
from rlctl.envs.telemetry import Missing, Quantile, Reading, Value, Why
from rlctl.envs.testbed.generator_source import GeneratorSource
from rlctl.envs.workload import SLO
from scripts.studies.realtime.cyclictest import cyclictest_lines
from tests.doubles.timed import TimedLog
from tests.fuzz import inputs, shielded
from tests.fuzz.engine import Case, Target
from tests.fuzz.watch import guarded

GOAL = SLO(shielded.TARGET_SECONDS, 0.95, 480.0)
KEYS = FigureKeys(
    tail="latency.p95", samples="n", oldest="oldest", offered_rps="offered", done_rps="rate", error_rps="bad",
    window="window", stamp="stamp", unit=TimeUnit.MILLISECONDS,
)  # fmt: skip
NAMES = PrometheusNames(
    histogram="http_seconds", labels={"job": "web"}, oldest="http_oldest", in_flight="http_in_flight"
)
TIMEOUT_SECONDS = 0.03

LOG = b"".join(b"1800000000.%03d 200 0.00%d\n" % (n, n % 9) for n in range(40))
WAKE_UPS = b"Thread 0 Interval: 200\n" + b"".join(b"       0:%8d:%8d\n" % (n, 3 + n % 9) for n in range(40))
LINES = b"".join(b'{"latency_seconds": 0.00%d, "ok": true}\n' % (n % 9) for n in range(40))
DOCUMENT = (
    b'{"latency": {"p95": 4.2, "p99": 7}, "n": 300, "oldest": 5.5, "offered": 301.5, "rate": 300.0, "bad": 0, '
    b'"window": 1000, "stamp": 17}\n'
)
SCRAPES = tuple(
    "".join(
        f'http_seconds_bucket{{job="{job}",le="{bound}"}} {count * scale}\n'
        for job in ("web", "other")
        for bound, count in (("0.002", 10), ("0.005", 280), ("0.01", 299), ("0.05", 300), ("+Inf", 300))
    ).encode() + b"http_oldest 0.004\nhttp_in_flight 3\n"
    for scale in (1, 2)
)  # fmt: skip
CAPTURED = Path(__file__).parents[1] / "fixtures/latency"
CORPUS: dict[str, tuple[bytes, ...]] = {
    "nginx": (LOG,), "cyclictest": (WAKE_UPS,), "jsonl": (LINES,),
    "json": (DOCUMENT,), "prometheus": SCRAPES,
    "postgres": ((CAPTURED / "postgres.jsonl").read_bytes(),),
}  # fmt: skip
TOKENS = tuple(
    b'0.001|0.000|-0.001|3600.001|1e-9|502|"latency_seconds":|"p95":|"n": 0|"stamp": null|le="+Inf"|le="nan"|le="-1"'
    b'|job="web"|http_seconds_bucket{|# TYPE http_seconds histogram|# EOF|{}|+Inf|NaN|1e300|0.05"} 0|\n'
    b'|} 1e308\n|"message":"duration: 0.001 ms|"ps":"BIND"|"state_code":"57014"'.split(b"|")
)  # fmt: skip
TIMES = ("1 2 3", "1 2 2", "5 4 3", "1 1e9 2", "0 1e18 1e18", "1 1.0000000001 1.0000000002", "-5 0 9")
WIRES = ("", *[""] * 60, "whole", "drip", "endless", "raw", "short")
"""How an answer comes over the wire; empty for not at all."""


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    source = draw(st.sampled_from([*CORPUS, "generator"]))
    times = draw(st.sampled_from([TIMES[0], TIMES[0], *TIMES])).encode()
    if source == "generator":
        numbers = st.sampled_from([0.0, 1.0, 0.004, -1.0, math.nan, math.inf, 1e308, 5e-324, 300.0]) | st.floats()
        given = " ".join(repr(draw(numbers)) for _ in range(7)).encode()
        return {"source": b"generator", "times": times, "first": given, "then": given, "wire": b""}
    strategy = _TEXTS[source]
    wire = draw(st.sampled_from(WIRES)) if source in ("json", "prometheus") else ""
    return {
        "source": source.encode(), "times": times, "wire": wire.encode(),
        "first": draw(strategy), "then": draw(strategy),
        "how": draw(st.sampled_from([b"append", b"append", b"truncate", b"replace"])),
    }  # fmt: skip


_TEXTS = {name: inputs.texts(corpus, TOKENS) for name, corpus in CORPUS.items()}


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Callable[[Case], str]]:
    """One file for those that follow one; one endpoint for those that ask one."""
    wire = _Wire()

    def check(case: Case) -> str:
        times = [float(one) for one in case["times"].split()]
        bodies = (case["first"], case["then"], case["first"])
        source = case["source"].decode()
        read = _of_file(source, folder, case) if source in _FILES else _of_answers(source, wire, case)
        with guarded(folder, reads="/etc", allowed=("socket.",) if case["wire"] else ()):
            seen = [read(body, now) for body, now in zip(bodies, times, strict=True)]
            read(None, times[-1])
        # A file that was truncated and has grown beyond its old end looks like one that grew: one line may be spliced.
        within = (0.0, math.inf) if case.get("how") == b"truncate" else _REFERENCE[source](b"\n".join(bodies))
        ticks = [_judged(readings, source, within) for readings in seen]
        return "accepted" if "accepted" in ticks else ticks[-1]

    yield check
    wire.close()


Read = Callable[[bytes | None, float], Mapping[str, Reading]]
"""Give the source some bytes and a time; None closes it."""

_FILES: Mapping[str, Callable[[Path], Sensor]] = {
    "nginx": lambda path: TimedLog(path, nginx_lines(wall_clock=lambda: 1_800_000_000.0), GOAL),
    "cyclictest": lambda path: TimedLog(path, cyclictest_lines(), GOAL),
    "jsonl": lambda path: TimedLog(path, JsonRequests(), GOAL),
    "postgres": lambda path: TimedLog(path, PostgresLines(), GOAL),
}


def _of_file(source: str, folder: Path, case: Case) -> Read:
    path = folder / "followed"
    path.write_bytes(b"")
    sensor = _FILES[source](path)

    def read(body: bytes | None, now: float) -> Mapping[str, Reading]:
        if body is None:
            sensor.close()
            return {}
        if case["how"] == b"replace":
            path.unlink()
        with path.open("wb" if case["how"] == b"truncate" else "ab") as file:
            file.write(body)
        return sensor.read(now)

    return read


_DIGESTS: Mapping[str, Callable[[], polled.Digest]] = {
    "json": lambda: JsonDigest(KEYS, 1.0),
    "prometheus": lambda: PrometheusDigest(NAMES, GOAL),
}


def _of_answers(source: str, wire: _Wire, case: Case) -> Read:
    """As `PolledSource` does, which takes whatever a digest raises for an answer that is malformed."""
    if source == "generator":
        return _of_generator()
    digest = _DIGESTS[source]()
    reporter = Reporter(source, GOAL, 3.0)
    last: list[Figures | Missing] = [Missing(Why.NO_DATA)]

    def read(body: bytes | None, now: float) -> Mapping[str, Reading]:
        if body is None:
            return {}
        answer: bytes | Missing = wire.fetched(body, case["wire"].decode()) if case["wire"] else body
        if isinstance(answer, Missing):
            last[0] = answer if isinstance(last[0], Missing) else last[0]
        else:
            try:
                last[0] = digest(answer, now)
            except Exception as error:  # noqa: BLE001 - so does the poller
                last[0] = Missing(Why.MALFORMED, f"raised {type(error).__name__}")
        return reporter.readings(last[0], now)

    return read


@dataclass(frozen=True)
class _Stats:
    interval_seconds: float
    monotonic_seconds: float
    samples: int
    offered_rps: float
    done_rps: float
    p95_seconds: float
    oldest_seconds: float
    errors: int = 1
    lag_p95_seconds: float | None = None


def _of_generator() -> Read:
    given: list[_Stats] = []
    source = GeneratorSource(lambda: given[-1], GOAL)

    def read(body: bytes | None, now: float) -> Mapping[str, Reading]:
        if body is not None:
            numbers = [float(one) for one in body.split()]
            numbers[2] = int(numbers[2]) if math.isfinite(numbers[2]) else 0  # a count, in the generator's own type
            given.append(_Stats(*numbers))  # type: ignore[arg-type]
        return source.read(now)

    return read


def _judged(readings: Mapping[str, Reading], source: str, within: tuple[float, float]) -> str:
    known = {name: reading for name, reading in readings.items() if name != "rejected_rps"}
    outcome = shielded.sane(known)
    tail, load = known["tail_latency_seconds"], known["load_ratio"]
    if isinstance(tail, Value):
        assert isinstance(tail, Quantile)
        assert tail.samples >= 1
        low, high = within
        assert low * 0.999 - 1e-9 <= tail.value <= high * 1.001 + 1e-9, f"{tail} is not within [{low}, {high}]"
    verdict = shielded.allowed(shielded.telemetry(known, shielded.WARM_SECONDS + 1.0))
    if not verdict.at_most(shielded.LIMITS.safe):
        assert isinstance(tail, Value)
        assert isinstance(load, Value)
        assert load.value <= 20.0
    for gone in ("tail_latency_seconds", "load_ratio"):
        less = {**known, gone: Missing(Why.NO_DATA)}
        freest = shielded.allowed(shielded.telemetry(less, shielded.WARM_SECONDS + 1.0))
        assert freest.at_most(shielded.LIMITS.safe), f"without {gone}: {freest}"
    return f"{source} {outcome}"[:120] if outcome != "accepted" else outcome


def _range(found: Sequence[float]) -> tuple[float, float]:
    legitimate = [one for one in found if 0.0 <= one <= 3600.0]
    return (min(legitimate), max(legitimate)) if legitimate else (math.inf, -math.inf)


def _floats(pattern: bytes, text: bytes, unit: float = 1.0) -> list[float]:
    found = []
    for match in re.finditer(pattern, text):
        with contextlib.suppress(ValueError):
            found.append(float(match[1]) * unit)
    return found


_NUMBER = rb'\s*:\s*"?\s*([^\s",}\]]+)'
_REFERENCE: Mapping[str, Callable[[bytes], tuple[float, float]]] = {
    "nginx": lambda text: _range(_floats(rb"(?m)^[0-9.]+ [0-9]{3} ([0-9]+\.[0-9]{3})$", text)),
    "cyclictest": lambda text: _range(_floats(rb"(?m)^ *[0-9]+: *[0-9]+: *([0-9]+)(?: +[0-9]+)?$", text, 1e-6)),
    "jsonl": lambda text: _range(_floats(rb'"latency_seconds"' + _NUMBER, text)),
    "json": lambda text: _range(_floats(rb'"p95"' + _NUMBER, text, 1e-3)),
    "prometheus": lambda text: (0.0, max(filter(math.isfinite, _floats(rb'le="([^"]*)"', text)), default=-math.inf)),
    "postgres": lambda text: (0.0, math.inf),  # a sum over the lines of a session
    "generator": lambda text: _range([float(line.split()[5]) for line in text.split(b"\n")]),
}
"""The lowest and the highest tail that an input can mean, by a regular expression."""


class _Wire:
    """An endpoint on loopback that answers one connection after the other with given bytes, well or badly."""

    def __init__(self) -> None:
        self._given: tuple[bytes, str] = (b"", "whole")
        self._server = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def fetched(self, body: bytes, how: str) -> bytes | Missing:
        """What `fetch` makes of it; the engine's clock says whether it takes too long."""
        self._given = body, how
        found = polled.fetch(f"http://127.0.0.1:{self._server.getsockname()[1]}/", TIMEOUT_SECONDS)
        assert isinstance(found, Missing) or len(found) <= polled.MOST_BODY_BYTES
        return found

    def close(self) -> None:
        """End it."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(2.0)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                with connection, contextlib.suppress(OSError):
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(1.0)
        connection.recv(1 << 16)
        body, how = self._given
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
        if how == "raw":
            connection.sendall(body)
        elif how == "short":
            connection.sendall(head % (len(body) + 100) + body)
        elif how == "endless":
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + body)
            for _ in range(96):
                connection.sendall(b"x" * (1 << 16))
        elif how == "drip":
            for byte in head % len(body) + body:
                connection.sendall(bytes([byte]))
                time.sleep(TIMEOUT_SECONDS / 6)
        else:
            connection.sendall(head % len(body) + body)


TARGET = Target("latency", _cases(), opened)
