"""The law of `kind: tcp`: what two time stamps and two counts of a connection tell of its requests."""

from __future__ import annotations

import numpy as np
import pytest

from rlctl.envs.host.latency.inet_diag import Connections
from rlctl.envs.host.latency.tcp_requests import STREAM_SECONDS, RequestTracker, TcpLook
from rlctl.envs.host.latency.tcp_window import TcpWindow

JIFFY = 0.004


def connection(
    received: int = 0, sent: int = 0, segments_in: int = 0, segments_out: int = 0, *,
    cookie: int = 1, unread: int = 0, unacked: int = 0, acked: int | None = None, bytes_in: int | None = None,
    unsent: int = 0,
) -> dict[str, int]:  # fmt: skip
    """One connection as the kernel lists it; of small requests, which the peer acknowledges with the next one."""
    return {
        "cookie": cookie, "unread": unread, "unacked": unacked, "received": received, "sent": sent,
        "acked": received if acked is None else acked, "advertised_mss": 1460,
        "bytes_in": 60 * segments_in if bytes_in is None else bytes_in,
        "segments_in": segments_in, "segments_out": segments_out, "unsent": unsent, "best_round_trip": 100,
    }  # fmt: skip


def listing(*rows: dict[str, int]) -> Connections:
    rows = tuple(sorted(rows, key=lambda row: row["cookie"]))
    columns = {name: np.array([row[name] for row in rows], np.int64) for name in Connections.__slots__}
    return Connections(**columns | {"cookie": columns["cookie"].astype(np.uint64)})


def looks(*states: dict[str, int] | None) -> tuple[RequestTracker, list[TcpLook]]:
    """A tracker that has seen one connection in these states, 20 ms apart; None where it is not there."""
    tracker = RequestTracker(20.0)
    seen = [tracker.see(0.02 * k, listing(*filter(None, [state]))) for k, state in enumerate(states)]
    return tracker, seen


def test_data_after_the_reply_is_a_waiting_request() -> None:
    _, (_, look) = looks(connection(40, 20, 1, 1), connection(8, 40, 2, 1))
    assert look.ages.tolist() == [0.008]


def test_unread_data_waits_whatever_the_times_say() -> None:
    _, (_, look) = looks(connection(40, 20, 1, 1), connection(8, 8, 2, 1, unread=60))
    assert look.ages.tolist() == [0.008]


def test_a_reply_tells_what_its_request_took() -> None:
    _, (_, look) = looks(connection(400, 380, 1, 1), connection(16, 4, 2, 2))
    assert look.at_least.tolist() == [pytest.approx(0.012)]
    assert look.ages.size == 0


def test_a_waiting_request_is_measured_though_another_follows() -> None:
    """A closed loop: the reply goes out, and the next request comes within the same look."""
    _, (*_, look) = looks(connection(400, 380, 1, 1), connection(4, 384, 2, 1), connection(8, 12, 3, 2))
    assert look.at_least.tolist() == [pytest.approx(0.012)]
    assert look.ages.tolist() == [0.008]


def test_an_idle_keepalive_never_waits() -> None:
    for idle in (connection(90_000, 89_996, 5, 5), connection(90_000, 90_000, 5, 5, acked=89_960)):
        _, (first, second) = looks(idle, idle)
        assert first.ages.size == second.ages.size == 0


def test_a_server_that_speaks_first_is_idle() -> None:
    _, (*_, look) = looks(None, connection(12, 8, 0, 1))
    assert look.ages.size == 0


def test_counts_decide_within_one_jiffy() -> None:
    """Reply and next request in one jiffy: where each is one segment, their number tells which came last."""
    before = connection(400, 380, 1, 1), connection(8, 4, 3, 3)
    _, (*_, look) = looks(*before, connection(12, 12, 5, 4))
    assert look.ages.tolist() == [0.012]
    _, (*_, look) = looks(*before, connection(12, 12, 5, 5))
    assert look.ages.size == 0


