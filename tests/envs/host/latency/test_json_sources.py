"""Latency from JSON endpoints and from files of JSON lines."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.host.decode import parse_quantity
from rlctl.envs.host.latency.figures import (
    FIRST_ERROR_STATUS,
    LONGEST_SECONDS,
    FigureKeys,
    Figures,
    JsonDigest,
    Reporter,
    TimeUnit,
    lookup,
)
from rlctl.envs.host.latency.line_formats import JsonRequests, RequestKeys, documents
from rlctl.envs.host.latency.newest import NOTHING, Newest
from rlctl.envs.host.latency.polled import PolledSource
from rlctl.envs.host.latency.text_log import LOOK_EVERY, LOOK_LINES, MOST_LINES, TextLog, sampled
from rlctl.envs.telemetry import Missing, Quantile, Value, Why
from rlctl.envs.workload import SLO
from tests.doubles.timed import TimedLog
from tests.waiting import reading, until

near: Any = pytest.approx  # its own type is not that of a number

KEYS = FigureKeys(tail="lat.p95", samples="n", oldest="lat.old", offered_rps="rps.0", unit=TimeUnit.MILLISECONDS)
GOOD = {"lat": {"p95": 4.0, "old": 12.5}, "n": 300, "rps": [310]}


def append(path: Path, *rows: object) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def test_dotted_keys_and_units() -> None:
    found = KEYS.figures(GOOD, 5.0, 1.0)
    assert isinstance(found, Figures)
    assert found == Figures(5.0, 1.0, 300, 0.004, 0.0125, offered_rps=310.0, done_rps=300.0)
    assert lookup(GOOD, "rps.1") is None
    assert lookup(GOOD, "lat.p95.deeper") is None


def test_what_is_absent_or_wrong_names_its_key() -> None:
    found = KEYS.figures({"lat": {"p95": "fast"}, "n": 3}, 0.0, 1.0)
    assert isinstance(found, Figures)
    assert isinstance(found.tail_seconds, Missing)
    assert found.tail_seconds.why is Why.MALFORMED
    assert "lat.p95" in found.tail_seconds.detail
    assert isinstance(found.oldest_seconds, Missing)


def test_tail_without_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="samples"):
        FigureKeys(tail="p95")


def test_a_rate_stands_in_for_samples() -> None:
    found = FigureKeys(tail="p95", done_rps="rps").figures({"p95": 0.1, "rps": 50}, 0.0, 2.0)
    assert isinstance(found, Figures)
    assert found.samples == 100


def test_samples_stand_in_for_a_rate() -> None:
    keys = FigureKeys(tail="p95", samples="n", window="w")

    def done(**document: float) -> float | Missing:
        found = keys.figures({"p95": 0.001, **document}, 0.0, 2.0)
        assert isinstance(found, Figures)
        return found.done_rps

    assert done(n=100) == 50.0
    assert done(n=100, w=4.0) == 25.0
    assert isinstance(done(n=100, w=0.0), Missing)
    assert isinstance(done(), Missing)


def test_an_endpoint_that_repeats_itself_grows_old() -> None:
    digest = JsonDigest(FigureKeys(tail="p95", samples="n", stamp="at"), 1.0)
    ends = []
    for second, at in enumerate((7, 7, math.nan, math.nan)):
        found = digest(json.dumps({"p95": 1, "n": 1, "at": at}).encode(), float(second))
        assert isinstance(found, Figures)
        ends.append(found.end_seconds)
    assert ends == [0.0, 0.0, 2.0, 2.0]


def test_figures_without_their_stamp_are_none() -> None:
    """Or those of a program that has stopped counting would be new ones for ever."""
    found = JsonDigest(FigureKeys(tail="p95", samples="n", stamp="at"), 1.0)(b'{"p95": 1, "n": 1, "ts": 7}', 0.0)
    assert isinstance(found, Missing)
    assert found.detail == "'at' is absent or null; there is: p95, n, ts"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["lat", "p95", "n"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60))
def test_no_answer_raises_or_gives_insane_figures(body: bytes) -> None:
    found = JsonDigest(KEYS, 1.0)(body, 0.0)
    if isinstance(found, Figures):
        assert found.samples >= 0
        for number in (found.tail_seconds, found.oldest_seconds, found.offered_rps):
            assert isinstance(number, Missing) or (math.isfinite(number) and number >= 0.0)


def test_slow_endpoint_does_not_hold_up_tick(slo: SLO, serve: Callable[..., str]) -> None:
    def slow() -> tuple[int, bytes]:
        time.sleep(0.4)
        return 200, b"{}"

    source = PolledSource("json", serve(slow), JsonDigest(KEYS, 1.0), slo, interval_seconds=0.05, timeout_seconds=0.1)
    try:
        before = time.thread_time()
        found = source.read(time.monotonic())["tail_latency_seconds"]
        assert isinstance(found, Missing)
        assert time.thread_time() - before < 0.3  # read does not spin either
        until(lambda: "timed out" in getattr(source.read(time.monotonic())["tail_latency_seconds"], "detail", ""))
    finally:
        source.close()


def test_requests_of_the_window(tmp_path: Path, slo: SLO) -> None:
    path = tmp_path / "requests.jsonl"
    path.touch()
    source = TimedLog(path, JsonRequests(RequestKeys(latency="ms", ok="ok", unit=TimeUnit.MILLISECONDS)), slo)
    source.read(0.0)
    append(path, *({"ms": ms, "ok": ms != 3} for ms in range(1, 22)), {"no": "latency"})
    found = source.read(1.0)
    assert set(found) == set(source.provides)
    assert found["tail_latency_seconds"] == Quantile(near(0.021), 0.0, samples=21, window_seconds=1.0)
    assert found["done_rps"] == Value(22.0)
    assert found["error_rps"] == Value(1.0)
    assert found["rejected_rps"] == Value(1.0)
    silent = source.read(2.0)["tail_latency_seconds"]
    assert isinstance(silent, Missing)
    assert silent.why is Why.NO_DATA
    source.close()


@pytest.mark.parametrize("bad", ['{"ms": null}', '{"ms": 1e12}', '{"ms": NaN}', '{"ms": -1}', "no JSON"])
def test_line_without_latency_is_slowest_request_of_all(tmp_path: Path, slo: SLO, bad: str) -> None:
    """Time-outs that a service logs as null or as a huge number once left its tail as good as ever."""
    path = tmp_path / "requests.jsonl"
    path.touch()
    source = TimedLog(path, JsonRequests(RequestKeys(latency="ms", unit=TimeUnit.MILLISECONDS)), slo)
    source.read(0.0)
    good = [{"ms": ms} for ms in range(1, 97)]
    append(path, *good)
    with path.open("a") as file:
        file.write(f"{bad}\n" * 4)
    assert source.read(1.0)["tail_latency_seconds"] == Quantile(near(0.096), 0.0, samples=96, window_seconds=1.0)
    append(path, *good)
    with path.open("a") as file:
        file.write(f"{bad}\n" * 7)
    found = source.read(2.0)
    tail = found["tail_latency_seconds"]
    assert isinstance(tail, Missing)
    assert tail.why is Why.MALFORMED
    assert "6.8% of 103 lines" in tail.detail
    assert found["load_ratio"] == Value(0.103)
    source.close()


def test_requests_that_fail_fast_are_no_good_news(tmp_path: Path, slo: SLO) -> None:
    path = tmp_path / "requests.jsonl"
    path.touch()
    source = TimedLog(path, JsonRequests(RequestKeys(latency="ms", ok="ok", unit=TimeUnit.MILLISECONDS)), slo)
    source.read(0.0)
    for tick, failures, believed in ((1.0, 5, True), (2.0, 6, False), (3.0, 100, False)):
        append(path, *({"ms": 1, "ok": number >= failures} for number in range(100)))
        tail = source.read(tick)["tail_latency_seconds"]
        assert isinstance(tail, Quantile if believed else Missing), failures
        if isinstance(tail, Missing):
            assert tail.why is Why.FAILING
            assert f"{failures} of 100 requests" in tail.detail
    source.close()


def test_json_access_log_tells_failures_by_status(tmp_path: Path, slo: SLO) -> None:
    """HAProxy's: 500, 503 and 504 are failures, and so would be one without a status; a client's 400 is none."""
    path = tmp_path / "haproxy.jsonl"
    path.touch()
    source = TimedLog(path, JsonRequests(RequestKeys(latency="ms", status="status", unit=TimeUnit.MILLISECONDS)), slo)
    source.read(0.0)
    path.write_bytes((Path(__file__).parents[3] / "fixtures/latency/haproxy.jsonl").read_bytes())
    append(path, {"ms": 3}, {"ms": 3, "status": -1}, {"ms": 3, "status": 0})
    found = source.read(1.0)
    assert found["done_rps"] == Value(12.0)
    assert found["error_rps"] == Value(6.0)
    source.close()


@pytest.mark.parametrize("padding", [0, 190])
def test_burst_is_sampled_with_its_whole_load(tmp_path: Path, padding: int) -> None:
    """Bytes beyond a megabyte a tick were once skipped in silence, and the load fell as it rose."""
    path = tmp_path / "requests.jsonl"
    path.touch()
    source = TimedLog(path, JsonRequests(RequestKeys(latency="ms")), SLO(0.010, quantile=0.95, max_load_rps=50_000.0))
    source.read(0.0)
    lines = [f'{{"ms": {number % 1000 / 1e3:.6f}{" " * padding}}}\n' for number in range(51_900)]
    path.write_text("".join(lines))
    found = source.read(1.0)
    assert isinstance(tail := found["tail_latency_seconds"], Quantile)
    assert tail.value == near(0.95, abs=0.01)
    assert tail.samples <= MOST_LINES
    assert found["load_ratio"] == Value(near(1.038, rel=0.03))
    source.close()


@given(st.lists(JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=20), max_size=8))
def test_one_bad_line_does_not_cost_the_others(rows: list[bytes]) -> None:
    good = b'{"latency_seconds": 0.5}'
    found = documents(b"\n".join([good, *rows, good]) + b"\n")
    assert found[0] == found[-1] == {"latency_seconds": 0.5}


@pytest.mark.parametrize(
    "rows",
    [
        ['{"latency_seconds": 2}, {"latency_seconds": 2}', '{"latency_seconds": 2, "x": [{"y": 1}', '{"z": 2}]}'],
        ['{"latency_seconds": 2', '"x": 1}, {"latency_seconds": 2}'],
    ],
)
def test_halves_of_a_line_are_no_documents(rows: list[str]) -> None:
    """Joined by commas they were as many documents as lines."""
    found = JsonRequests().parse("".join(row + "\n" for row in rows).encode(), 1.0)
    assert list(found.latencies) == []
    assert found.rejected == len(rows)


def test_window_ends_when_the_file_was_read(tmp_path: Path) -> None:
    """25 of 100 requests a second: a tick that was 11 s late once showed a load of 2.75, and the next one of 0."""
    path = tmp_path / "requests"
    path.touch()
    source = TimedLog(path, JsonRequests(), SLO(0.010, max_load_rps=100.0))
    source.read(0.0)
    loads = []
    for begun, read in ((1.0, 12.0), (12.0, 13.0)):
        append(path, *[{"latency_seconds": 0.002}] * round(25 * (read - source.now)))
        source.now = read
        loads.append(TextLog.read(source, begun)["load_ratio"])
    assert loads == [Value(near(0.25))] * 2
    source.close()


def test_tick_that_lacks_lines_has_no_load(tmp_path: Path, slo: SLO) -> None:
    path = tmp_path / "requests"
    path.touch()
    source = TimedLog(path, JsonRequests(), slo)
    append(path, *[{"latency_seconds": 0.002}] * 30)
    source.read(0.0)
    os.truncate(path, 0)
    append(path, *[{"latency_seconds": 0.002}] * 20)
    found = source.read(1.0)
    assert isinstance(load := found["load_ratio"], Missing)
    assert "truncated" in load.detail
    assert isinstance(found["tail_latency_seconds"], Quantile)
    assert found["log_gaps"] == Value(1.0)
    append(path, *[{"latency_seconds": 0.002}] * 20)
    assert source.read(2.0)["load_ratio"] == Value(0.02)
    source.close()


NUMBER = (
    st.integers(-3, 5) | st.floats() | st.sampled_from([10**400, 200, 404, 500, 503, 7_200, True, "0.5", "x", None])
)
ROW = st.dictionaries(st.sampled_from(["latency_seconds", "ok", "status"]), NUMBER) | st.builds(
    lambda latency, status: {"latency_seconds": latency, "ok": True, "status": status},
    st.floats(0.0, 9.0),
    st.sampled_from([200, 500]),
)


@given(st.lists(ROW | st.lists(NUMBER, max_size=2) | NUMBER, max_size=8), st.booleans(), st.booleans())
def test_lines_together_are_read_as_each_by_itself(rows: list[object], by_ok: bool, by_status: bool) -> None:
    """Lines that are alike are read column by column, and so none of them may become sounder by that."""
    keys = RequestKeys(ok="ok" if by_ok else None, status="status" if by_status else None)
    source = JsonRequests(keys)
    lines = [json.dumps(row).encode() + b"\n" for row in rows]
    together, single = source.parse(b"".join(lines), 1.0), [source.parse(line, 1.0) for line in lines]
    assert list(together.latencies) == [latency for one in single for latency in one.latencies]
    assert together.errors == sum(one.errors for one in single)
    assert together.rejected == sum(one.rejected for one in single)
    assert len(together.latencies) + together.rejected == len(rows)
    for row, one in zip(rows, single, strict=True):
        known = parse_quantity(lookup(row, "latency_seconds"), LONGEST_SECONDS)
        assert list(one.latencies) == ([] if isinstance(known, Why) else [known])
        status = parse_quantity(lookup(row, "status"))
        failed = (by_ok and not lookup(row, "ok")) or (
            by_status and (isinstance(status, Why) or not 100 <= status < FIRST_ERROR_STATUS)
        )
        assert one.errors == (failed and one.rejected == 0)


@given(st.lists(st.binary(max_size=3).map(lambda line: line.replace(b"\n", b"")), max_size=60), st.integers(1, 3))
def test_sample_is_of_every_nth_run(rows: list[bytes], run: int) -> None:
    lines = b"".join(row + b"\n" for row in rows)
    sample, weight = sampled(lines, 7, run)
    assert weight == max(-(-len(rows) // 7), 1)
    if weight == 1:
        assert sample == lines
    else:
        firsts = range(weight // 2 * run, len(rows), weight * run)
        assert sample == b"".join(row + b"\n" for first in firsts for row in rows[first : first + run])


@given(st.lists(st.lists(ROW, max_size=4), min_size=1, max_size=6), st.binary(max_size=3))
def test_taken_between_ticks_is_in_their_readings(pieces: list[list[object]], torn: bytes) -> None:
    """As if it had been read in one go, sound or not."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlctl.envs.host.latency.text_log.EARLY_BYTES", 1)
        path = Path(folder, "requests")
        path.touch()
        looked, unlooked = (TimedLog(path, JsonRequests(), SLO(0.010), window_seconds=2.0) for _ in range(2))
        for tick, piece in enumerate(pieces):
            for row in piece:
                append(path, row)
                with path.open("ab") as file:
                    file.write(torn)
                looked.newest()
            # Which of its lines a detail is about may differ, for several have something wrong.
            found, wanted = (
                {
                    name: type(one)(one.why) if isinstance(one, Missing) else one
                    for name, one in source.read(float(tick)).items()
                }
                for source in (looked, unlooked)
            )
            assert found == wanted
        looked.close()
        unlooked.close()


