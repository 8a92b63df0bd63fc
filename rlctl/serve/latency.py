"""The latency source that a configuration names."""

from __future__ import annotations

from functools import partial

from rlctl.config import sources as source
from rlctl.envs.host.latency.cyclictest import CyclictestLines
from rlctl.envs.host.latency.json_object import FigureKeys, JsonDigest
from rlctl.envs.host.latency.jsonl import JsonlRequests, RequestKeys
from rlctl.envs.host.latency.nginx_log import LOG_PATTERN, NginxLog
from rlctl.envs.host.latency.polled import Ask, Digest, PolledSource
from rlctl.envs.host.latency.postgres_log import PostgresLog
from rlctl.envs.host.latency.prometheus import PrometheusDigest, PrometheusNames
from rlctl.envs.host.latency.redis_histogram import RedisDigest, ask_redis
from rlctl.envs.host.sensors.sensor import Sensor
from rlctl.envs.workload import SLO
from rlctl.serve.secret_file import secret_of


def latency_source(latency: source.Latency, slo: SLO) -> Sensor:
    """Open the source; one that asks an endpoint begins to at once."""
    match latency:
        case source.PrometheusLatency():
            names = PrometheusNames(
                latency.histogram, latency.labels, latency.oldest, latency.in_flight,
                latency.errors, latency.error_labels, latency.unit,
            )  # fmt: skip
            return _polled("prometheus", latency, latency.url, PrometheusDigest(names, slo), slo)
        case source.HttpLatency():
            keys = FigureKeys(
                latency.tail, latency.samples, latency.oldest, latency.offered_rps, latency.done_rps,
                latency.error_rps, latency.window, latency.stamp, latency.unit,
            )  # fmt: skip
            return _polled("json", latency, latency.url, JsonDigest(keys, latency.window_seconds), slo)
        case source.JsonlLatency():
            of_request = RequestKeys(latency.latency, latency.ok, latency.status, latency.unit)
            return JsonlRequests(latency.path, slo, of_request, window_seconds=latency.window_seconds)
        case source.NginxLogLatency():
            return NginxLog(
                latency.path, slo, pattern=latency.pattern or LOG_PATTERN, window_seconds=latency.window_seconds
            )
        case source.CyclictestLatency():
            return CyclictestLines(latency.path, slo, unit=latency.unit, window_seconds=latency.window_seconds)
        case source.PostgresLatency():
            return PostgresLog(latency.path, slo, one_in=latency.one_in, window_seconds=latency.window_seconds)
        case source.RedisLatency():
            return _redis(latency, slo)
        case source.OtlpLatency():
            from rlctl.serve.otlp import OtlpReceiver  # with asyncio and ssl

            return OtlpReceiver(latency, slo)


def _redis(latency: source.RedisLatency, slo: SLO) -> PolledSource:
    file = latency.password_file
    password = None if file is None else secret_of("lc.latency.password_file", file, 1).decode(errors="replace")
    ask = partial(ask_redis, latency.address, latency.commands, latency.username, password)
    return _polled("redis", latency, latency.address, RedisDigest(latency.commands, slo), slo, ask)


def _polled(
    kind: str,
    latency: source.PrometheusLatency | source.HttpLatency | source.RedisLatency,
    place: str,
    digest: Digest,
    slo: SLO,
    ask: Ask | None = None,
) -> PolledSource:
    return PolledSource(
        kind, place, digest, slo, ask=ask,
        timeout_seconds=latency.timeout_seconds, stale_seconds=latency.stale_seconds,
    )  # fmt: skip
