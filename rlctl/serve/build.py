"""From a serve configuration to a live host: groups are found, sensors opened, originals journalled."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from rlctl.config import sources as source
from rlctl.config.serve import LcSection, ServeConfig
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import CgroupGone, ConfigError, HostError, RlctlError
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.claim import Claims
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import Entry, Journal
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Controller, Layout
from rlctl.envs.host.cgroup.ownership import Ownership
from rlctl.envs.host.cgroup.restore import restore
from rlctl.envs.host.cgroup.witness import Witness
from rlctl.envs.host.cpulist import format_cpus
from rlctl.envs.host.discovery import discover, selects
from rlctl.envs.host.events import Events
from rlctl.envs.host.following import Follower
from rlctl.envs.host.latency.cyclictest import CyclictestLines
from rlctl.envs.host.latency.http_json import JsonSource
from rlctl.envs.host.latency.jsonl import JsonlRequests, RequestKeys
from rlctl.envs.host.latency.keys import FigureKeys
from rlctl.envs.host.latency.nginx_log import LOG_PATTERN, NginxLog
from rlctl.envs.host.latency.prometheus import PrometheusNames, PrometheusSource
from rlctl.envs.host.live import KNOBS, LiveHost, OtherLc
from rlctl.envs.host.sensors.cpu import HostCpus
from rlctl.envs.host.sensors.of_groups import absent_readings, group_sensors, perf_sensors
from rlctl.envs.host.sensors.sensor import Sensor
from rlctl.envs.host.topology import SYS, cpu_order, read_list
from rlctl.envs.workload import SLO
from rlctl.serve.build_applications import be_group, build_sharing
from rlctl.serve.resources import Caretaker, resource_sensors

__all__ = ["build_live", "lc_of", "uncontrolled", "unwritable", "within_reach"]

log = logging.getLogger(__name__)

MOST_FILES = 1 << 16

_MEANS = {"cpu": "held to a quota", "cpuset": "confined to CPUs", "freezer": "suspended"}
_LEFT = {"cpu": "the quota", "cpuset": "the cpuset", "freezer": "the freezer"}


def build_live(config: ServeConfig, *, dry_run: bool = False) -> LiveHost:
    """The live host that a configuration describes. Nothing is written yet, but the originals are journalled.

    Args:
        config: What to control.
        dry_run: Open no journal and never write.

    Raises:
        ConfigError: A workload cannot be what is named, LC and BE overlap, or a CPU for BE is not online.
        HostError: A workload does not run, or another controller holds the state directory or a BE group.
        PermissionMissing: Not allowed to write control groups or the state directory.
    """
    with contextlib.ExitStack() as stack:
        _online(config.be.cpus)
        layout = Layout.detect()
        claims = None if dry_run else stack.enter_context(Claims())  # closed last, when all is put back
        journal = None if dry_run else stack.enter_context(Journal.open(config.state_directory))
        started, inherited = False, bool(journal and journal.entries)

        def put_back() -> None:
            """A start that fails leaves BE as a predecessor's watchdog has left it, rather than set it free."""
            if started or not inherited:
                _put_back(config.state_directory, journal.held if journal else ())
            else:
                log.error("BE stays as an earlier controller has left it, until another start or `rlctl restore`")

        if journal is not None:
            stack.callback(put_back)
        _open_many_files()
        knobs = Knobs(journal, dry_run=dry_run)
        stack.callback(knobs.close)
        events = Events()
        witness = None if dry_run else Witness()
        if witness is not None:
            stack.callback(witness.close)
        sections = config.lcs
        lcs = {name: _one_group(section.workload, layout, knobs) for name, section in sections.items()}
        (lc_name, lc), *further = lcs.items()
        first = sections[lc_name]
        best_effort = be_group(config, layout, make=not dry_run)
        be = [group for workload in best_effort.workloads for group in _groups(workload, layout, knobs)]
        _apart(lcs.values(), be)
        _claim(claims, be)
        for group in be:
            if lack := uncontrolled(group, layout):
                log.warning("%s", lack)
        lc_cpus = _cpus_of(sections, lcs)
        order = config.be.cpus or cpu_order(lc_cpus, best_effort.reach or within_reach(be))
        limits = Limits(
            len(order), max(1.0, float(len(lc_cpus))), config.be.min_quota_cpus, levels=config.be.quota_levels
        )
        sensors = [_latency(first.latency, first.slo.slo), *group_sensors(lc, be)]
        if config.perf:
            sensors += perf_sensors(lc, be, config.tick_seconds)
        sensors += resource_sensors(config.resources, lc_cpus)
        absent = absent_readings(lc, be, sensors, perf=config.perf)
        more = [_other_lc(name, sections[name], group) for name, group in further]
        for sensor in (*sensors, *(sensor for one in more for sensor in one.sensors)):
            stack.callback(sensor.close)
        period_us = round(config.quota_period_milliseconds * 1e3)
        actuator = BeActuator(
            be, order, limits, knobs, lc=lc, period_us=period_us, ownership=_ownership(config, events, witness)
        )
        caretaker = Caretaker(config.resources, list(lcs.values()), lambda: actuator.groups, layout, knobs)
        sensors.append(caretaker)
        others = [one for workload in best_effort.workloads if (one := _selects(workload, be)) is not None]
        sharing = None if dry_run else build_sharing(config, best_effort, be[0], order[: limits.cpus], knobs, events)
        if sharing is not None:
            stack.callback(sharing.close)
        follower = Follower(
            layout, knobs, lc, _selects(first.workload, [lc]), others, actuator, sensors, events, claims
        )  # fmt: skip
        caretaker.begin()
        controls = frozenset(knob for knob in KNOBS if all(getattr(group, knob) is not None for group in be))
        host = LiveHost(
            limits, first.slo.slo, config.tick_seconds, actuator, sensors, lambda: opened.close(),
            absent=absent, controls=controls, events=events, follow=follower.follow if others else None,
            sharing=sharing, others=more, lc_name=lc_name,
        )  # fmt: skip
        opened, started = stack.pop_all(), True
    return host


