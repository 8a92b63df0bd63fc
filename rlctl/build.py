"""From a serve configuration to a live host: groups are found, sensors opened, originals journalled."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from pathlib import Path

from rlctl import config_sources as source
from rlctl.config import ServeConfig
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import ConfigError, HostError
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import Journal
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.cgroup.restore import restore
from rlctl.envs.host.discovery import discover
from rlctl.envs.host.latency.http_json import JsonSource
from rlctl.envs.host.latency.jsonl import JsonlRequests, RequestKeys
from rlctl.envs.host.latency.keys import FigureKeys
from rlctl.envs.host.latency.nginx_log import LOG_PATTERN, NginxLog
from rlctl.envs.host.latency.prometheus import PrometheusNames, PrometheusSource
from rlctl.envs.host.live import LiveHost, group_sensors, perf_sensors
from rlctl.envs.host.sensors.sensor import Sensor
from rlctl.envs.host.topology import cpu_order
from rlctl.envs.workload import SLO

__all__ = ["build_live"]

log = logging.getLogger(__name__)


def build_live(config: ServeConfig, *, dry_run: bool = False) -> LiveHost:
    """The live host that a configuration describes. Nothing is written yet, but the originals are journalled.

    Args:
        config: What to control.
        dry_run: Open no journal and never write.

    Raises:
        ConfigError: A workload cannot be what is named, or LC and BE overlap.
        HostError: A workload does not run, or another controller holds the state directory.
        PermissionMissing: Not allowed to write control groups or the state directory.
    """
    with contextlib.ExitStack() as stack:
        layout = Layout.detect()
        journal = None if dry_run else stack.enter_context(Journal.open(config.state_directory))
        if journal is not None:
            stack.callback(_put_back, config.state_directory)
        knobs = Knobs(journal, dry_run=dry_run)
        stack.callback(knobs.close)
        lc = _one_group(config.lc.workload, layout, knobs)
        be = [group for workload in config.be.workloads for group in _groups(workload, layout, knobs)]
        _apart(lc, be)
        lc_cpus = config.lc.cpus or tuple(lc.cpuset.effective() if lc.cpuset else ())
        order = config.be.cpus or cpu_order(lc_cpus)
        limits = Limits(
            len(order), max(1.0, float(len(lc_cpus))), config.be.min_quota_cpus, levels=config.be.quota_levels
        )
        sensors = [_latency(config.lc.latency, config.lc.slo.slo), *group_sensors(lc, be)]
        if config.perf:
            sensors += perf_sensors(lc, be, config.tick_seconds)
        for sensor in sensors:
            stack.callback(sensor.close)
        period_us = round(config.quota_period_milliseconds * 1e3)
        actuator = BeActuator(be, order, limits, knobs, lc=lc, period_us=period_us)
        host = LiveHost(limits, config.lc.slo.slo, config.tick_seconds, actuator, sensors, lambda: opened.close())
        opened = stack.pop_all()
    return host


def _put_back(state_directory: Path) -> None:
    """Restore, with the directory still locked: no other controller may journal our settings as originals.

    Raises:
        HostError: Something could not be put back.
    """
    report = restore(state_directory, force=True)
    log.info("originals: %s", report)
    if not report.ok:
        raise HostError(
            f"{len(report.failed)} originals were not put back, first {report.failed[0].path}: `rlctl restore`"
        )


def _groups(workload: source.Workload, layout: Layout, knobs: Knobs) -> list[Group]:
    """Every group of a workload, each seen through all hierarchies in which it exists."""
    if isinstance(workload, source.PidWorkload):
        return [Group.of_process(layout, workload.pid, knobs)]
    found = discover(workload.spec(), layout)
    names = dict.fromkeys(name for paths in found.paths.values() for name in paths)
    return [Group.open(layout, name, knobs) for name in names]


def _one_group(workload: source.Workload, layout: Layout, knobs: Knobs) -> Group:
    groups = _groups(workload, layout, knobs)
    if len(groups) > 1:
        raise ConfigError(f"lc.workload names {len(groups)} groups, among them {groups[0].name}; name one")
    return groups[0]


def _apart(lc: Group, be: Iterable[Group]) -> None:
    """What limits a group limits everything below it: LC and BE must not lie within one another."""
    for group in be:
        for ours in group.directories:
            for theirs in lc.directories:
                if ours == theirs or ours in theirs.parents or theirs in ours.parents:
                    raise ConfigError(f"BE group {ours} and LC group {theirs} overlap: what limits one limits both")


def _latency(latency: source.Latency, slo: SLO) -> Sensor:
    match latency:
        case source.PrometheusLatency():
            names = PrometheusNames(latency.histogram, latency.labels, latency.oldest, latency.in_flight, latency.unit)
            return PrometheusSource(
                latency.url, names, slo, timeout_seconds=latency.timeout_seconds, stale_seconds=latency.stale_seconds
            )
        case source.HttpLatency():
            keys = FigureKeys(
                latency.tail, latency.samples, latency.oldest, latency.offered_rps, latency.done_rps,
                latency.error_rps, latency.window, latency.stamp, latency.unit,
            )  # fmt: skip
            return JsonSource(
                latency.url, keys, slo, timeout_seconds=latency.timeout_seconds,
                stale_seconds=latency.stale_seconds, window_seconds=latency.window_seconds,
            )  # fmt: skip
        case source.JsonlLatency():
            of_request = RequestKeys(latency.latency, latency.ok, latency.unit)
            return JsonlRequests(latency.path, slo, of_request, window_seconds=latency.window_seconds)
        case source.NginxLogLatency():
            return NginxLog(
                latency.path, slo, pattern=latency.pattern or LOG_PATTERN, window_seconds=latency.window_seconds
            )
