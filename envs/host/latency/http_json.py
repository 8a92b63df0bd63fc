"""Tail latency from an endpoint that answers with a JSON object."""

from __future__ import annotations

from rlctl.envs.host.decode import json_or_none
from rlctl.envs.host.latency.fetch import PolledSource
from rlctl.envs.host.latency.figures import Figures
from rlctl.envs.host.latency.keys import FigureKeys, lookup
from rlctl.envs.telemetry import Missing
from rlctl.envs.workload import SLO

__all__ = ["JsonDigest", "JsonSource"]


class JsonDigest:
    """Turns one answer after the other into figures.

    Args:
        keys: Which member is which figure.
        window_seconds: Length of the endpoint's window, if it does not say.
    """

    def __init__(self, keys: FigureKeys, window_seconds: float) -> None:
        self._keys, self._window_seconds = keys, window_seconds
        self._stamp: object = None
        self._stamp_seconds = 0.0

    def __call__(self, body: bytes, now_seconds: float) -> Figures | Missing:
        """Figures as old as their stamp.

        Args:
            body: What the endpoint answered.
            now_seconds: Monotonic time at which it arrived.
        """
        document = json_or_none(body)
        stamp = None if self._keys.stamp is None else lookup(document, self._keys.stamp)
        if stamp is None or stamp != self._stamp:
            self._stamp, self._stamp_seconds = stamp, now_seconds
        return self._keys.figures(document, self._stamp_seconds, self._window_seconds)


class JsonSource(PolledSource):
    """Latency from a JSON endpoint, asked in a thread.

    Args:
        url: The endpoint.
        keys: Which member is which figure; `keys.tail` must be the quantile that the SLO names.
        slo: The LC's objective.
        interval_seconds: Time between requests; the control period.
        timeout_seconds: Limit of one request.
        stale_seconds: Figures older than this are missing.
        window_seconds: Length of the endpoint's window, if it does not say.

    Raises:
        ConfigError: Not an http(s) URL.
    """

    def __init__(
        self,
        url: str,
        keys: FigureKeys,
        slo: SLO,
        *,
        interval_seconds: float = 1.0,
        timeout_seconds: float = 0.5,
        stale_seconds: float = 3.0,
        window_seconds: float = 1.0,
    ) -> None:
        super().__init__(
            "json",
            url,
            JsonDigest(keys, window_seconds),
            slo,
            interval_seconds=interval_seconds,
            timeout_seconds=timeout_seconds,
            stale_seconds=stale_seconds,
        )
