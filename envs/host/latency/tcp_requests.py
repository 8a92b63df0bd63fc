"""From looks at an LC's connections to its requests: which wait, since when, and how long the others took.

Pure: no clock, no socket. The kernel says when data last came in on a connection and when it last went out, in jiffies,
and how many segments did. In a protocol in which request and reply take turns:

- unread data, or data that came after the last that went: a request waits, since that data came;
- data that went after the last that came: no request waits, and the last one took what lies between the two;
- both in one jiffy: either. A reply that is not acknowledged yet, or was after the data came, is the later one. Else
  the count decides, where requests and replies are one segment each;
- a reply that is late on the link: its request waits until the reply is acknowledged.

Of some requests only the least and the most that they took is known. Those came and ended between two looks, or waited
at a look and had another behind them at the next. A guess between both would make all tails long.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.arrays import Array, Flags
from rlctl.envs.host.latency.inet_diag import Connections, Numbers

STREAM_SECONDS = 60.0
"""What waits for longer is taken for a stream (a WebSocket whose client spoke last) and does not count. But first the
LC must have served so many other requests meanwhile that the quantile lets one be late."""

LINK_SECONDS = 0.01
"""A reply is late on the link by so much: two of the longest jiffies, and some."""

OVERLAPS, OVERLAP_RATIOS, MEMORY = (20, 5), (0.05, 0.15), 2000
"""Requests that came while one was waiting on the same connection, by usual looks and by close ones, and their share of
the waits that two such looks saw. With as many there are several in flight. Of two close looks one may see the first
segment of a request, the other its second. Counts are halved at `MEMORY`."""

CLOSE_SECONDS = 0.005
"""Two looks so close see an overlap on a busy connection too: between usual ones something nearly always goes out."""

ONE_EACH_RATIO = 0.9
"""Of the exchanges in which as many segments came as went: then a count of them tells requests from replies."""

NONE = np.empty(0)

_TIMESTAMP_BYTES = 12  # of TCP's options: a full segment is so much below the MSS
_LEAST_MSS = 536  # RFC 9293, 3.7.1
_WRAP = np.int64(1) << 32


@dataclass(frozen=True, slots=True)
class TcpLook:
    """What a look adds to a window. Times in seconds.

    Attributes:
        at_seconds: Monotonic time of the look.
        interval_seconds: Since the look before; 0 at the first.
        at_least, at_most: What completed requests took, between these two, which are mostly the same; shape (n,).
        weights: How many requests each stands for, shape (n,).
        requests: How many that are, the sum of the weights.
        ages: How long each waiting request has waited, shape (m,).
        passing: The same at the one look that saw its connection, of those that have ended since, shape (k,).
        connections: How many there are.
        unclear: Of these, on how many a request may wait or not.
        on_link: On how many a reply is under way for longer than the link takes at its best.
    """

    at_seconds: float
    interval_seconds: float
    at_least: Array
    at_most: Array
    weights: Array
    requests: float
    ages: Array
    passing: Array
    connections: int
    unclear: int
    on_link: int = 0


@dataclass(slots=True)
class _State:
    """What is known of connections, arrays of shape (n,).

    Attributes:
        segments_in, segments_out, bytes_in: As the kernel counts them.
        waits: Whether a request waits; since when is in `since`.
        link: Whether a reply is late on the link.
        looks: How many have seen the connection.
        sure_waits, sure_in, sure_out: `waits` and the counts at the last look that was certain.
        served: Requests that the whole LC had served when the waiting one was first seen.
    """

    segments_in: Numbers
    segments_out: Numbers
    bytes_in: Numbers
    waits: Numbers
    link: Numbers
    since: Array
    looks: Numbers
    sure_waits: Numbers
    sure_in: Numbers
    sure_out: Numbers
    served: Numbers

    @classmethod
    def new(cls, size: int) -> _State:
        """Of connections that begin."""
        counts = dict.fromkeys(cls.__slots__, np.zeros(size, np.int64))
        return cls(**counts | {"since": np.zeros(size)})  # type: ignore[arg-type]

    def at(self, places: NDArray[np.intp], found: Flags) -> _State:
        """The same at some places; all 0 where nothing was found."""
        return _State(**{name: np.where(found, getattr(self, name)[places], 0) for name in self.__slots__})


class RequestTracker:
    """Follows connections from look to look.

    Args:
        late_one_in: Of so many requests one may be late.
    """

    def __init__(self, late_one_in: float) -> None:
        self._late_one_in = late_one_in
        self._cookies = np.empty(0, np.uint64)
        self._state: _State | None = None
        self._seen_seconds, self._served = 0.0, 0
        self._at_rest = False
        self._overlaps, self._waits_seen_twice = [0.0, 0.0], [0.0, 0.0]
        self._one_each = self._exchanges = 0.0

    @property
    def overlapping(self) -> bool:
        """Whether several requests are in flight on a connection: then nothing here holds."""
        counts = zip(self._overlaps, OVERLAPS, OVERLAP_RATIOS, self._waits_seen_twice, strict=True)
        return any(count >= least and count > ratio * twice for count, least, ratio, twice in counts)

    def see(self, at_seconds: float, now: Connections) -> TcpLook:
        """Take the next look in."""
        if self._at_rest and self._is_same(now):
            interval, self._seen_seconds = at_seconds - self._seen_seconds, at_seconds
            return TcpLook(at_seconds, interval, NONE, NONE, NONE, 0.0, NONE, NONE, len(now), 0)
        first, last = self._state is None, self._last_of(now)
        interval = 0.0 if first else at_seconds - self._seen_seconds
        came, went = (now.segments_in - last.segments_in) % _WRAP, (now.segments_out - last.segments_out) % _WRAP
        waits, sure, unclear = self._waiting(now, last)
        # A full segment is continued by the next one: only what ends with a smaller one is a request.
        full = (now.bytes_in - last.bytes_in) % _WRAP // np.maximum(now.advertised_mss - _TIMESTAMP_BYTES, _LEAST_MSS)
        requests, link = np.where(came > 0, np.maximum(came - full, 1), 0), ~waits & _late_on_link(now)
        open_before, open_now = (last.waits | last.link) > 0, waits | link
        done = np.zeros(len(now), np.int64)
        if not first:  # no more than came, and no more than segments went out
            done = np.clip(requests + open_before - open_now, 0, went + last.link)
            self._count(last, waits, sure, came, went, full, int(interval <= CLOSE_SECONDS))
        since = np.asarray(at_seconds - 1e-3 * now.received, np.float64)
        least, most, weights = _latencies(now, at_seconds, self._seen_seconds, last, open_now, requests, done)
        passing, ended = self._find_ended(now)
        self._served += int(done.sum()) + len(ended) + len(passing)
        same = (last.waits > 0) & waits & (came == 0) & (went == 0)
        served = np.where(same, last.served, self._served)
        stream = (at_seconds - since > STREAM_SECONDS) & (self._served - served >= self._late_one_in)
        self._cookies, self._seen_seconds = now.cookie, at_seconds
        self._at_rest = not (open_now | unclear).any()
        self._state = _State(
            segments_in=now.segments_in,
            segments_out=now.segments_out,
            bytes_in=now.bytes_in,
            waits=waits.astype(np.int64),
            link=link.astype(np.int64),
            since=since,
            looks=last.looks + (2 if first else 1),  # at the first look they may have been there for long
            sure_waits=np.where(sure, waits, last.sure_waits),
            sure_in=np.where(sure, now.segments_in, last.sure_in),
            sure_out=np.where(sure, now.segments_out, last.sure_out),
            served=served,
        )
        ages = np.asarray(1e-3 * now.received[open_now & ~stream], np.float64)
        return TcpLook(
            at_seconds, interval, np.concatenate([least, ended]), np.concatenate([most, ended + interval]),
            np.concatenate([weights, np.ones(len(ended))]), float(weights.sum()) + len(ended), ages, passing,
            len(now), int(unclear.sum()), int(link.sum()),
        )  # fmt: skip

    def _is_same(self, now: Connections) -> bool:
        """Whether nothing came, went or ended since a look at which no request waited."""
        assert self._state is not None
        return (
            np.array_equal(now.cookie, self._cookies)
            and np.array_equal(now.segments_in, self._state.segments_in)
            and np.array_equal(now.segments_out, self._state.segments_out)
            and not (now.unread.any() or (now.unacked > 1).any())
        )

    def _last_of(self, now: Connections) -> _State:
        """What was known of these connections; of one that is new, that it began with nothing."""
        if self._state is None or not len(self._cookies):
            return _State.new(len(now))
        if np.array_equal(now.cookie, self._cookies):
            return self._state
        places = np.minimum(np.searchsorted(self._cookies, now.cookie), len(self._cookies) - 1)
        return self._state.at(places, self._cookies[places] == now.cookie)

    def _waiting(self, now: Connections, last: _State) -> tuple[Flags, Flags, Flags]:
        """On which a request waits; of which that is certain; of which it is not known."""
        tied = (now.received == now.sent) & (now.unread == 0)
        waits = (now.unread > 0) | (now.received < now.sent)
        tied &= ~((now.unacked > 0) | (now.acked < now.received) | (now.segments_in == 0))
        came, went = (now.segments_in - last.sure_in) % _WRAP, (now.segments_out - last.sure_out) % _WRAP
        waits |= tied & (went == 0) & (last.sure_waits + came > 0)
        both = tied & (came > 0) & (went > 0)
        count = last.sure_waits + came - went
        one_each = self._exchanges > 0.0 and self._one_each >= ONE_EACH_RATIO * self._exchanges
        if one_each:
            waits |= both & (count == 1)
        return waits, ~both, both & ~(one_each & ((count == 0) | (count == 1)))

    def _count(
        self, last: _State, waits: Flags, sure: Flags, came: Numbers, went: Numbers, full: Numbers, close: int
    ) -> None:  # fmt: skip
        """What kind of protocol this is, by the connections that the last look saw too."""
        known = last.looks > 0
        exchanges = known & sure & (came > 0) & (went > 0)
        self._exchanges += float(exchanges.sum())
        self._one_each += float((exchanges & (last.waits + came - waits == went)).sum())
        twice = known & waits & (last.waits > 0)
        self._waits_seen_twice[close] += float(twice.sum())
        # Full segments are an upload that goes on; smaller ones, with no reply between them, are a second request.
        self._overlaps[close] += float((twice & (came > 0) & (went == 0) & (full == 0)).sum())
        if self._exchanges > MEMORY:
            self._exchanges, self._one_each = 0.5 * self._exchanges, 0.5 * self._one_each
        if self._waits_seen_twice[close] > MEMORY:
            self._waits_seen_twice[close] *= 0.5
            self._overlaps[close] *= 0.5

    def _find_ended(self, now: Connections) -> tuple[Array, Array]:
        """Ages at the last look of requests whose connection ended: of those that only that look saw, and others."""
        state = self._state
        if state is None or np.array_equal(now.cookie, self._cookies):
            return NONE, NONE
        gone = (state.waits > 0) & ~np.isin(self._cookies, now.cookie, assume_unique=True)
        ages, once = self._seen_seconds - state.since[gone], state.looks[gone] == 1
        return ages[once], ages[~once]


def _late_on_link(now: Connections) -> Flags:
    """Replies that the kernel holds back, or that went LINK_SECONDS and a round trip ago and have not arrived.

    One segment alone may be acknowledged as late as 40 ms after it came, two are at once (RFC 1122, 4.2.3.2).
    """
    late = 1e-3 * now.sent > LINK_SECONDS + 1e-6 * now.best_round_trip
    return np.asarray((now.unacked >= 2) & (now.sent <= now.received) & (late | (now.unsent > 0)))


def _latencies(
    now: Connections, at_seconds: float, before_seconds: float, last: _State, waits: Flags, requests: Numbers,
    done: Numbers,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """The least and the most that completed requests took, and how many requests each of them stands for.

    Args:
        waits: Where one waits now, in the LC or for its reply on the link.
    """
    waited = (last.waits | last.link) > 0
    behind = waited & (requests > 0) & (done > 0)
    # Where none waits the last one took what lies between the last data in and the last data out; or, if that was late
    # on the link, its arrival.
    brief = done - behind
    ends = ~waits & (brief > 0)
    end = np.where(last.link > 0, np.minimum(now.acked, now.sent), now.sent)
    took = np.maximum(1e-3 * (now.received - end)[ends], 0.0)
    # One that waited at the look before, with others behind it: it ended between that look and the next one's coming,
    # or, where that one waits now, with the last data out.
    alone = (waits & (requests == 1) & (last.link == 0))[behind]
    coming = np.maximum(at_seconds - 1e-3 * now.received[behind], before_seconds)
    last_out = at_seconds - 1e-3 * now.sent[behind]
    long = np.maximum(np.where(alone, last_out, coming) - last.since[behind], 0.0)
    least = np.where(alone, long, np.minimum(before_seconds - last.since[behind], long))
    # Those of which nothing more is known came and ended between two looks, one after the other.
    unknown = brief[waits & (brief > 0)].astype(np.float64)
    between = (at_seconds - before_seconds) * 2.0 / (unknown + 1.0)
    return (
        np.concatenate([took, least, np.zeros(len(unknown))]),
        np.concatenate([took, long, between]),
        np.concatenate([brief[ends].astype(np.float64), np.ones(len(long)), unknown]),
    )
