"""The latency source that a configuration names."""

from __future__ import annotations

from rlctl.config import sources as source
from rlctl.envs.host.latency.cyclictest import CyclictestLines
from rlctl.envs.host.latency.json_object import FigureKeys, JsonDigest
from rlctl.envs.host.latency.jsonl import JsonlRequests, RequestKeys
from rlctl.envs.host.latency.nginx_log import LOG_PATTERN, NginxLog
from rlctl.envs.host.latency.polled import Digest, PolledSource
from rlctl.envs.host.latency.prometheus import PrometheusDigest, PrometheusNames
from rlctl.envs.host.sensors.sensor import Sensor
from rlctl.envs.workload import SLO


def latency_source(latency: source.Latency, slo: SLO) -> Sensor:
    """Open the source; one that asks an endpoint begins to at once."""
    match latency:
        case source.PrometheusLatency():
            names = PrometheusNames(latency.histogram, latency.labels, latency.oldest, latency.in_flight, latency.unit)
            return _polled("prometheus", latency, PrometheusDigest(names, slo), slo)
        case source.HttpLatency():
            keys = FigureKeys(
                latency.tail, latency.samples, latency.oldest, latency.offered_rps, latency.done_rps,
                latency.error_rps, latency.window, latency.stamp, latency.unit,
            )  # fmt: skip
            return _polled("json", latency, JsonDigest(keys, latency.window_seconds), slo)
        case source.JsonlLatency():
            of_request = RequestKeys(latency.latency, latency.ok, latency.unit)
            return JsonlRequests(latency.path, slo, of_request, window_seconds=latency.window_seconds)
        case source.NginxLogLatency():
            return NginxLog(
                latency.path, slo, pattern=latency.pattern or LOG_PATTERN, window_seconds=latency.window_seconds
            )
        case source.CyclictestLatency():
            return CyclictestLines(latency.path, slo, unit=latency.unit, window_seconds=latency.window_seconds)


def _polled(
    kind: str, latency: source.PrometheusLatency | source.HttpLatency, digest: Digest, slo: SLO
) -> PolledSource:
    times = {"timeout_seconds": latency.timeout_seconds, "stale_seconds": latency.stale_seconds}
    return PolledSource(kind, latency.url, digest, slo, **times)
