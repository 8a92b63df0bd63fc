"""The latency source that a configuration names."""

from __future__ import annotations

from rlctl.config import sources as source
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.latency.json_object import JsonDigest
from rlctl.envs.host.latency.line_formats import JsonRequests, LineFormat, PatternLines, nginx_lines
from rlctl.envs.host.latency.polled import Digest, PolledSource
from rlctl.envs.host.latency.postgres_lines import PostgresLines
from rlctl.envs.host.latency.prometheus import PrometheusDigest
from rlctl.envs.host.latency.tcp import Pids, TcpSource
from rlctl.envs.host.latency.text_log import TextLog
from rlctl.envs.host.latency.waiting import WaitingSource
from rlctl.envs.host.sensors.sensor import Sensor
from rlctl.envs.workload import SLO


def latency_source(latency: source.Latency, slo: SLO, pids: Pids, lc: Group | None = None) -> Sensor:
    """Open the source; one that asks an endpoint begins to at once.

    Args:
        pids: The LC's processes now.
        lc: The LC's group, for `waiting`.

    Raises:
        ConfigError: The source does not fit the target.
        HostError: It does not fit the service, or not yet.
    """
    match latency:
        case source.TcpLatency():
            return TcpSource(
                slo, pids, ports=latency.ports, window_seconds=latency.window_seconds,
                cpu_ratio=latency.cpu_percent / 100.0,
            )  # fmt: skip
        case source.WaitingLatency():
            assert lc is not None
            return WaitingSource(slo, lc, pids, latency.bound_percent / 100.0)
        case source.PrometheusLatency():
            return _poll_source("prometheus", latency, PrometheusDigest(latency, slo), slo)
        case source.HttpLatency():
            return _poll_source("json", latency, JsonDigest(latency, latency.window_seconds), slo)
        case _:
            return TextLog(latency.path, _lines(latency), slo, window_seconds=latency.window_seconds)


def _lines(latency: source.TextLatency) -> LineFormat:
    match latency:
        case source.JsonlLatency():
            return JsonRequests(latency)
        case source.PatternLatency():
            return PatternLines(latency.pattern, latency.unit)
        case source.NginxLogLatency():
            return nginx_lines()
        case source.PostgresLatency():
            return PostgresLines(latency.one_in)


def _poll_source(
    kind: str,
    latency: source.PrometheusLatency | source.HttpLatency,
    digest: Digest,
    slo: SLO,
) -> PolledSource:
    return PolledSource(
        kind, latency.url, digest, slo,
        timeout_seconds=latency.timeout_seconds, stale_seconds=latency.stale_seconds,
    )  # fmt: skip