def test_stream_in_pieces_is_weighed_as_one(tmp_path: Path) -> None:
    path = tmp_path / "requests"
    path.touch()
    source = TimedLog(path, JsonRequests(RequestKeys(latency="ms")), SLO(0.010, quantile=0.95))
    for second in range(3):
        for piece in range(25):
            with path.open("a") as file:
                numbers = range(37 * piece, 37 * piece + 2000)
                file.writelines(f'{{"ms": {n % 1000 / 1e3 if n % 100 else "null"}}}\n' for n in numbers)
            for _ in range(LOOK_EVERY):
                source.newest()
        found = source.read(float(second))
    source.close()
    assert isinstance(tail := found["tail_latency_seconds"], Quantile)
    assert tail.value == near(0.96, abs=0.01), "a hundredth has no latency and counts as the slowest"
    assert MOST_LINES / 2 < tail.samples <= 1.1 * MOST_LINES
    assert found["done_rps"] == Value(near(50_000, rel=0.03))
    assert found["rejected_rps"] == Value(near(500, rel=0.5))


def test_lines_without_latency_say_what_they_have_instead(tmp_path: Path, slo: SLO) -> None:
    path = tmp_path / "requests.jsonl"
    path.touch()
    source = TimedLog(path, JsonRequests(RequestKeys(latency="nosuch")), slo)
    source.read(0.0)
    append(path, {"ms": 3}, {"ms": 4})
    found = source.read(1.0)
    source.close()
    tail, load = found["tail_latency_seconds"], found["load_ratio"]
    assert isinstance(tail, Missing)
    assert tail.why is Why.MALFORMED
    assert tail.detail.endswith("no 'nosuch' in its lines; there is: ms")
    assert isinstance(load, Missing)  # a load of 0 would be good news from a source that nobody can read


