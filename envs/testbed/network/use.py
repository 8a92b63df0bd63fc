"""How much of the link LC and BE use: what Heracles' network loop has to measure."""

from __future__ import annotations

from collections.abc import Mapping

from rlctl.envs.telemetry import Missing, Reading, Value, Why
from rlctl.envs.testbed.network.link import BE_CLASS, LC_CLASS, Link


class LinkUse:
    """Bandwidth since the tick before as a share of the rate that a run begins with, while BE's class has a ceiling.

    That rate is told, as it was to the published system; of one that changes nobody hears.
    """

    name = "link"
    provides = ("link_ratio", "lc_link_ratio")

    def __init__(self, link: Link) -> None:
        self._link = link
        self._last: tuple[float, int, int] | None = None

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """Both shares; missing in the first tick, and none without a ceiling, for it takes a program to ask."""
        if not self._link.limits_be:
            self._last = None
            return {}
        sent = self._link.sent_bytes()
        now = (now_seconds, sent[LC_CLASS], sent[BE_CLASS])
        last, self._last = self._last, now
        if last is None or now_seconds <= last[0]:
            return dict.fromkeys(self.provides, Missing(Why.NO_DATA, "the first tick"))
        whole_bytes = self._link.config.rate_mbit(0.0) * 1e6 / 8.0 * (now[0] - last[0])
        lc, be = ((after - before) / whole_bytes for before, after in zip(last[1:], now[1:], strict=True))
        return {"link_ratio": Value(lc + be), "lc_link_ratio": Value(lc)}

    def close(self) -> None:
        """The link belongs to the testbed."""
