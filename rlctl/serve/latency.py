"""The latency source that a configuration names."""

from __future__ import annotations

from rlctl.config import sources as source
from rlctl.envs.errors import RlctlError
from rlctl.envs.host.latency.cyclictest import CyclictestLines
from rlctl.envs.host.latency.json_object import JsonDigest
from rlctl.envs.host.latency.jsonl import JsonlRequests
from rlctl.envs.host.latency.nginx_log import LOG_PATTERN, NginxLog
from rlctl.envs.host.latency.polled import Ask, Digest, PolledSource
from rlctl.envs.host.latency.postgres_log import PostgresLog
from rlctl.envs.host.latency.prometheus import PrometheusDigest
from rlctl.envs.host.latency.redis_histogram import RedisDigest, ask_redis
from rlctl.envs.host.sensors.sensor import Sensor
from rlctl.envs.telemetry import Missing, Why
from rlctl.envs.workload import SLO
from rlctl.serve.secret_file import secret_of


def latency_source(latency: source.Latency, slo: SLO) -> Sensor:
    """Open the source; one that asks an endpoint begins to at once."""
    match latency:
        case source.PrometheusLatency():
            return _polled("prometheus", latency, latency.url, PrometheusDigest(latency, slo), slo)
        case source.HttpLatency():
            return _polled("json", latency, latency.url, JsonDigest(latency, latency.window_seconds), slo)
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
        case source.RedisLatency():
            return _polled("redis", latency, latency.address, RedisDigest(latency.commands, slo), slo, _asked(latency))
        case source.OtlpLatency():
            from rlctl.serve.otlp import OtlpReceiver  # with asyncio and ssl

            return OtlpReceiver(latency, slo)


def _asked(latency: source.RedisLatency) -> Ask:
    def password() -> str | None:
        if latency.password_file is None:
            return None
        return secret_of("lc.latency.password_file", latency.password_file, 1).decode(errors="replace")

    def ask(seconds: float) -> bytes | Missing:
        try:  # each time: whoever keeps secrets exchanges them
            return ask_redis(latency.address, latency.commands, latency.username, password(), seconds)
        except RlctlError as error:
            return Missing(Why.NO_PERMISSION, f"{latency.address}: {error}")

    password()  # a file that cannot be read ends the start
    return ask


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