def test_file_that_is_not_there_is_named_once(tmp_path: Path, slo: SLO) -> None:
    source = TimedLog(tmp_path / "x.jsonl", JsonRequests(), slo)
    tail = source.read(0.0)["tail_latency_seconds"]
    assert isinstance(tail, Missing)
    assert tail.detail == f"{tmp_path / 'x.jsonl'}: No such file or directory"


def test_absent_member_is_told_with_the_others() -> None:
    found = FigureKeys(tail="p95", samples="n").figures({"p99": 1.0, "n": 3}, 0.0, 1.0)
    assert isinstance(found, Figures)
    assert isinstance(found.tail_seconds, Missing)
    assert found.tail_seconds.detail == "'p95' is absent or null; there is: p99, n"


def test_silent_endpoint_is_told_with_why(slo: SLO, serve: Callable[..., str]) -> None:
    status = 200
    url = serve(lambda: (status, json.dumps(GOOD).encode()))
    source = PolledSource("json", url, JsonDigest(KEYS, 1.0), slo, interval_seconds=0.02, stale_seconds=0.1)
    try:
        reading(source, "tail_latency_seconds", Quantile)
        status = 503
        said = re.compile(rf"json {url}: nothing new for \d+\.\d s \(status 503\)")
        until(lambda: said.fullmatch(getattr(source.read(time.monotonic())["tail_latency_seconds"], "detail", "")))
    finally:
        source.close()