def test_an_upload_is_one_request() -> None:
    body = 60 + 3 * 1448
    _, (_, look) = looks(connection(400, 380, 1, 1), connection(12, 4, 5, 2, bytes_in=body))
    assert look.weights.sum() == 1.0


def test_a_new_connection_counts_from_its_first_request() -> None:
    _, (*_, look) = looks(None, None, connection(12, 8, 3, 3))
    assert look.weights.sum() == 3.0


def test_a_connection_that_ends_unanswered_took_as_long() -> None:
    _, (*_, look) = looks(connection(400, 380, 1, 1), connection(16, 400, 2, 1), None)
    assert (look.at_least.tolist(), look.at_most.tolist()) == ([pytest.approx(0.016)], [pytest.approx(0.036)])


def test_a_request_before_another_lies_between_bounds() -> None:
    """It waited for 8 ms at a look; by the next, 20 ms later, two more had come, the last one 4 ms ago."""
    _, (*_, look) = looks(connection(400, 380, 1, 1), connection(8, 40, 2, 1), connection(4, 6, 4, 3))
    assert look.requests == 2.0
    assert look.at_least.tolist() == [pytest.approx(0.008), 0.0]
    assert look.at_most.tolist() == [pytest.approx(0.024), pytest.approx(0.020)]


def test_a_reply_on_the_link_waits_for_arrival() -> None:
    """The reply went out at once, in five segments, and was acknowledged 36 ms after the request came."""
    before, sent = connection(400, 380, 1, 1), {"segments_in": 2, "segments_out": 6}
    _, (_, late, done) = looks(before, connection(28, 24, unacked=5, **sent), connection(48, 44, acked=12, **sent))
    assert (late.ages.tolist(), late.requests) == ([0.028], 0.0)
    assert (done.ages.size, done.at_least.tolist(), done.at_most.tolist()) == (0, *[[pytest.approx(0.036)]] * 2)


def test_few_looks_tell_the_same_tail() -> None:
    """Sixteen looks a second at requests of 4 ms that follow one another: no tail of half a pause between two looks."""
    random = np.random.default_rng(5)
    arrivals = np.cumsum(random.exponential(1 / 200, 4000))
    latencies = random.lognormal(np.log(0.004), 0.5, 4000)
    window, told = TcpWindow(1.0, 0.95, JIFFY), []
    for k, look in enumerate(simulated(latencies, arrivals, np.arange(0.0, arrivals[-1], 0.0627), 8)):
        window.add(look)
        if k % 16 == 15:
            told.append(window.figures().tail_seconds)
    assert np.median(told) == pytest.approx(np.quantile(latencies, 0.95), abs=0.001)
    assert np.quantile(told, 0.9) < np.quantile(latencies, 0.95) + JIFFY


def test_several_requests_in_flight_are_found_out() -> None:
    """HTTP/2 and pipelining: requests come while one waits, again and again."""
    serial, _ = looks(*(connection(4 * k, 1000 + 20 * k, 50, 1) for k in range(60)))
    assert not serial.overlapping
    several, _ = looks(*(connection(4, 1000 + 20 * k, 50 + k, 1) for k in range(60)))
    assert several.overlapping


@pytest.mark.parametrize(("streams", "overlapping"), [(8, True), (1, False)])
def test_close_looks_find_out_busy_streams(streams: int, overlapping: bool) -> None:
    """200 replies a second on each connection: between two usual looks one always goes out."""
    dice, tracker = np.random.default_rng(1), RequestTracker(20.0)
    each = [[dice.exponential(0.04, (2, 1500)) for _ in range(streams)] for _ in range(4)]
    ins, outs = [], []
    for own in each:
        ends = [np.cumsum(gaps + took) for gaps, took in own]
        outs.append(np.sort(np.concatenate(ends)))
        ins.append(np.sort(np.concatenate([end - took for end, (_, took) in zip(ends, own, strict=True)])))
    for at in (second + within for second in range(50) for within in (0.5, 0.503, 0.55, 0.6)):
        rows = []
        for cookie, (begun, ended) in enumerate(zip(ins, outs, strict=True), start=1):
            counts = [int(np.searchsorted(times, at)) for times in (begun, ended)]
            last = [
                float(times[count - 1]) if count else -9.0 for times, count in zip((begun, ended), counts, strict=True)
            ]
            jiffies = [int(at / JIFFY) - int(time / JIFFY) for time in last]
            rows.append(connection(4 * jiffies[0], 4 * jiffies[1], *counts, cookie=cookie))
        tracker.see(at, listing(*rows))
    assert tracker.overlapping == overlapping


