"""The link's rein in shares: what BE and all others send, by the most that the interface was ever seen to send."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.reins import LINK_SENT, OTHERS, USE, Rein, level_used, rate_of, share_of_link

LEAST_BYTES = 125e3
"""A second, 1 Mbit/s: a link that was never seen to send more is taken to."""


class HeldLink(Protocol):
    """An interface on which BE has a class of its own; `rlctl.envs.host.reins.link.LinkRein` is one."""

    def sent_bytes(self) -> tuple[int, int]:
        """Everything that it sent, and BE's part of that."""

    def hold(self, bytes_per_second: float | None) -> None:
        """So much for all together, of which the LC is never denied any and BE has the rest; None: BE is free."""

    def follow(self, be_groups: Sequence[Group]) -> None:
        """Other groups are BE's from now on."""

    def close(self) -> None:
        """Put the interface back as it was before."""


class LinkShare:
    """Holds BE to a share of that most, which is the mean of two windows in a row.

    In one alone a queue that was empty takes more than the link carries, and drops the rest. But BE is cut when that
    makes the LC late, so that there is seldom a second one.

    A level of BE is its share of what the others leave, by what they sent in the window before. So one level holds at
    any load, and everything is what the LC does not feel. Where the others send more at once, BE has less, packet by
    packet.

    Args:
        open_link: Puts BE's class on the interface. Asked for only once the LC seems to wait for its link: it exchanges
            the interface's queues.
        sent_bytes: What the interface has sent, before it has that class.

    Attributes:
        most: Bytes in a second of a window; may be set to what is known of this host.
    """

    def __init__(self, open_link: Callable[[], HeldLink], sent_bytes: Callable[[], int]) -> None:
        self._open_link, self._sent_bytes = open_link, sent_bytes
        self._link: HeldLink | None = None
        self.most = LEAST_BYTES
        self._before, self._before_seconds, self._last_total = (0, 0), math.nan, 0.0
        self._ratio, self._others_ratio, self._all_ratio = 1.0, 0.0, 1.0  # the level in force, and what it was made of

    @classmethod
    def of(cls, link: HeldLink) -> LinkShare:
        """Of an interface that has the class already."""
        share = cls(lambda: link, lambda: 0)
        share.prepare()
        return share

    def prepare(self) -> None:
        """Have BE's class on the interface; RlctlError: it cannot be put there, and why."""
        if self._link is None:
            self._link, self._before_seconds = self._open_link(), math.nan
            self._others_ratio = 0.0  # BE's own bytes were among theirs

    def read_use(self, now_seconds: float) -> Mapping[str, float]:
        """What was sent by that most, and BE's level as far as it used it; nothing at the first call.

        BE may send what the others leave. Where they leave next to nothing it has used all of its level.
        """
        sent = self._link.sent_bytes() if self._link else (self._sent_bytes(), 0)
        passed, self._before_seconds = now_seconds - self._before_seconds, now_seconds
        before, self._before = self._before, sent
        if not passed > 0.0:
            return {}
        total, be = (max(now - then, 0) / passed for now, then in zip(sent, before, strict=True))
        readings = {LINK_SENT: total / self.most}
        self.most, self._last_total = max(self.most, 0.5 * (total + self._last_total)), total
        self._others_ratio = min((total - be) / self.most, 1.0)
        if self._link:
            readings[OTHERS] = self._others_ratio
            used = level_used(self._ratio, self._all_ratio, self._others_ratio, be / self.most)
            readings[USE[Rein.LINK]] = used
        return readings

    def hold(self, ratio: float | None) -> None:
        """Hold BE to that share of what the others left last."""
        if self._link is not None:
            all_ratio = 1.0 if ratio is None else share_of_link(ratio, self._others_ratio)
            self._link.hold(None if ratio is None else all_ratio * self.most)
            self._ratio, self._all_ratio = 1.0 if ratio is None else ratio, all_ratio

    def restore_state(self, most: object) -> None:
        """Go on with the `most` of an earlier run; ValueError: it is none."""
        self.most = max(self.most, rate_of(most))

    def follow(self, be_groups: Sequence[Group]) -> None:
        """Other groups are BE's from now on."""
        if self._link is not None:
            self._link.follow(be_groups)

    def close(self) -> None:
        """Put the interface back as it was before."""
        if self._link is not None:
            self._link.close()
