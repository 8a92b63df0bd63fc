"""/metrics and /healthz of a running rlctl."""

from __future__ import annotations

import logging

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from rlctl.config.sections import MetricsSection
from rlctl.serve.http_server import NOT_ADMITTED, TEXT, Answer, HttpServer, Request
from rlctl.serve.metrics import Metrics

log = logging.getLogger(__name__)


class MetricsServer(HttpServer):
    """Serves metrics from construction until `close`.

    `/healthz` says whether ticks are completed, the last one at most `fresh_seconds` ago, and needs no token: kubelet
    has none.
    """

    def __init__(self, metrics: Metrics, section: MetricsSection, fresh_seconds: float) -> None:
        self._metrics = metrics
        self._fresh_seconds = fresh_seconds
        super().__init__("metrics", section, self._page, ("GET", "HEAD"))
        self.url += "/metrics"
        log.info("metrics at %s", self.url)

    def _page(self, request: Request) -> Answer:
        if request.page not in ("/metrics", "/healthz"):
            return 404, b"there are /metrics and /healthz\n", TEXT
        if request.method not in ("GET", "HEAD"):
            return 405, b"GET and HEAD only\n", TEXT
        if request.page == "/healthz":
            return self._health()
        if not request.admitted:
            return NOT_ADMITTED
        return 200, generate_latest(self._metrics), CONTENT_TYPE_PLAIN_0_0_4

    def _health(self) -> Answer:
        age = self._metrics.age_seconds()
        if age <= self._fresh_seconds:
            return 200, b"ok\n", TEXT
        since = "no tick yet" if age == float("inf") else f"no tick for {age:.1f} s"
        return 503, f"{since}\n".encode(), TEXT
