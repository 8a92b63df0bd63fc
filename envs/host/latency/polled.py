"""Asks an endpoint again and again in a thread of its own, so that a tick never waits for it."""

from __future__ import annotations

import http.client
import logging
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from functools import partial

from rlctl.envs.errors import ConfigError
from rlctl.envs.host.latency.arriving import ArrivingFigures
from rlctl.envs.host.latency.figures import Figures
from rlctl.envs.telemetry import Missing, Why
from rlctl.envs.workload import SLO

Digest = Callable[[bytes, float], Figures | Missing]
"""Turns a body and the monotonic time at which it arrived into figures."""

Ask = Callable[[float], bytes | Missing]
"""Asks once: takes the seconds that an answer may take, and gives its body or why there is none."""

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


def http_get(url: str) -> Ask:
    """Asks a URL by GET.

    Raises:
        ConfigError: Not an http(s) URL.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(f"{url!r} is no http or https URL of a latency endpoint")
    return partial(fetch, url)


class PolledSource(ArrivingFigures):
    """Latency from an endpoint that a thread asks again and again.

    Args:
        place: Where the endpoint is; what `ask` says of it begins with that.
        digest: Makes figures of its answers; called in the thread.
        ask: How it is asked; without it `place` is a URL.
        stale_seconds: Figures older than this are missing.

    Raises:
        ConfigError: Not an http(s) URL.
    """

    def __init__(
        self,
        kind: str,
        place: str,
        digest: Digest,
        slo: SLO,
        *,
        ask: Ask | None = None,
        interval_seconds: float = 1.0,
        timeout_seconds: float = 0.5,
        stale_seconds: float = 3.0,
    ) -> None:
        super().__init__(f"{kind} {place}", slo, stale_seconds, f"{place}: no answer yet")
        self._place, self._digest, self._ask = place, digest, ask or http_get(place)
        self._interval_seconds, self._timeout_seconds = interval_seconds, timeout_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rlctl-latency", daemon=True)
        self._thread.start()

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
        body = self._ask(self._timeout_seconds)
        if isinstance(body, Missing):
            self._failure = body.detail.removeprefix(f"{self._place}: ")
            if isinstance(self._latest, Missing):
                self._latest = body
            return
        self._failure = ""
        try:
            self._latest = self._digest(body, time.monotonic())
        except Exception as error:  # noqa: BLE001 - whatever an endpoint says, the thread must live
            _log.debug("%s: cannot be read", self._place, exc_info=True)
            self._latest = Missing(Why.MALFORMED, f"{self._place}: {error}")
