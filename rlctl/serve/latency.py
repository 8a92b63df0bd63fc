"""The latency source that a configuration names."""

from __future__ import annotations

from rlctl.config import sources as source
from rlctl.envs.host.latency.cyclictest import CyclictestLines
from rlctl.envs.host.latency.json_object import JsonDigest
from rlctl.envs.host.latency.jsonl import JsonlRequests
from rlctl.envs.host.latency.nginx_log import LOG_PATTERN, NginxLog
from rlctl.envs.host.latency.polled import Digest, PolledSource
from rlctl.envs.host.latency.postgres_log import PostgresLog
from rlctl.envs.host.latency.prometheus import PrometheusDigest
from rlctl.envs.host.sensors.sensor import Sensor
from rlctl.envs.workload import SLO


def latency_source(latency: source.Latency, slo: SLO) -> Sensor:
    """Open the source; one that asks an endpoint begins to at once."""
    match latency:
        case source.PrometheusLatency():
            return _polled("prometheus", latency, PrometheusDigest(latency, slo), slo)
        case source.HttpLatency():
            return _polled("json", latency, JsonDigest(latency, latency.window_seconds), slo)
        case source.JsonlLatency():
            return JsonlRequests(latency.path, slo, latency, window_seconds=latency.window_seconds)
        case source.NginxLogLatency():
            return NginxLog(
                latency.path, slo, pattern=latency.pattern or LOG_PATTERN, window_seconds=latency.window_seconds
            )
        case source.CyclictestLatency():
            return CyclictestLines(latency.path, slo, unit=latency.unit, window_seconds=latency.window_seconds)
        case source.PostgresLatency():
            return PostgresLog(latency.path, slo, one_in=latency.one_in, window_seconds=latency.window_seconds)


def _polled(
    kind: str,
    latency: source.PrometheusLatency | source.HttpLatency,
    digest: Digest,
    slo: SLO,
) -> PolledSource:
    return PolledSource(
        kind, latency.url, digest, slo,
        timeout_seconds=latency.timeout_seconds, stale_seconds=latency.stale_seconds,
    )  # fmt: skip
