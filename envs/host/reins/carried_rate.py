"""What a link or a disk carries, told by nobody: the most that was seen to pass, less by evidence, more by trial.

Only a full one shows its rate: the most that passed stands, as in BBR's max filter. Where the LC misses beside less,
what passed then is what it carries now. What fell is tried again after a while, in steps, as long as each holds.
A trial that fails is taken back at once, and the next one comes after twice the time. Laws on a row of CARRIED.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlctl.envs.law import law
from rlctl.envs.reins import CARRIED_RATIO, DISK_CARRIED_RATIO, LITTLE_RATIO
from rlctl.envs.rows import plain_row

CALM_RATIO = 0.5
"""Latency by the target up to which nothing queues yet beside BE."""

LEAST_BYTES = 125e3
"""A second, 1 Mbit/s: a link that was never seen to send more is taken to."""

FULL_RATIO = 0.95
"""Who sends so much of what all may has sent what there was room for, and shows that it is carried. It is also what is
left of a rate that was a little too high."""

STEP, LEAST_STEP, DISK_STEP = 0.125, 0.03, 0.0625
"""Of a trial, on a link and on a disk. After the first one a link that is as it was is still full. Where a link's trial
of more than ever fails the next comes as if that had been carried once, and is half as long, down to the least."""

NEW_STEPS = 2.0
"""At once, of what never was too full: it may be many times what the first cut left of it."""

LINK_SHARES = CARRIED_RATIO, STEP, math.inf
DISK_SHARES = DISK_CARRIED_RATIO, DISK_STEP, 1.0 + DISK_STEP
"""Of what is carried: what all may send, the step of a trial, and how far one goes beyond the most. A disk is calm in
one window and late in the next, when the others want more: there each step must hold for long."""

NEW_SECONDS, RETRY_SECONDS, BEYOND_SECONDS, LONGEST_SECONDS = 3.0, 15.0, 120.0, 3600.0
"""Of a full link beside a calm LC, before a trial. The first is of a link that never was too full, the second of a new
disk and up to what was carried once, the third of more than ever. Trials that fail double it, up to the last: a link
that stays as it is costs a window an hour."""

LASTING_SECONDS = 600.0
"""What was tried again in vain for so long is another link, and no more is known of it than of a new one."""

SURE_RATIO = 0.98
"""Of what held in a trial, what is carried for sure: a link that has a little too much shows it only after seconds. So
much of what was carried is taken to be after each full window that was held, and not calm."""

FLOODED_RATIO = 0.75
"""Of what was sent into a link that fell, what it may have carried. Until who sends has noticed, it drops much."""

CUT_RATIO = 0.5
"""Of a window in whose midst BE was cut nobody knows what would have passed: half of what might, as TCP has it."""


CARRIED = [
    ("most_bytes", "f8"), ("carried_bytes", "f8"), ("is_new", "?"), ("sent_bytes", "f8"), ("window_seconds", "f8"),
    ("wait_seconds", "f8"), ("calm_seconds", "f8"), ("sure_bytes", "f8"), ("rises", "?"), ("top_bytes", "f8"),
    ("all_ratio", "f8"), ("first_step", "f8"), ("reach", "f8"), ("step", "f8"), ("failed_bytes", "f8"),
    ("tried_bytes", "f8"),
]  # fmt: skip
"""Of a link or disk, bytes per second: most that was seen to be carried, and what it is taken to carry now. Whether it
was never too full. What was sent in the last window, and its length. Seconds before the next trial, and of calm until
now. What held before the last step of a trial, until that has held for long. Whether a trial goes on, and where it
ends. What `LINK_SHARES` has, the step of the next trial, and what was too much in the last one of more than ever. What
a trial was at when it was missed, until a full window tells whether the trial failed or the link fell; else 0."""


@law
def begin_rate(rate: Any, most: float, is_new: bool, all_ratio: Any, first_step: Any, reach: Any) -> None:
    """A link or disk that was seen to carry so much; the shares are as in `LINK_SHARES`."""
    rate["most_bytes"] = rate["carried_bytes"] = most
    rate["is_new"], rate["rises"], rate["top_bytes"] = is_new, False, math.inf
    rate["all_ratio"], rate["reach"] = all_ratio, reach
    rate["first_step"], rate["step"], rate["failed_bytes"] = first_step, first_step, math.inf
    rate["sent_bytes"] = rate["window_seconds"] = rate["calm_seconds"] = rate["sure_bytes"] = 0.0
    rate["tried_bytes"] = 0.0
    rate["wait_seconds"] = RETRY_SECONDS


@law
def bound_of(rate: Any) -> float:
    """What all together may send."""
    return float(rate["all_ratio"] * rate["carried_bytes"])


@law
def see_window(rate: Any, sent: float, seconds: float) -> None:
    """Take in what all together sent in a second of a window so long.

    In one window alone an empty queue takes more than the link carries. So two in a row count, by their mean.
    """
    sent = sent if sent > 0.0 else 0.0  # NaN is nothing that was seen
    passed = 0.5 * (sent + rate["sent_bytes"])
    rate["carried_bytes"] = max(rate["carried_bytes"], passed)
    rate["most_bytes"] = max(rate["most_bytes"], passed)
    rate["sent_bytes"], rate["window_seconds"] = sent, seconds


@law
def fall(rate: Any, allowed: float, cut: bool) -> None:
    """In the window that was seen last the LC missed its target beside a BE that sent.

    Args:
        allowed: What all together might send in it.
        cut: BE was taken down in the midst of it.
    """
    sent, sure, carried, link = rate["sent_bytes"], rate["sure_bytes"], rate["carried_bytes"], rate["reach"] == math.inf
    # A trial: what held before it still may.
    if sure > 0.0 and (cut or sent >= FULL_RATIO * rate["all_ratio"] * sure):
        rate["tried_bytes"] = carried
        if carried > rate["most_bytes"] and link:
            sure *= SURE_RATIO
        passed = sure if cut else max(sure, FULL_RATIO * sent)
        if cut:  # it says nothing of where the trial was to end
            rate["top_bytes"] = math.inf
    else:
        if cut:
            passed = max(sent, CUT_RATIO * bound_of(rate))
        elif sent < FULL_RATIO * allowed:  # the link or disk itself held back who sends; a link drops, too
            passed = (FLOODED_RATIO if link else 1.0) * sent
        else:  # a little too much; less than that was allowed may be late behind what queued before
            passed = max(sent, rate["all_ratio"] * carried)
            if not link and carried >= FULL_RATIO * rate["most_bytes"]:
                rate["most_bytes"] *= FULL_RATIO
        # It is another link, of which a trial says nothing: a search that it cut short goes on once the link is back.
        rate["is_new"] = rate["is_new"] and link and rate["tried_bytes"] > 0.0
        rate["step"], rate["failed_bytes"], rate["tried_bytes"] = rate["first_step"], math.inf, 0.0
    rate["carried_bytes"] = max(min(carried, passed), LEAST_BYTES)
    if rate["wait_seconds"] > LASTING_SECONDS:
        rate["most_bytes"] = rate["carried_bytes"]
    rate["rises"] = False
    rate["sent_bytes"] = rate["sure_bytes"] = rate["calm_seconds"] = 0.0


@law
def hold(rate: Any, calm: bool) -> None:
    """The LC held its target in that window beside a BE that might send all that the others left.

    Args:
        calm: By so much that no queue can have begun to form.
    """
    if rate["sent_bytes"] < FULL_RATIO * bound_of(rate):
        return
    _settle(rate)
    if not calm:
        if rate["rises"]:  # as near to a miss as a trial may come
            fall(rate, float(rate["sent_bytes"]), False)
        else:  # a queue that stays short: a little too much is sent
            least = min(float(rate["carried_bytes"]), max(FULL_RATIO * rate["most_bytes"], LEAST_BYTES))
            rate["carried_bytes"] = max(SURE_RATIO * rate["carried_bytes"], least)
        return
    rate["calm_seconds"] += rate["window_seconds"]
    calm_seconds, wait, link = rate["calm_seconds"], rate["wait_seconds"], rate["reach"] == math.inf
    if link or rate["sure_bytes"] == 0.0 or (calm_seconds >= wait and not rate["rises"]):
        rate["most_bytes"] = max(rate["most_bytes"], rate["carried_bytes"])
    known = rate["carried_bytes"] < rate["most_bytes"]
    if rate["is_new"] and link and rate["carried_bytes"] >= FULL_RATIO * rate["most_bytes"]:
        due_seconds = NEW_SECONDS
    else:
        near = known or rate["is_new"] or rate["failed_bytes"] < math.inf
        due_seconds = wait if near else max(wait, BEYOND_SECONDS)
    if rate["rises"] and rate["carried_bytes"] >= rate["top_bytes"]:
        rate["rises"], rate["calm_seconds"] = False, 0.0
    elif rate["rises"]:
        _rise(rate)
    elif calm_seconds >= due_seconds:
        rate["rises"], rate["top_bytes"] = True, rate["most_bytes"] if known else rate["reach"] * rate["carried_bytes"]
        _rise(rate)
    elif rate["sure_bytes"] > 0.0 and calm_seconds >= wait:
        rate["sure_bytes"], rate["wait_seconds"] = 0.0, RETRY_SECONDS


@law
def _settle(rate: Any) -> None:
    """What held before a trial that was missed holds after it, too: the trial failed, and the link did not fall."""
    if rate["tried_bytes"] == 0.0:
        return
    beyond, link, new = rate["tried_bytes"] > rate["most_bytes"], rate["reach"] == math.inf, rate["is_new"]
    if beyond and link:
        rate["step"], rate["failed_bytes"] = max(0.5 * rate["step"], LEAST_STEP), rate["tried_bytes"]
        rate["most_bytes"] = min(rate["most_bytes"], rate["carried_bytes"])
    elif rate["tried_bytes"] >= FULL_RATIO * rate["top_bytes"]:  # what was carried once was a little less
        rate["most_bytes"] = min(rate["most_bytes"], max(rate["carried_bytes"], FULL_RATIO * rate["tried_bytes"]))
    if not (beyond and link and new):
        rate["wait_seconds"] = min(2.0 * rate["wait_seconds"], LONGEST_SECONDS)
    # The search of a new link goes on with a shorter step at once.
    rate["is_new"], rate["tried_bytes"] = new and link and rate["step"] > 2.0 * LEAST_STEP, 0.0


@law
def _rise(rate: Any) -> None:
    carried = rate["carried_bytes"]
    if carried >= rate["failed_bytes"]:  # the link is wider than it was then
        rate["step"], rate["failed_bytes"] = rate["first_step"], math.inf
    step = rate["first_step"] if carried < rate["most_bytes"] else (NEW_STEPS if rate["is_new"] else 1.0) * rate["step"]
    rate["sure_bytes"], rate["carried_bytes"] = carried, min((1.0 + step) * carried, rate["top_bytes"])


@law
def judge_window(
    rate: Any, allowed: float, be: float, level: float, missed: bool, calm: bool, ran_ratio: float
) -> float:
    """Have what is carried follow from a window that was seen; the share by which it fell.

    Args:
        allowed, be: What all might send, and what BE did.
        level: BE's, of everything.
        ran_ratio: Share of the window in which BE ran.
    """
    cut, before = ran_ratio < 1.0, rate["carried_bytes"]
    if not missed and not cut and level >= 1.0:
        hold(rate, calm)
    elif (missed or cut) and be >= LITTLE_RATIO * ran_ratio * bound_of(rate):
        fall(rate, allowed, cut)
    elif (missed or cut) and be > LITTLE_RATIO * rate["sent_bytes"]:
        # Little of what was carried once may be all that is now: a virtual machine's burst credits are a hundredfold.
        rate["carried_bytes"] = max(CUT_RATIO * rate["carried_bytes"], min(float(before), LEAST_BYTES))
    return max(1.0 - float(rate["carried_bytes"]) / float(before), 0.0)


class CarriedRate:
    """One link or disk, in bytes a second: `see` each window, and `judge_window` on its row.

    Args:
        most: Of an earlier run; None of a new one, which is taken to carry `least`.
        shares: As in `LINK_SHARES`.
    """

    def __init__(
        self, most: float | None = None, least: float = LEAST_BYTES, shares: tuple[float, ...] = LINK_SHARES
    ) -> None:
        self.row = plain_row(np.dtype(CARRIED))
        begin_rate(self.row, least if most is None else most, most is None, *shares)

    @property
    def most(self) -> float:
        """The most that it was seen to carry; what a trial goes back to at first."""
        return float(self.row["most_bytes"])

    @property
    def carried(self) -> float:
        """What it is taken to carry now."""
        return float(self.row["carried_bytes"])

    def see(self, sent: float, seconds: float) -> None:
        """Take in a window, as `see_window` does."""
        see_window(self.row, sent, seconds)
