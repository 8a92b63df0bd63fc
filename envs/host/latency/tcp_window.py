"""The tail latency of a window of looks at TCP connections.

Law: what a request took is known in jiffies, as the difference of two time stamps. The share whose difference is at
least k jiffies is the mean of P(latency > a) over a from k - 1 to k jiffies. So it stands at the middle of that
jiffy. The ages of requests that wait are a sample of the same: with looks `d` seconds apart, as many take longer as
(wait in that jiffy) * d / jiffy. It serves connections of one request, which end before they
are seen to answer. Both are added, made monotone (pool adjacent violators) and inverted.

Requests of which only the least and the most is known that they took are spread between the two as all others are, in
turns (Turnbull 1976).

While every connection is busy, further requests wait in the client, and come when the others are done. They are taken
to have come as fast as ever, so to have waited for any time up to that one; as many short ones count less.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable

import numpy as np

from rlctl.envs.arrays import Array
from rlctl.envs.host.latency.figures import UNKNOWN, Figures
from rlctl.envs.host.latency.tcp_requests import TcpLook
from rlctl.envs.telemetry import GROWN_SECONDS, Missing, Why

MOST_JIFFIES = 8192
"""The longest latency that is told apart: 8 s at 1000 Hz, 33 s at 250."""

HALF_A_REQUEST = 0.5
"""So many of a window are taken to be beyond the slowest that was seen, where the quantile lies behind it."""

LEAST_CONNECTIONS, CLOSED_LOOP_RATIO = 4, 0.9
"""With fewer connections that are all busy, or with all of them busy nearly always, a client takes turns with the LC:
it waits with no further request."""

ARRIVALS = 64
"""So many of the requests that were done meanwhile stand for all of them."""

TURNS = 10
"""Of spreading; thirty move no tail by a tenth of a millisecond."""

SATURATED_RATIO = 0.5
"""Share of the looks at which every connection was busy: beyond it the client may queue where nobody sees it."""


Jiffies = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class TcpWindow:
    """The looks of the last seconds.

    Args:
        jiffy_seconds: The step of the kernel's time stamps.
    """

    def __init__(self, window_seconds: float, quantile: float, jiffy_seconds: float) -> None:
        self._window_seconds, self._late_ratio = window_seconds, 1.0 - quantile
        self._jiffy_seconds = jiffy_seconds
        self._looks: deque[TcpLook] = deque()
        self._older: deque[TcpLook] = deque()

    def add(self, look: TcpLook) -> None:
        """Take a look in; the first one only starts the clock."""
        if look.interval_seconds > 0.0:
            self._looks.append(look)
        while len(self._looks) > 1 and self._looks[0].at_seconds <= look.at_seconds - self._window_seconds:
            self._older.append(self._looks.popleft())
        while self._older and self._older[0].at_seconds <= look.at_seconds - GROWN_SECONDS:
            self._older.popleft()

    def clear(self) -> None:
        """Forget all looks that were taken in."""
        self._looks.clear()
        self._older.clear()

    @property
    def waiting(self) -> bool:
        """Whether a request waits at the last look."""
        return bool(self._looks) and self._looks[-1].ages.size > 0

    @property
    def saturated_ratio(self) -> float:
        """Share of the looks at which a request waits on every connection."""
        full = sum(0 < look.connections <= look.ages.size for look in self._looks)
        return full / len(self._looks) if self._looks else 0.0

    @property
    def link_ratio(self) -> float:
        """Of requests that were under way at the looks, the share whose reply was late on the link."""
        return sum(look.on_link for look in self._looks) / max(sum(look.ages.size for look in self._looks), 1)

    @property
    def unclear_ratio(self) -> float:
        """Of all connections at all looks, how many may be busy or not."""
        return sum(look.unclear for look in self._looks) / max(sum(look.connections for look in self._looks), 1)

    @property
    def oldest_seconds(self) -> float:
        """Age of the oldest request that waits at the last look; 0 where none does.

        The quantile lets some requests of the window be late: so many of the oldest are passed over, but never more
        than half of the connections.
        """
        if not self.waiting:
            return 0.0
        last = self._looks[-1]
        ages: list[float] = sorted(last.ages.tolist(), reverse=True)
        allowed = min(int(self._late_ratio * (self._requests() + len(ages))), last.connections // 2, len(ages) - 1)
        return ages[allowed]

    def figures(self) -> Figures | Missing:
        """What the window holds; missing before the second look."""
        if not self._looks:
            return Missing(Why.NO_DATA, "no window has ended yet")
        seconds = sum(look.interval_seconds for look in self._looks)
        late = self._late_requests(self._looks)
        oldest, samples = self.oldest_seconds, round(float(late[0]))
        tail: float | Missing = Missing(Why.NO_DATA)
        if samples:
            tail = self._jiffy_seconds * _crossing(late, self._late_ratio)
            if samples * self._late_ratio < 1.0:
                tail = min(tail, self._grown_tail())
        elif oldest > 0.0:  # nothing is completed although requests wait: they take so long at least
            tail, samples = oldest, len(self._looks[-1].ages)
        return Figures(
            end_seconds=self._looks[-1].at_seconds,
            window_seconds=seconds,
            samples=samples,
            tail_seconds=tail,
            oldest_seconds=oldest,
            offered_rps=UNKNOWN,
            done_rps=float(late[0]) / seconds,
            tail_is_lower_limit=max(self.saturated_ratio, self.unclear_ratio) > SATURATED_RATIO,
        )

    def _requests(self) -> float:
        return sum(look.requests for look in self._looks)

    def _grown_tail(self) -> float:
        """Of so few requests that the worst counts: the tail of a window that holds those before them, too.

        One that is late among twenty is no miss. Those that were late before the window are not counted again.
        """
        looks, requests = list(self._looks), self._requests()
        for look in reversed(self._older):
            if requests * self._late_ratio >= 1.0:
                break
            looks.append(look)
            requests += look.requests
        return self._jiffy_seconds * _crossing(self._late_requests(looks), self._late_ratio)

    def _late_requests(self, looks: Iterable[TcpLook]) -> Array:
        """Requests whose stamps differ by k jiffies or more, for k = 0, 1, ...; never rising."""
        looks = tuple(looks)
        least, most, weights = (
            np.concatenate([getattr(look, name) for look in looks]) for name in ("at_least", "at_most", "weights")
        )
        counts = self._queue(_spread(self._jiffies(least), self._jiffies(most), weights))
        passing = np.concatenate([look.passing for look in looks])
        if passing.size:
            mean_interval = float(np.mean([look.interval_seconds for look in looks]))
            waiting = np.bincount(self._jiffies(passing), minlength=2) * mean_interval / self._jiffy_seconds
            # An age of k jiffies is one of k - 1 to k + 1, and of none at all one of 0 to 1, which is half as much.
            waiting[0] *= 2.0
            size = max(len(counts), len(waiting) + 1)
            late = np.pad(_from_above(counts), (0, size - len(counts)))
            late[1 : len(waiting) + 1] += 0.5 * (waiting + np.append(waiting[1:], 0.0))
            # Ages of none at all stand at a third of a jiffy, those of one at one: from there to 0.
            late[0] += max(waiting[0] + 0.5 * max(waiting[0] - waiting[1], 0.0), float(passing.size))
            return _monotone(late)
        return _from_above(counts)

    def _queue(self, counts: Array) -> Array:
        """Requests by what they took, with the time that they waited in the client while all connections were busy."""
        if self.saturated_ratio > CLOSED_LOOP_RATIO:
            return counts
        before = list(itertools.takewhile(_is_full, reversed(self._older)))[::-1]  # the queue may be older
        looks, begin = [*before, *self._looks], self._looks[0].at_seconds - self._looks[0].interval_seconds
        rate = sum(look.requests for look in looks) / sum(look.interval_seconds for look in looks)
        for full, row in itertools.groupby(looks, _is_full):
            first, *others = row
            done = np.cumsum([0.0, 0.0, *(look.requests for look in others)])
            if not full or not done[-1]:
                continue
            began = first.at_seconds - float(first.ages.min())
            number = done[-1] * (np.arange(ARRIVALS) + 0.5) / ARRIVALS
            ends = np.interp(number, done, [began, first.at_seconds, *(look.at_seconds for look in others)])
            waits = np.maximum(ends - began - number / rate, 0.0)[ends > begin]
            each = done[-1] / ARRIVALS
            counts = np.diff(np.maximum(np.cumsum(counts) - each * len(waits), 0.0), prepend=0.0)
            late = each * np.bincount(self._jiffies(waits), minlength=len(counts))
            counts = np.pad(counts, (0, len(late) - len(counts))) + late
        return counts

    def _jiffies(self, seconds: Array) -> Jiffies:
        return np.clip(np.floor(seconds / self._jiffy_seconds + 0.5), 0, MOST_JIFFIES).astype(np.int64)


def _is_full(look: TcpLook) -> bool:
    """Whether a request waits on every connection, of which there are not just a few."""
    return LEAST_CONNECTIONS <= look.connections <= look.ages.size


def _spread(least: Jiffies, most: Jiffies, weights: Array) -> Array:
    """Requests by what they took, in jiffies."""
    size = max(int(most.max(initial=0)) + 1, 2)
    doubtful = most > least
    counts = known = np.asarray(np.bincount(least[~doubtful], weights[~doubtful], size), np.float64)
    if not doubtful.any():
        return counts
    least, beyond, weights = least[doubtful], most[doubtful] + 1, weights[doubtful]
    for turn in range(TURNS):
        below = np.concatenate([[0.0], np.cumsum(counts)]) if turn else np.arange(size + 1.0)
        shares = weights / np.maximum(below[beyond] - below[least], 1e-9)
        steps = np.bincount(least, shares, size + 1) - np.bincount(beyond, shares, size + 1)
        counts = known + np.cumsum(steps)[:-1] * (counts if turn else np.ones(size))
    return counts


def _from_above(counts: Array) -> Array:
    return np.cumsum(counts[::-1])[::-1]


def _monotone(values: Array) -> Array:
    """The closest sequence that never rises (pool adjacent violators)."""
    blocks: list[tuple[float, int]] = []
    for value in values.tolist():
        mean, size = value, 1
        while blocks and blocks[-1][0] < mean:
            other, others = blocks.pop()
            mean, size = (mean * size + other * others) / (size + others), size + others
        blocks.append((mean, size))
    return np.repeat([mean for mean, _ in blocks], [size for _, size in blocks])


def _crossing(late: Array, late_ratio: float) -> float:
    """Where so few are later, in jiffies.

    `late[k]` stands at k - 1/2, `late[0]` at 0; in between it falls evenly by its logarithm, as an exponential tail.
    """
    share = np.maximum(np.append(late, 0.0), HALF_A_REQUEST) / late[0]
    beyond = np.flatnonzero(share <= late_ratio)
    if not beyond.size:  # so few requests that the slowest one counts
        return float(np.count_nonzero(late > 0.0)) - 0.5
    k = int(beyond[0])
    left = max(k - 1.5, 0.0)
    return left + (k - 0.5 - left) * math.log(share[k - 1] / late_ratio) / math.log(share[k - 1] / share[k])
