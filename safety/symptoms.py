"""Symptoms between two ticks that an LC suffers, which the fast guard answers; see `rlctl.loop.fast_guard`.

Pure, as the shield is: no file, no clock. A sign has to be rare where nothing is wrong: at equal CPU weight a few
requests are late in every second, and may be. An LC that is overrun is another matter: once the first requests are late
all of them are.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from rlctl.envs.host.latency.newest import Newest
from rlctl.envs.workload import SLO

RECENT_SECONDS = 0.055
"""Requests that came within it, three looks, are judged together."""

LEAST_JUDGED, MOST_RECENT_SECONDS = 8, 1.0
"""Where fewer came, those before them too, until so long ago: of a slow service, or a log that is read in pieces."""

LEAST_LATE = 5
"""Fewer late requests are no sign, however few there are in all."""

SLOW_RATIO = 0.25
"""Of the target, what a request takes in a queue."""

USUAL_REQUESTS = 500
"""So many tell how long requests take as a rule, and how many are slow: of an LC with two kinds always some are."""

GROWN, LEAST_GROWN_RATIO = 3.0, 0.05
"""A request that takes so many times what requests take as a rule, and so much of the target, may be the first of a
queue: worth another look soon. On a link whose rate halves the queue reaches the target within two looks."""

OLD_SECONDS = 0.015
"""For so long, two looks, an outstanding request older than the target is one slow request; then it is a sign."""


class Sign(StrEnum):
    """What the guard between the ticks goes by; a closed set, for logs and metrics."""

    LATE = "late-requests"
    """Of the newest requests, those of three looks and eight at least, most are above the target, and five or more."""
    OLDEST = "oldest-request"
    """At two looks in a row the oldest outstanding request was older than the target. Where five of the newest were
    late as well the two may be close to each other, else they are of the usual distance. One look will do where all
    requests that ended since the one before took half the target: a queue, for before a pause all is well. Where hardly
    any is slow as a rule half the target will do, after two requests that took longer than usual: a queue reaches
    the other half before BE is held. The first of the two may not be the longest, as it is behind a pause."""
    TAIL = "tail-latency"
    """A window of the latency source that came between the ticks is above the target."""
    PRESSURE = "cpu-pressure"
    """A task of the LC waited for CPUs for two fifths of half a second (PSI some)."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """A sign in a control period, and the answer: BE at the safe allocation until the next tick.

    Attributes:
        detail: The numbers behind it.
        after_seconds: From the beginning of the period to the sign.
        took_seconds: From the sign until BE was held.
        error: Why BE is not held; empty when it is.
        lc: Name of the LC that shows the sign; empty in logs of older versions.
    """

    sign: Sign
    detail: str
    after_seconds: float
    took_seconds: float
    error: str = ""
    lc: str = ""

    def __str__(self) -> str:
        held = f"not held: {self.error}" if self.error else f"held in {self.took_seconds * 1e3:.1f} ms"
        return f"{self.sign} {self.after_seconds:.3f} s into the period ({self.detail}): BE {held}"


class Symptoms:
    """The signs of one LC, and what of its last looks they take to be known.

    Attributes:
        near: At the last look there was no sign, but one may come: a queue may begin to grow, or half as many were late
            as would be one. Another look soon is worth it.
    """

    def __init__(self, slo: SLO) -> None:
        self._target_seconds = slo.target_seconds
        # Half way from what the quantile allows, which a healthy LC may have all the time, to all of them.
        self._late_ratio = 1.0 - 0.5 * slo.quantile
        # Time of a look, its late requests, all of them.
        self._recent: deque[tuple[float, int, int]] = deque()
        # The first and the last look of a row at which a request was old.
        self._old_seconds = math.inf, -math.inf
        self._slow_usually, self._may_be_late = 1.0, 1.0 - slo.quantile
        self._usual_seconds = slo.target_seconds
        self._ended: tuple[float, ...] = ()  # the last two
        self.near = False

    def observe(self, now_seconds: float, newest: Newest, *, waits: bool) -> dict[Sign, str]:
        """The signs of a look, each with the numbers behind it.

        Args:
            waits: The LC waits for CPUs.
        """
        target, milliseconds = self._target_seconds, f"{self._target_seconds * 1e3:g} ms"
        signs = {}
        late, slow = (sum(one > bar for one in newest.latencies) for bar in (target, SLOW_RATIO * target))
        self._recent.append((now_seconds, late, len(newest.latencies)))
        known = USUAL_REQUESTS + len(newest.latencies)
        usual = self._slow_usually = (USUAL_REQUESTS * self._slow_usually + slow) / known
        took_seconds = sum(min(one, target) for one in newest.latencies)
        self._usual_seconds = (USUAL_REQUESTS * self._usual_seconds + took_seconds) / known
        total = sum(look[2] for look in self._recent)
        while self._recent[0][0] <= now_seconds - RECENT_SECONDS and (
            total - self._recent[0][2] >= LEAST_JUDGED or self._recent[0][0] <= now_seconds - MOST_RECENT_SECONDS
        ):
            total -= self._recent.popleft()[2]
        late = sum(look[1] for look in self._recent)
        oldest, hardly = newest.oldest_seconds or 0.0, usual <= self._may_be_late
        self._ended = (*self._ended, *newest.latencies)[-2:]
        queue = min(newest.latencies or self._ended, default=0.0) > (SLOW_RATIO if hardly else 0.5) * target
        bar = max(GROWN * self._usual_seconds, LEAST_GROWN_RATIO * target)
        grown, last = len(self._ended) == 2 and min(self._ended) > bar, max(oldest, *newest.latencies[-1:], 0.0)
        # A row of old looks ends only after OLD_SECONDS: one good look is not yet the end of a queue.
        seen_seconds = now_seconds if newest.seen_seconds is None else newest.seen_seconds
        if oldest <= target:
            if now_seconds - self._old_seconds[1] >= OLD_SECONDS:
                self._old_seconds = math.inf, -math.inf
            long = hardly and grown and oldest > 0.0 and last > 0.5 * target and last >= self._ended[0]
        else:
            long = queue or seen_seconds - self._old_seconds[0] >= (0.0 if late >= LEAST_LATE else OLD_SECONDS)
            self._old_seconds = min(self._old_seconds[0], seen_seconds), now_seconds
        if long:
            why = "in a queue" if queue or oldest <= target else f"above {milliseconds} at two looks"
            signs[Sign.OLDEST] = f"{oldest * 1e3:.1f} ms, {why}"
        if late >= LEAST_LATE and late > self._late_ratio * total:
            signs[Sign.LATE] = f"{late} of the last {total} above {milliseconds}"
        if (newest.tail_seconds or 0.0) > target:
            signs[Sign.TAIL] = f"{(newest.tail_seconds or 0.0) * 1e3:.1f} ms, above {milliseconds}"
        if waits:
            signs[Sign.PRESSURE] = "it waits for CPUs"
        many = late >= 2 and late > 0.5 * self._late_ratio * total
        self.near = not signs and (last > bar or oldest > 0.5 * target or many)
        return signs