def unwritable(config: ServeConfig) -> tuple[Path, ...]:
    """What a run that is not dry would write and this user may not: knobs of BE, state and log directory.

    Raises:
        ConfigError: As `build_live`.
        HostError: As `build_live`.
    """
    layout = Layout.detect()
    knobs = Knobs(None, dry_run=True)
    best_effort = be_group(config, layout, make=False)
    be = [group for workload in best_effort.workloads for group in _groups(workload, layout, knobs)]
    files = [file for group in be for file in _knob_files(group)]
    knobs.close()
    homes = [_nearest(directory) for directory in (config.state_directory, config.log.directory)]
    return tuple(path for path in (*files, *homes) if not os.access(path, os.W_OK))


def lc_of(config: ServeConfig, pid: int) -> str:
    """Name of the LC that a process belongs to now; empty if it is none's, or that LC does not run."""
    layout, knobs = Layout.detect(), Knobs(None, dry_run=True)
    for name, section in config.lcs.items():
        with contextlib.suppress(RlctlError):
            if any(pid in group.pids() for group in _groups(section.workload, layout, knobs)):
                return name
    return ""


def uncontrolled(group: Group, layout: Layout) -> str:
    """What BE cannot be restricted by because a group lacks it, in one line with the way out; empty if nothing."""
    lost = [knob for knob in KNOBS if getattr(group, knob) is None]
    left = [_LEFT[knob] for knob in KNOBS if knob not in lost]
    if not lost or not left:  # without any of them there is an error anyway
        return ""
    none = " and ".join(f"no {knob}" for knob in reversed(lost))
    cannot = " or ".join(_MEANS[knob] for knob in reversed(lost))
    rest = f"{left[0]} is all there is" if len(left) == 1 else f"{' and '.join(left)} are all there is"
    way = ", ".join(_way_out(knob, group, layout) for knob in reversed(lost))
    name = group.name if group.name.startswith("process ") else f"/{group.name.strip('/')}"
    return f"BE group {name} has {none} group: BE cannot be {cannot}; {rest} ({way}, to allow it)"


def within_reach(be: Iterable[Group]) -> frozenset[int] | None:
    """CPUs that every BE group may have; None if there are no such.

    Others are a partition's or beyond its parent's limit. To write them gains nothing, and breaks up the partition.
    """
    reach = [group.cpuset.available() for group in be if group.cpuset]
    return frozenset.intersection(*reach) or None if reach else None


