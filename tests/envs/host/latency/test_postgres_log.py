"""PostgreSQL's log: each statement counts once, with all its steps, and one that was cut off is the slowest."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlctl.envs.host.latency import line_formats
from rlctl.envs.host.latency.figures import Figures
from rlctl.envs.host.latency.line_formats import UNFIT, PostgresLines
from rlctl.envs.host.latency.text_log import LOOK_EVERY
from rlctl.envs.telemetry import Missing, Quantile, Value, Why
from rlctl.envs.workload import SLO
from tests.doubles.timed import TimedLog

CAPTURED = Path(__file__).parents[3] / "fixtures/latency/postgres.jsonl"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "postgresql.json"
    path.touch()
    return path


@pytest.fixture
def source(log: Path, slo: SLO) -> Iterator[TimedLog]:
    opened = TimedLog(log, PostgresLines(), slo)
    opened.read(0.0)
    yield opened
    opened.close()


def row(message: str, ps: str = "SELECT", session: str = "a", **more: object) -> dict[str, object]:
    return {"session_id": session, "ps": ps, "error_severity": "LOG", "message": message, **more}


def timed_out(session: str = "a") -> dict[str, object]:
    return row("canceling statement due to statement timeout", session=session, state_code="57014")


def write(path: Path, *rows: object) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(one) + "\n" for one in rows)


def in_milliseconds(source: TimedLog, *rows: object) -> list[float]:
    lines = "".join(json.dumps(one) + "\n" for one in rows)
    return [pytest.approx(latency * 1e3) for latency in source._format.parse(lines.encode(), 1.0).latencies]


def test_a_real_log(source: TimedLog) -> None:
    """12 statements of pgbench, in three protocols and two ways of logging, and 7 of psql; one was timed out."""
    found = source._format.parse(CAPTURED.read_bytes(), 1.0)
    assert len(found.latencies) == 19
    assert (found.errors, found.rejected) == (1, 1)
    assert max(found.latencies) == pytest.approx(20.579e-3)


@pytest.mark.parametrize("texts", [("  parse p: select 1", "  bind p: select 1", "  execute p: select 1"), ("",) * 3])
def test_parse_bind_and_execute_are_one_request(source: TimedLog, texts: tuple[str, str, str]) -> None:
    """Counted one by one, two quick steps of each statement would hide how slow its third is."""
    steps = [
        row(f"duration: {took} ms{text}", ps)
        for took, ps, text in zip(("1.000", "2.000", "4.000"), ("PARSE", "BIND", "SELECT"), texts, strict=True)
    ]
    other = row("duration: 0.500 ms", "SELECT", session="b")
    assert in_milliseconds(source, *steps[:2], other, steps[2]) == [0.5, 7.0]
    assert in_milliseconds(source, *steps[1:], *steps[1:]) == [6.0, 6.0]  # prepared once, executed twice
    source._format.parse((json.dumps(steps[1]) + "\n").encode(), 1.0)
    assert in_milliseconds(source, steps[2]) == [6.0]  # though a tick came between


def test_sessions_that_never_execute_are_forgotten(source: TimedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_formats, "MOST_SESSIONS", 2)
    bound = [row("duration: 9.000 ms", "BIND", session) for session in ("a", "b", "c")]
    done = [row("duration: 1.000 ms", session=session) for session in ("a", "b", "c")]
    assert in_milliseconds(source, *bound, *done) == [1.0, 10.0, 10.0]


def test_statement_cut_off_is_the_slowest(source: TimedLog, log: Path) -> None:
    write(log, *[row("duration: 1.000 ms")] * 90, *[timed_out()] * 10)
    found = source.read(1.0)
    tail = found["tail_latency_seconds"]
    assert isinstance(tail, Missing)
    assert found["error_rps"] == Value(10.0)
    assert found["load_ratio"] == Value(0.1)


def test_clients_mistakes_are_no_requests(source: TimedLog, log: Path) -> None:
    write(log, *[row("duration: 1.000 ms")] * 20, row("checkpoint starting: time"))
    write(log, *[row("duplicate key value violates unique constraint", state_code="23505")] * 20)
    found = source.read(1.0)
    assert isinstance(found["tail_latency_seconds"], Quantile)
    assert found["done_rps"] == Value(20.0)
    assert found["error_rps"] == found["rejected_rps"] == Value(0.0)


def test_sample_stands_for_all_and_failures_for_themselves(log: Path, slo: SLO) -> None:
    source = TimedLog(log, PostgresLines(10), slo)
    source.read(0.0)
    write(log, *[row("duration: 1.000 ms  statement: select 1")] * 50, *[timed_out()] * 20)
    found = source.read(1.0)
    assert found["done_rps"] == Value(520.0)
    assert found["error_rps"] == Value(20.0)
    tail = found["tail_latency_seconds"]
    assert isinstance(tail, Quantile)  # 20 of 520
    assert tail.samples == 50
    source.close()


@pytest.mark.parametrize("line", ["no JSON", "{}", '{"message": 7}', json.dumps(row("duration: 1.000 ms", ps="")),
                                  json.dumps(row("Dauer: 1.234 ms"))])  # fmt: skip
def test_a_log_that_cannot_be_read_is_told(source: TimedLog, log: Path, line: str) -> None:
    """A process title that stands still would leave parse and bind to count as statements."""
    log.write_text(f"{line}\n" * 3)
    tail = source.read(1.0)["tail_latency_seconds"]
    assert isinstance(tail, Missing)
    assert tail.why is Why.MALFORMED
    assert tail.detail.endswith(UNFIT)


def test_server_ending_statements_is_no_wrong_log(source: TimedLog, log: Path) -> None:
    write(log, *[timed_out()] * 3)
    tail = source.read(1.0)["tail_latency_seconds"]
    assert isinstance(tail, Missing)
    assert "all its statements were ended" in tail.detail


def test_look_between_ticks_takes_nothing(log: Path, slo: SLO) -> None:
    source = TimedLog(log, PostgresLines(2), slo)
    source.read(0.0)
    write(log, row("duration: 5.000 ms", "BIND"), timed_out())
    source.read(1.0)
    write(log, row("duration: 1.000 ms"), *[timed_out()] * 3)
    looks = [source.newest() for _ in range(LOOK_EVERY)]
    assert [one for look in looks for one in look.latencies] == [0.006, math.inf, math.inf]
    found = source.read(2.0)
    assert found["error_rps"] == Value(4.0)  # two of two, for two each
    window = source._window.figures()
    assert isinstance(window, Figures)
    assert window.samples == 1
    assert max(source._window._batches[-1].latencies) == pytest.approx(0.006)
    source.close()


def test_burst_keeps_steps_of_statement_together(log: Path) -> None:
    source = TimedLog(log, PostgresLines(), SLO(0.010, quantile=0.5, max_load_rps=10_000.0))
    source.read(0.0)
    steps = [row("duration: 1.000 ms", "PARSE"), row("duration: 2.000 ms", "BIND"), row("duration: 4.000 ms")]
    write(log, *steps * 3500)
    found = source.read(1.0)
    tail = found["tail_latency_seconds"]
    assert isinstance(tail, Quantile)
    assert tail.value == pytest.approx(0.007)
    assert found["load_ratio"] == Value(pytest.approx(0.35, rel=0.05))
    source.close()
