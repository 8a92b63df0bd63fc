"""The link's rein in shares: what BE and all others send, by what the link is taken to carry."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.reins.carried_rate import LEAST_BYTES, CarriedRate, judge_window
from rlctl.envs.host.reins.link import LinkRein
from rlctl.envs.reins import FELL, LINK_CARRIED, LINK_SENT, OTHERS, USE, Rein, level_used, rate_of, share_of_link


class LinkShare:
    """Holds BE to a share of what the link is taken to carry, and has that follow the link.

    A level of BE is its share of what the others leave, by what they sent in the window before. So one level holds at
    any load, and everything is what the LC does not feel. Where the others send more at once, BE has less, packet by
    packet.

    Args:
        open_link: Puts BE's class on the interface. Asked for only once the LC seems to wait for its link: it exchanges
            the interface's queues.
        sent_bytes: As of `LinkRein`, before it has that class; None as long as nobody knows which interface it is.
    """

    def __init__(self, open_link: Callable[[], LinkRein], sent_bytes: Callable[[], tuple[int, int] | None]) -> None:
        self._open_link, self._sent_bytes = open_link, sent_bytes
        self._link: LinkRein | None = None
        self._rate = CarriedRate()
        self._before, self._before_seconds = (0, 0), math.nan
        self._be, self._others = 0.0, 0.0  # what they sent in the window before, bytes a second
        self._fell_ratio = 0.0
        # The level in force, and what all may send by it; of a window in whose midst BE was cut those until then.
        self._ratio, self._all, self._begins = 1.0, math.inf, True

    @classmethod
    def of(cls, link: LinkRein) -> LinkShare:
        """Of an interface that has the class already."""
        share = cls(lambda: link, link.sent_bytes)
        share.prepare()
        return share

    @property
    def most(self) -> float:
        """The most that the link was seen to carry, bytes a second: what another run begins with; 0: never used."""
        return self._rate.most if self._rate.most > LEAST_BYTES else 0.0

    @property
    def is_known(self) -> bool:
        """As of `SharedRein`: the interface has been found."""
        return self._link is not None or self._sent_bytes() is not None

    def prepare(self) -> None:
        """Have BE's class on the interface; RlctlError: it cannot be put there, and why."""
        if self._link is None:
            self._link, self._before_seconds = self._open_link(), math.nan
            self._others = 0.0  # BE's own bytes were among theirs

    def read_use(self, now_seconds: float) -> Mapping[str, float]:
        """What the link is taken to carry, what was sent by that, and BE's level as far as it used it.

        BE may send what the others leave. Where they leave next to nothing it has used all of its level. Nothing at the
        first call.
        """
        if (sent := self._link.sent_bytes() if self._link else self._sent_bytes()) is None:
            return {}
        passed, self._before_seconds = now_seconds - self._before_seconds, now_seconds
        before, self._before = self._before, sent
        if not passed > 0.0:
            return {}
        total, be = (max(now - then, 0) / passed for now, then in zip(sent, before, strict=True))
        self._rate.see(total, passed)
        self._begins = True
        carried, self._be, self._others = self._rate.carried, be, total - be
        readings = {LINK_CARRIED: carried, FELL[Rein.LINK]: self._fell_ratio, LINK_SENT: total / carried}
        self._fell_ratio = 0.0
        if self._link:
            readings[OTHERS] = others = min(self._others / carried, 1.0)
            readings[USE[Rein.LINK]] = level_used(self._ratio, min(self._all / carried, 1.0), others, be / carried)
        return readings

    def judge(self, *, missed: bool, calm: bool, ran_ratio: float) -> None:
        """Have what the link is taken to carry follow from a window that was read, see `CarriedRate`."""
        self._fell_ratio += judge_window(self._rate.row, self._all, self._be, self._ratio, missed, calm, ran_ratio)

    def hold(self, ratio: float | None) -> None:
        """Hold BE to that share of what the others left last."""
        if self._link is not None:
            carried = self._rate.carried
            all_may = share_of_link(ratio, self._others / carried) * carried if ratio else math.inf
            self._link.hold(all_may if ratio else None)
            if self._begins or all_may > self._all:
                self._ratio, self._all, self._begins = ratio or 1.0, all_may, False

    def restore_state(self, most: object) -> None:
        """Go on with the `most` of an earlier run, since what fell may be back; ValueError: it is none."""
        self._rate = CarriedRate(max(self._rate.most, rate_of(most)))

    def follow(self, be_groups: Sequence[Group]) -> None:
        """Other groups are BE's from now on."""
        if self._link is not None:
            self._link.follow(be_groups)

    def close(self) -> None:
        """Put the interface back as it was before."""
        if self._link is not None:
            self._link.close()
