"""Receives histograms that a service sends by OTLP over HTTP, in a thread of its own."""

from __future__ import annotations

import logging
import time

from rlctl.config.sources import OtlpLatency
from rlctl.envs.errors import on_one_line
from rlctl.envs.host.latency.arriving import ArrivingFigures
from rlctl.envs.host.latency.otlp import MOST_BODY_BYTES, OtlpDigest, unzipped
from rlctl.envs.telemetry import Missing, Why
from rlctl.envs.workload import SLO
from rlctl.serve.http_server import NOT_ADMITTED, TEXT, Answer, HttpServer, Request

log = logging.getLogger(__name__)

PAGE = "/v1/metrics"
PROTOBUF, JSON = "application/x-protobuf", "application/json"


class OtlpReceiver(ArrivingFigures):
    """Latency from the exports that come to one address.

    Raises:
        ConfigError: The extra `otlp` is not installed.
        HostError: The port is taken, or there is no such address here.
    """

    def __init__(self, latency: OtlpLatency, slo: SLO) -> None:
        self._digest = OtlpDigest(latency, slo, latency.stale_seconds)
        self._server = HttpServer("lc.latency", latency, self._page, ("POST",), MOST_BODY_BYTES)
        self.url = self._server.url + PAGE
        super().__init__(f"otlp {self.url}", slo, latency.stale_seconds, f"nothing was sent to {self.url} yet")
        log.info("latencies are taken at %s", self.url)
        if latency.bearer_token_file is None:
            log.warning("lc.latency: without bearer_token_file any process of this host can send latencies, BE's too")

    def close(self) -> None:
        """Stop listening, and end the thread. Idempotent."""
        self._server.close()

    def _page(self, request: Request) -> Answer:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not request.admitted:
            return NOT_ADMITTED
        if request.page != PAGE:  # traces and logs: a client that is told so sends them no more
            return 404, b"there is /v1/metrics\n", TEXT
        if request.method != "POST":
            return 405, b"POST only\n", TEXT
        if kind not in (PROTOBUF, JSON):
            return 415, b"application/x-protobuf or application/json\n", TEXT
        if request.body is None:
            self._latest = Missing(
                Why.MALFORMED,
                f"{self.url}: an export of more than {MOST_BODY_BYTES >> 20} MiB: choose metrics, or pack it",
            )
            return 413, b"the request is too long\n", TEXT
        try:
            packed = request.headers.get("content-encoding", "identity").lower() == "gzip"
            body = unzipped(request.body) if packed else request.body
            self._latest = self._digest(body, time.monotonic(), as_json=kind == JSON)
        except ValueError as error:
            why = on_one_line(str(error))[:300]
            self._latest = Missing(Why.MALFORMED, f"{self.url}: {why}")
            return 400, f"{why}\n".encode(), TEXT
        return 200, b"{}" if kind == JSON else b"", kind
