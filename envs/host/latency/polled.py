"""Asks an endpoint again and again in a thread of its own, so that a tick never waits for it."""

from __future__ import annotations

import http.client
import logging
import math
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping

from rlctl.envs.host.latency.figures import PROVIDES, Figures, ReportedSource, Reporter
from rlctl.envs.host.latency.newest import NOTHING, Newest
from rlctl.envs.telemetry import Missing, Reading, Why
from rlctl.envs.workload import SLO

Digest = Callable[[bytes, float], Figures | Missing]
"""Turns a body and the monotonic time at which it arrived into figures."""

_log = logging.getLogger(__name__)

MOST_BODY_BYTES = 4 << 20
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # an LC is never behind the shell's proxy


def fetch(url: str, timeout_seconds: float) -> bytes | Missing:
    """One GET request, with a limit on time and size.

    Args:
        timeout_seconds: For the whole body, however slowly it drips; of the header for each piece.

    Returns:
        The body, at most 4 MiB; or why there is none.
    """
    deadline = time.monotonic() + timeout_seconds
    chunks: list[bytes] = []
    try:
        with _OPENER.open(url, timeout=timeout_seconds) as answer:
            while chunk := answer.read1(1 << 16):
                chunks.append(chunk)
                if time.monotonic() > deadline:
                    return Missing(Why.NO_DATA, f"{url}: no whole answer in {timeout_seconds:g} s")
                if sum(map(len, chunks)) > MOST_BODY_BYTES:
                    return Missing(Why.MALFORMED, f"{url}: an answer of more than {MOST_BODY_BYTES >> 20} MiB")
    except urllib.error.HTTPError as error:
        with error:
            why = Why.NO_PERMISSION if error.code in (401, 403) else Why.NO_DATA
            return Missing(why, f"{url}: status {error.code}")
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Missing(Why.GONE, f"{url}: {getattr(error, 'reason', None) or error or type(error).__name__}")
    return b"".join(chunks)


class PolledSource(ReportedSource):
    """Latency from an endpoint that a thread asks again and again; figures grow old until others come.

    Args:
        url: An http(s) address.
        digest: Makes figures of the endpoint's answers; called in the thread.
        stale_seconds: Figures older than this are missing.
    """

    provides = PROVIDES

    ends_at_ticks = False

    def __init__(
        self,
        kind: str,
        url: str,
        digest: Digest,
        slo: SLO,
        *,
        interval_seconds: float = 1.0,
        timeout_seconds: float = 0.5,
        stale_seconds: float = 3.0,
    ) -> None:
        self.name = f"{kind} {url}"
        self._url, self._digest = url, digest
        self._interval_seconds, self._timeout_seconds = interval_seconds, timeout_seconds
        self._reporter = Reporter(self.name, slo, stale_seconds)
        self._latest: Figures | Missing = Missing(Why.NO_DATA, f"{url}: no answer yet")
        self._failure = ""  # why there are no newer figures
        self._looked_seconds = -math.inf  # end of the window that was looked at last
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rlctl-latency", daemon=True)
        self._thread.start()

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """The newest figures as readings. An endpoint that falls silent leaves its last ones, which grow old."""
        return self._reporter.readings(self._latest, now_seconds, self._failure)

    def newest(self) -> Newest:
        """The latency of a window that has come since the last look; with the oldest request, as in a tick."""
        figures = self._latest
        if isinstance(figures, Missing) or figures.samples < 1 or figures.end_seconds <= self._looked_seconds:
            return NOTHING
        self._looked_seconds = figures.end_seconds
        known = [one for one in (figures.tail_seconds, figures.oldest_seconds) if not isinstance(one, Missing)]
        return Newest(tail_seconds=max(known, default=None))

    def close(self) -> None:
        """End the thread; waits no longer than one request may take. Idempotent."""
        self._stop.set()
        self._thread.join(self._timeout_seconds + 1.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            self._poll()
            self._stop.wait(max(began + self._interval_seconds - time.monotonic(), 0.0))

    def _poll(self) -> None:
        body = fetch(self._url, self._timeout_seconds)
        if isinstance(body, Missing):
            self._failure = body.detail.removeprefix(f"{self._url}: ")
            if isinstance(self._latest, Missing):
                self._latest = body
            return
        self._failure = ""
        try:
            self._latest = self._digest(body, time.monotonic())
        except Exception as error:  # noqa: BLE001 - whatever an endpoint says, the thread must live
            _log.debug("%s: cannot be read", self._url, exc_info=True)
            self._latest = Missing(Why.MALFORMED, f"{self._url}: {error}")