def test_silence_is_told_once(slo: SLO) -> None:
    silent = Figures(0.0, 1.0, tail_seconds=Missing(Why.NO_DATA, "no request completed"))
    told = Reporter("json http://x", slo, 3.0).readings(silent, 0.5)["tail_latency_seconds"]
    assert isinstance(told, Missing)
    assert told.detail == "json http://x: no request completed in 1.0 s"


def test_requests_are_looked_at_before_the_reading(tmp_path: Path, slo: SLO) -> None:
    path = tmp_path / "requests"
    path.touch()
    source = TimedLog(path, JsonRequests(RequestKeys(unit=TimeUnit.MILLISECONDS, latency="ms")), slo)
    source.read(1.0)
    append(path, {"ms": 4.0}, {"ms": None}, {"ms": 30.0})
    looks = [source.newest() for _ in range(2 * LOOK_EVERY)]
    assert [look for look in looks if look != NOTHING] == [Newest((0.004, 0.030, math.inf))], "the slowest of all"
    append(path, {"ms": 5.0})
    tail = source.read(2.0)["tail_latency_seconds"]
    assert isinstance(tail, Missing), "of four lines one has no latency"
    assert "25.0% of 4 lines" in tail.detail
    append(path, *({"ms": n} for n in range(100)))
    looks = [source.newest() for _ in range(LOOK_EVERY)]
    assert list(looks[-1].latencies) == near([n / 1e3 for n in range(100 - LOOK_LINES, 100)]), "of a burst the newest"
    source.close()


def test_endpoint_says_once_what_next_tick_will_read(serve: Callable[..., str], slo: SLO) -> None:
    document = {"p95": 4.0, "old": 30.0, "n": 300, "stamp": 1}
    keys = FigureKeys(tail="p95", samples="n", oldest="old", stamp="stamp", unit=TimeUnit.MILLISECONDS)
    url = serve(lambda: (200, json.dumps(document).encode()))
    source = PolledSource("json", url, JsonDigest(keys, 1.0), slo, interval_seconds=0.02)
    assert until(lambda: (one := source.newest()) != NOTHING and one) == Newest(tail_seconds=0.030)
    assert source.newest() == NOTHING, "the stamp is the same"
    document["stamp"], document["n"] = 2, 0
    time.sleep(0.1)
    assert source.newest() == NOTHING, "of no request there is no latency"
    source.close()
