"""What a link carries, told by nobody: the most that was seen to pass, less by evidence, more by trial.

Only a full link shows its rate: the most that passed stands, as in BBR's max filter. Where the LC misses beside less,
what passed then is what the link carries now. What fell is tried again after a while, in steps, as long as each holds.
A trial that fails is taken back at once, and the next one comes after twice the time.
"""

from __future__ import annotations

import math

from rlctl.envs.reins import CARRIED_RATIO

LEAST_BYTES = 125e3
"""A second, 1 Mbit/s: a link that was never seen to send more is taken to."""

FULL_RATIO = 0.95
"""Who sends so much of what all may has sent what there was room for, and shows that it is carried. It is also what is
left of a rate that was a little too high."""

STEP = 0.125
"""Of a trial. After the first one a link that is as it was is still full; the last one that held is near what it is."""

NEW_SECONDS, RETRY_SECONDS, BEYOND_SECONDS, LONGEST_SECONDS = 3.0, 15.0, 120.0, 3600.0
"""Of a full link beside a calm LC, before a trial: of a link that never was too full, of what was carried once, and of
more than ever. Trials that fail double it, up to the last: a link that stays as it is costs a window an hour."""

LASTING_SECONDS = 600.0
"""What was tried again in vain for so long is another link, and no more is known of it than of a new one."""

FLOODED_RATIO = 0.75
"""Of what was sent into a link that fell, what it may have carried. Until who sends has noticed, it drops much."""

CUT_RATIO = 0.5
"""Of a window in whose midst BE was cut nobody knows what would have passed: half of what might, as TCP has it."""


class CarriedRate:
    """Follows one link, in bytes a second: `see` each window, then `fall`, `hold` or neither.

    Args:
        most: Of an earlier run; None of a new link.

    Attributes:
        most: The most that it was seen to carry; what a trial goes back to at first.
        carried: What it is taken to carry now.
    """

    def __init__(self, most: float | None = None) -> None:
        self.most = self.carried = LEAST_BYTES if most is None else most
        self._new = most is None
        self._sent, self._seconds = 0.0, 0.0
        self._wait_seconds, self._calm_seconds = RETRY_SECONDS, 0.0
        self._sure = 0.0  # what held before the last step of a trial, until that has held for long
        self._rises, self._top = False, math.inf

    @property
    def bound(self) -> float:
        """What all together may send."""
        return CARRIED_RATIO * self.carried

    def see(self, sent: float, seconds: float) -> None:
        """Take in what all together sent in a second of a window so long.

        In one window alone an empty queue takes more than the link carries. So two in a row count, by their mean.
        """
        passed = 0.5 * (sent + self._sent)
        self.carried, self.most = max(self.carried, passed), max(self.most, passed)
        self._sent, self._seconds = sent, seconds

    def fall(self, allowed: float, *, cut: bool = False) -> None:
        """In the window that was seen last the LC missed its target beside a BE that sent.

        Args:
            allowed: What all together might send in it.
            cut: BE was taken down in the midst of it.
        """
        flooded = self._sent < FULL_RATIO * allowed  # the link itself held back who sends
        if self._sure and (cut or self._sent >= CARRIED_RATIO * self._sure):  # a trial: what held before it still may
            passed = self._sure if cut else max(self._sure, FULL_RATIO * self._sent)
            if not cut and self.carried >= self._top:  # what was carried once was a little less
                self.most = max(self._sure, FULL_RATIO * self._top)
            self._wait_seconds = self._wait_seconds if self._new else min(2.0 * self._wait_seconds, LONGEST_SECONDS)
        elif cut:
            passed = max(self._sent, CUT_RATIO * self.bound)
        else:
            passed = (FLOODED_RATIO if flooded else 1.0) * self._sent
        self.carried, self._new = max(min(self.carried, passed), LEAST_BYTES), False
        if self._wait_seconds > LASTING_SECONDS:
            self.most = self.carried
        self._rises, self._sent, self._sure, self._calm_seconds = False, 0.0, 0.0, 0.0

    def hold(self, *, calm: bool) -> None:
        """The LC held its target in that window beside a BE that might send all that the others left.

        Args:
            calm: By so much that no queue can have begun to form.
        """
        if self._sent < FULL_RATIO * self.bound:
            return
        if not calm:
            if self._rises:  # as near to a miss as a trial may come
                self.fall(self._sent)
            return
        self._calm_seconds += self._seconds
        self.most = max(self.most, self.carried)
        known, beyond_seconds = self.carried < self.most, max(self._wait_seconds, BEYOND_SECONDS)
        if self._rises and self.carried >= self._top:
            self._rises, self._calm_seconds = False, 0.0
        elif self._rises:
            self._rise()
        elif self._calm_seconds >= (NEW_SECONDS if self._new else self._wait_seconds if known else beyond_seconds):
            self._rises, self._top = True, self.most if known else math.inf
            self._rise()
        elif self._sure and self._calm_seconds >= self._wait_seconds:
            self._sure, self._wait_seconds = 0.0, RETRY_SECONDS

    def _rise(self) -> None:
        self._sure, self.carried = self.carried, min((1.0 + STEP) * self.carried, self._top)
