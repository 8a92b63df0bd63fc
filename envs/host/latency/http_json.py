"""Tail latency from an endpoint that answers with a JSON object."""

from __future__ import annotations

from rlctl.envs.host.decode import json_or_none
from rlctl.envs.host.latency.figures import Figures
from rlctl.envs.host.latency.keys import FigureKeys, lookup
from rlctl.envs.telemetry import Missing

__all__ = ["JsonDigest"]


class JsonDigest:
    """Turns one answer after the other into figures.

    Args:
        keys: Which member is which figure; `keys.tail` must be the quantile that the SLO names.
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