def test_an_upload_in_pieces_is_no_overlap() -> None:
    upload, _ = looks(*(connection(4, 1000 + 20 * k, 50 + k, 1, bytes_in=1448 * k) for k in range(60)))
    assert not upload.overlapping


def test_a_websocket_is_no_request_for_long() -> None:
    tracker = RequestTracker(20.0)
    age = round(1e3 * STREAM_SECONDS) + 1000
    socket = connection(4, 900, 7, 3, cookie=9)
    tracker.see(0.0, listing(socket, connection(40, 20, 1, 1)))
    for k in range(1, 31):
        tracker.see(k, listing(socket | {"received": 1000 * k}, connection(40, 20, 1 + k, 1 + k)))
    after = tracker.see(age * 1e-3, listing(socket | {"received": age}, connection(40, 20, 31, 31)))
    assert after.ages.size == 0


def test_an_lc_that_hangs_is_no_stream() -> None:
    tracker = RequestTracker(20.0)
    tracker.see(0.0, listing(connection(4, 900, 7, 3)))
    assert tracker.see(100.0, listing(connection(100_000, 100_900, 7, 3))).ages.tolist() == [100.0]


def simulated(latencies: np.ndarray, arrivals: np.ndarray, looks_at: np.ndarray, connections: int) -> list[TcpLook]:
    """What a tracker makes of an open-loop client: each request goes to a connection that is free."""
    free, events = [0.0] * connections, [[] for _ in range(connections)]
    for arrival, latency in zip(arrivals, latencies, strict=True):
        chosen = min(range(connections), key=free.__getitem__)
        start = max(arrival, free[chosen])
        free[chosen] = start + latency
        events[chosen].append((start, start + latency))
    tracker, seen = RequestTracker(20.0), []
    for at in looks_at:
        rows = []
        for cookie, own in enumerate(events, start=1):
            starts, ends = [s for s, _ in own if s <= at], [e for _, e in own if e <= at]
            jiffies = [int(at / JIFFY) - int(max(times, default=-9.0) / JIFFY) for times in (starts, ends)]
            rows.append(connection(4 * jiffies[0], 4 * jiffies[1], len(starts), len(ends), cookie=cookie))
        seen.append(tracker.see(float(at), listing(*rows)))
    return seen


