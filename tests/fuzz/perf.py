"""What `perf stat` may print on its way to CPI: lines in JSON and CSV, cut anywhere, and its last words.

Whatever comes, the sensor answers with numbers that can be or with reasons, CPI stays within (0, 100], and the verdict
is the one without perf: no guard believes it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hypothesis import strategies as st

from rlctl.envs.host.sensors.perf import MOST_CPI, PerfSensor
from rlctl.envs.host.sensors.perf_process import FrameAssembler, parse_line
from rlctl.envs.telemetry import Quantile, Value
from tests.fuzz import inputs, shielded
from tests.fuzz.engine import Case, Target
from tests.fuzz.watch import guarded

CAPTURED = Path(__file__).parents[1] / "fixtures/perf"
EVENTS = ("cycles", "instructions", "context-switches")


def _lines(start: int) -> bytes:
    """An interval as perf 6 prints it."""
    row = '{"interval" : %d.000123, "counter-value" : "%d.000000", "unit" : "", "event" : "%s", "cgroup" : "%s", '
    row += '"event-runtime" : 812500000, "pcnt-running" : 100.00}\n'
    return "".join(row % (start, 2_400_000, event, group) for group in ("lc", "be") for event in EVENTS).encode()


CORPUS = tuple(b"".join(one.read_bytes().splitlines(keepends=True)[:12]) for one in sorted(CAPTURED.glob("*.[jc]s*")))
WORDS = tuple(one.read_bytes() for one in sorted(CAPTURED.glob("*.stderr")))
TOKENS = tuple(
    b'"interval" : 1.0|"interval":"2"|"counter-value" : "1e308"|"counter-value" : 5|"event" : "cycles"|"cgroup" : "lc"'
    b'|"cgroup" : "be"|"pcnt-running" : 0|"pcnt-running" : "nan"|"unit" : "msec"|<not counted>|<not supported>|cycles'
    b"|instructions|lc|be|;|cpu_core/cycles/|1.0;5;;cycles;lc;1;100.00".split(b"|")
)

CASES = st.fixed_dictionaries(
    {
        "first": inputs.texts((*CORPUS, _lines(1)), TOKENS),
        "then": inputs.texts((_lines(2), _lines(1) + _lines(2)), TOKENS),
        "words": st.one_of(st.just(b""), st.just(b""), inputs.texts(WORDS)),
    }
)


class _Child:
    """A perf that says what the case says, one answer a read, and ends when it has last words."""

    def __init__(self, answers: list[bytes], words: bytes) -> None:
        self._answers, self._words = answers, words

    def read(self) -> bytes:
        return self._answers.pop(0) if self._answers else b""

    def poll(self) -> int | None:
        return 1 if self._words and not self._answers else None

    def last_words(self) -> str:
        return self._words[:2000].decode(errors="replace").strip() or "nothing"

    def stop(self) -> None:
        pass


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Callable[[Case], str]]:
    """Two groups, `lc` and `be`."""
    for name in ("lc", "be"):
        (folder / name).mkdir(exist_ok=True)
    logging.getLogger("rlctl").setLevel(logging.CRITICAL)
    latency = {"tail_latency_seconds": Quantile(0.002, 0.0, 500, 1.0), "load_ratio": Value(0.3)}

    def check(case: Case) -> str:
        answers = [case["first"], case["then"]]

        def start(_command: Sequence[str]) -> _Child:
            return _Child(answers, case["words"])

        with guarded(folder):
            for line in case["first"].split(b"\n"):
                parse_line(line)
            frames = FrameAssembler([("lc", "cycles")]).feed(case["first"])
            assert all(frame.seconds > 0.0 for frame in frames)
            sensor = PerfSensor(["lc"], ["be"], folder, events=EVENTS, start=start)
            seen = [sensor.read(now) for now in (1.0, 2.0, 3.0, 4.0)]
            sensor.close()
        outcome = ""
        for now, readings in enumerate(seen, start=1):
            outcome = shielded.sane(readings)
            cpi = readings["cpi"]
            assert not isinstance(cpi, Value) or 0.0 < cpi.value <= MOST_CPI
            with_perf = shielded.allowed(shielded.telemetry({**latency, **readings}, shielded.WARM_SECONDS + now))
            without = shielded.allowed(shielded.telemetry(latency, shielded.WARM_SECONDS + now))
            assert with_perf == without
        best = [shielded.sane(readings) for readings in seen]
        return "accepted" if "accepted" in best else outcome

    yield check


TARGET = Target("perf", CASES, opened)