def _way_out(knob: str, group: Group, layout: Layout) -> str:
    controller = Controller(knob)
    if controller not in layout.mounts:
        return f"this host has to mount cgroup {knob}"
    mount, other = layout.mounts[controller], next(iter(group.paths))
    folder = mount.path / group.paths[other].relative_to(layout.mounts[other].path)
    if mount.version == 2 and folder.is_dir():  # the parent decides which controllers its children have
        return f"write +{knob} to {folder.parent / 'cgroup.subtree_control'}"
    return f"make {folder} with BE's processes in it"


def _claim(claims: Claims | None, be: Iterable[Group]) -> None:
    """Keep other controllers off BE's groups; a dry run has no claims."""
    if claims is None:
        return
    for group in be:
        with contextlib.suppress(CgroupGone):  # the others may be there still
            claims.take(group)


def _online(cpus: Iterable[int] | None, sys: Path = SYS) -> None:
    """Refuse CPUs for BE that are not there, before anything is touched."""
    online = read_list(sys / "devices/system/cpu/online")
    absent = frozenset(cpus or ()) - online
    if absent and online:
        verb = "is" if len(absent) == 1 else "are"
        raise ConfigError(f"be.cpus: {format_cpus(absent)} {verb} not online ({format_cpus(online)})")


def _knob_files(group: Group) -> tuple[Path, ...]:
    return (
        *(group.cpu.quota_files if group.cpu else ()),
        *(group.cpuset.cpus_files if group.cpuset else ()),
        *(group.freezer.freezer_files if group.freezer else ()),
    )


def _nearest(directory: Path) -> Path:
    return next((path for path in (directory, *directory.parents) if path.exists()), Path("/"))


def _put_back(state_directory: Path, held: Sequence[Entry]) -> None:
    """Restore, with the directory still locked: no other controller may journal our settings as originals.

    Raises:
        HostError: Something could not be put back.
    """
    report = restore(state_directory, force=True, held=held)
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


def _selects(workload: source.Workload, groups: Sequence[Group]) -> Callable[[str], bool] | None:
    """How groups of a workload are known that come later; None if there can be none."""
    return selects(workload.spec(), [group.name for group in groups])


def _cpus_of(sections: Mapping[str, LcSection], lcs: Mapping[str, Group]) -> tuple[int, ...]:
    """The CPUs of all LCs, each once; none, which is told, where they are not known."""
    each = [
        section.cpus or sorted(cpuset.effective() if (cpuset := lcs[name].cpuset) else ())
        for name, section in sections.items()
    ]
    known = tuple(dict.fromkeys(cpu for cpus in each for cpu in cpus))
    if not known:
        log.warning("the LC's CPUs are not known, as it has no cpuset group: taken for one CPU; set lc.cpus")
    return known


def _other_lc(name: str, section: LcSection, group: Group) -> OtherLc:
    """A further LC; HostCpus and perf are the first one's."""
    own = [sensor for sensor in group_sensors(group, ()) if not isinstance(sensor, HostCpus)]
    return OtherLc(name, section.slo.slo, (_latency(section.latency, section.slo.slo), *own))


def _ownership(config: ServeConfig, events: Events, witness: Witness | None) -> Ownership:
    ticks = max(round(config.ownership.most_backoff_seconds / config.tick_seconds), 1)
    return Ownership(config.ownership.foreign, ticks, events, witness)


def _open_many_files() -> None:
    """Ten files of each group stay open, and the usual soft limit is 1024. Nothing here uses select()."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, MOST_FILES), most))


def _one_group(workload: source.Workload, layout: Layout, knobs: Knobs) -> Group:
    groups = _groups(workload, layout, knobs)
    if len(groups) > 1:
        raise ConfigError(f"lc.workload names {len(groups)} groups, among them {groups[0].name}; name one")
    return groups[0]


def _apart(lcs: Iterable[Group], be: Sequence[Group]) -> None:
    """What limits a group limits everything below it: LC and BE must not lie within one another."""
    for lc, group in itertools.product(lcs, be):
        if both := group.overlap(lc):
            raise ConfigError(
                f"BE group {both[0]} and LC group {both[1]} overlap: what limits one limits both; name others"
            )


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
        case source.CyclictestLatency():
            return CyclictestLines(latency.path, slo, unit=latency.unit, window_seconds=latency.window_seconds)