def one_late_in(others: int) -> float:
    """The tail of a second with one request of 80 ms, after so many of 4 ms in the seconds before it."""
    window, nothing = TcpWindow(1.0, 0.95, JIFFY), np.empty(0)
    for second in range(9):
        took = np.full(1, 0.080) if second == 8 else np.full(others // 8, 0.004)
        window.add(TcpLook(float(second), 1.0, took, took, np.ones(len(took)), len(took), nothing, nothing, 4, 0))
    tail = window.figures().tail_seconds
    assert isinstance(tail, float)
    return tail


def test_one_late_request_of_few_is_a_miss() -> None:
    assert one_late_in(8) > 0.075


def test_one_late_request_of_forty_is_none() -> None:
    assert one_late_in(40) < 0.010


@pytest.mark.parametrize(("connections", "least", "most"), [(8, 0.05, 0.1), (2, 0.0, 0.008)])
def test_a_queue_in_the_client_counts(connections: int, least: float, most: float) -> None:
    """Of 1000 requests a second none is done for 100 ms; two connections are a client that takes turns."""
    window, nothing = TcpWindow(1.0, 0.95, JIFFY), np.empty(0)
    for k in range(50):
        stalled, drains = 30 <= k < 35, 35 <= k < 38
        done = 0 if stalled else 54 if drains else 20
        waiting = np.full(connections, 0.02 * (k - 29) if stalled else 0.001) if stalled or drains else nothing
        took = np.full(1, 0.001) if done else nothing
        weights = np.full(len(took), float(done))
        window.add(TcpLook(0.02 * k, 0.02 * (k > 0), took, took, weights, done, waiting, nothing, connections, 0))
    tail = window.figures().tail_seconds
    assert isinstance(tail, float)
    assert least <= tail <= most


@pytest.mark.parametrize("kind", ["lognormal", "bimodal", "stalls"])
@pytest.mark.parametrize("every_seconds", [0.02, 0.1])
def test_the_tail_is_near_the_truth(kind: str, every_seconds: float) -> None:
    """Within a jiffy and a fifth of the client's own p95, at 50 and at 10 looks a second."""
    random = np.random.default_rng(7)
    arrivals = np.cumsum(random.exponential(1 / 150, 1500))
    latencies = random.lognormal(np.log(0.008), 0.7, 1500)
    if kind == "bimodal":
        latencies = np.where(random.random(1500) < 0.15, 0.05, 0.003)
    elif kind == "stalls":
        latencies = np.where(arrivals % 2.0 < 0.15, 0.12, 0.002)
    seen = simulated(latencies, arrivals, np.arange(0.0, arrivals[-1], every_seconds), 40)
    window = TcpWindow(60.0, 0.95, JIFFY)
    for look in seen:
        window.add(look)
    figures = window.figures()
    truth = np.quantile(latencies, 0.95)
    assert figures.tail_seconds == pytest.approx(truth, rel=0.2, abs=JIFFY)
    assert figures.samples == pytest.approx(1500, rel=0.1)


@pytest.mark.parametrize("median_seconds", [0.004, 0.03])
def test_connections_of_one_request_are_seen(median_seconds: float) -> None:
    """A proxy without keep-alive: most of them come and end between two looks."""
    random = np.random.default_rng(3)
    arrivals = np.cumsum(random.exponential(1 / 300, 6000))
    latencies = random.lognormal(np.log(median_seconds), 0.6, 6000)
    tracker, window = RequestTracker(20.0), TcpWindow(60.0, 0.95, JIFFY)
    for at in np.arange(0.02, arrivals[-1], 0.0201):  # a little late each time, so at any moment of a jiffy
        rows = []
        for cookie in np.flatnonzero((arrivals <= at) & (at < arrivals + latencies)).tolist():
            age = 4 * (int(at / JIFFY) - int(arrivals[cookie] / JIFFY))
            rows.append(connection(age, age, 1, 0, cookie=cookie + 1))
        window.add(tracker.see(float(at), listing(*rows)))
    figures = window.figures()
    assert figures.tail_seconds == pytest.approx(np.quantile(latencies, 0.95), rel=0.25, abs=JIFFY)
    assert figures.done_rps == pytest.approx(300, rel=0.3)


@pytest.mark.parametrize(("state", "on_link"), [
    ({"received": 80, "sent": 40, "unacked": 2}, 1),
    ({"received": 80, "sent": 8, "unacked": 2}, 0),
    ({"received": 80, "sent": 40, "unacked": 1}, 0),
    ({"received": 80, "sent": 0, "unacked": 10, "unsent": 90_000}, 1),
    ({"received": 8, "sent": 40, "unacked": 2}, 0),
], ids=["not-arrived", "just-sent", "delayed-ack", "held-back", "the-next-request-came"])  # fmt: skip
def test_a_late_reply_is_on_the_link(state: dict[str, int], on_link: int) -> None:
    _, (_, look) = looks(connection(400, 380, 1, 1), connection(**state, segments_in=2, segments_out=2))
    assert look.on_link == on_link
    window = TcpWindow(1.0, 0.95, JIFFY)
    window.add(look)
    assert window.link_ratio == on_link
