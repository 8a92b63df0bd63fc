"""From a serve configuration to a live host: groups are found, sensors opened, originals journalled."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rlctl.config import sources as source
from rlctl.config.serve import LcSection, ServeConfig
from rlctl.config.sources import WaitingLatency
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import CgroupGone, ConfigError, HostError, in_one_line
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.emergency import EmergencyPlan
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import JOURNAL, Entry, Journal
from rlctl.envs.host.cgroup.kernel import Identity, Kernel, whereabouts
from rlctl.envs.host.cgroup.knobs import Knobs, is_made_class, kind_of
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.cgroup.locks import Claims
from rlctl.envs.host.cgroup.members import RESTRICTING
from rlctl.envs.host.cgroup.ownership import Ownership, Witness
from rlctl.envs.host.cgroup.restore import put_back, restore
from rlctl.envs.host.events import Events
from rlctl.envs.host.following import Follower, GroupRoles
from rlctl.envs.host.latency.figures import JsonDigest
from rlctl.envs.host.latency.lc_sockets import NotTcp
from rlctl.envs.host.latency.line_formats import JsonRequests, LineFormat, PatternLines, PostgresLines, nginx_lines
from rlctl.envs.host.latency.polled import Digest, PolledSource
from rlctl.envs.host.latency.prometheus import PrometheusDigest
from rlctl.envs.host.latency.tcp import Pids, TcpSource
from rlctl.envs.host.latency.text_log import TextLog
from rlctl.envs.host.latency.waiting import WaitingSource
from rlctl.envs.host.live import Lc, LiveHost, LiveParts
from rlctl.envs.host.max_load import MaxLoad
from rlctl.envs.host.network.interface import is_interface
from rlctl.envs.host.poller import LcSources, Poller
from rlctl.envs.host.process import age_seconds
from rlctl.envs.host.reins.opening import LinkPlace, open_reins
from rlctl.envs.host.reins.reins import Reins
from rlctl.envs.host.sensors.cpu import HostCpus, LcAlive
from rlctl.envs.host.sensors.of_groups import absent_readings, group_sensors, perf_sensors
from rlctl.envs.host.sensors.sensor import Sensor
from rlctl.envs.host.topology import exclusive_cpus, require_online
from rlctl.envs.reins import Rein
from rlctl.envs.telemetry import Missing
from rlctl.envs.workload import SLO
from rlctl.serve.resources import Caretaker, resource_sensors
from rlctl.serve.workloads import Workloads, be_group, build_sharing, groups_of, why_uncontrolled

log = logging.getLogger(__name__)

# Ten files of each group stay open, and the usual soft limit is 1024. Nothing here uses select().
MOST_FILES = 1 << 16

YOUNG_SECONDS = 60.0
"""An LC that has run for less may listen yet: a JVM takes a quarter of a minute until it does."""

# They protect an LC, or are of use to other groups too.
_NO_RESTRICTIONS = frozenset({"memory.min", "memory.low", "cgroup.subtree_control"})


def build_live(
    config: ServeConfig,
    *,
    dry_run: bool = False,
    sleep: Callable[[float], object] = time.sleep,
    replan: Callable[[EmergencyPlan], object] | None = None,
) -> LiveHost:
    """The live host that a configuration describes. Nothing is written yet, but the originals are journalled.

    Args:
        sleep: How the host waits for the end of a period, see `LiveHost`.
        replan: Takes a new emergency plan whenever BE's groups are others.

    Raises:
        ConfigError: A workload cannot be what is named, LC and BE overlap, or a CPU for BE is not online.
        HostError: A workload does not run, or another controller holds the state directory or a BE group.
        PermissionMissing: Not allowed to write control groups or the state directory.
    """
    require_online("be.cpus", config.be.cpus or ())
    layout, events = Layout.detect(), Events()
    with contextlib.ExitStack() as stack:
        # closed last, when all is put back
        claims = None if dry_run else stack.enter_context(Claims(config.state_directory))
        originals = None if dry_run else stack.enter_context(_Originals(config.state_directory))
        # The soft limit is the shell's habit of 1024; a process may raise it to its hard limit.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, MOST_FILES), most))
        # Every write goes through the journal: an original is kept before its file is first changed.
        knobs = Knobs(originals.journal if originals else None, dry_run=dry_run)
        stack.callback(knobs.close)
        found = Workloads.find(config, layout, knobs, make=not dry_run)
        # Claimed before anything is written to them, so that no second controller takes our settings for originals.
        _claim(claims, found.be)
        # Before anything looks at an LC that was BE under a crashed predecessor.
        if originals and originals.inherited:
            originals.free_others(found, knobs.kernel)
        for lack in filter(None, (why_uncontrolled(group, layout) for group in found.be)):
            log.warning("%s", lack)
        lc_cpus, known = found.lc_cpus()
        witness = None if dry_run else stack.enter_context(contextlib.closing(Witness(knobs.holds)))
        actuator = _actuator(found, lc_cpus, known, knobs, _ownership(config, events, witness))
        sensors = _sensors(found, lc_cpus)
        absent = absent_readings(found.lc, found.be, sensors, perf=config.perf)
        others = tuple(found.lcs.values())[1:]
        caretaker = Caretaker(config.resources, lambda: (follower.lc, *others), lambda: actuator.groups, knobs)
        sensors.append(caretaker)
        (first, section), *further = config.lcs.items()
        lcs = [Lc(first, section.slo.slo, sensors, _max_load(first, found))]
        lcs += [_further_lc(name, section, found) for name, section in further]
        for sensor in (sensor for lc in lcs for sensor in lc.sensors):
            stack.callback(sensor.close)
        sharing = None if dry_run else build_sharing(
            config, found.best_effort, found.be[0], actuator.order, knobs, events
        )  # fmt: skip
        if sharing:
            stack.callback(sharing.close)
        be_selects, lc_selects = found.be_selects(), found.lc_selects()
        roles = GroupRoles(found.lc, be_selects, lc_selects, others)
        follower = Follower(layout, knobs, roles, actuator, sensors, events, claims)
        # The protection of the LC's memory comes before BE's first tick.
        caretaker.begin()
        reins = _reins(config, actuator, knobs, sensors, originals, events)
        stack.callback(reins.close)
        sensors.append(reins)
        watch = Poller({lc.name: LcSources(lc.slo, lc.sensors) for lc in lcs}, witness, sleep)
        stack.callback(watch.close)
        host = LiveHost(
            lcs, actuator, config.tick_seconds, lambda: opened.close(),
            LiveParts(
                absent=absent, events=events, follow=follower.follow if be_selects or lc_selects else None,
                sharing=sharing, watch=watch, replan=replan, reins=reins, be_returns=bool(be_selects),
            ),
        )  # fmt: skip
        host.lc_cpus_known = known
        if originals:
            host.begin = originals.begin
            host.inherited = originals.inherited
        # From here on `LiveHost.close` closes what was opened; until here a failure does.
        opened = stack.pop_all()
    return host


class _Originals:
    """The journal of a run; at its end what it holds is put back. A context manager.

    A start that fails before its first allocation leaves BE as a predecessor's watchdog has left it.
    """

    def __init__(self, state_directory: Path) -> None:
        self.journal = Journal.open(state_directory)
        self._begun = False
        self.inherited = bool(self.journal.entries)
        self._freed: list[Entry] = []
        if self.inherited:
            log.info("an earlier controller did not end in order: BE's originals stay those of its journal")

    def __enter__(self) -> _Originals:
        return self

    def __exit__(self, *_: object) -> None:
        with self.journal:
            # A start that failed before its first write leaves BE as the crashed predecessor's watchdog has it.
            if self._begun or not self.inherited:
                self._put_back()
            else:
                log.error("BE stays as an earlier controller has left it, until another start or `rlctl restore`")

    def free_others(self, found: Workloads, kernel: Kernel) -> None:
        """Put back what a crashed predecessor restricted and this configuration leaves alone, and its interfaces.

        Of a group that is BE's, or selected to be, or below or above one: weights, memory and disks, which this run may
        never write. Classes of cache and bandwidth go where this run has none. Quota, CPUs and freezer hold BE until
        the first tick. The journal keeps the originals: should this start fail, the predecessor's watchdog holds its
        groups as before.
        """
        selects, at = found.be_selects(), set(map(_place, self.journal.entries))
        free = {one for one in at if _is_free(whereabouts(kernel, *one), found, selects)}
        entries = [
            entry
            for entry in self.journal.entries
            if is_interface(entry.path)  # BE is at the least now, and whoever holds its packets sets up anew
            or (entry.path.name not in _NO_RESTRICTIONS and (_place(entry) in free or _is_left(entry.path)))
            or (is_made_class(entry.path) and found.config.resources.resctrl is None)
        ]
        if not entries:
            return
        report = put_back(entries, self.journal.state_dir, kernel)
        self._freed = [entry for entry in entries if report.ok and _place(entry) in free]
        for line in str(report).splitlines():
            log.log(logging.INFO if report.ok else logging.WARNING, "left by the earlier controller: %s", line)

    def begin(self) -> None:
        """BE is this run's from now on; what was put back is nobody's but its own: a crash must not do it again."""
        self._begun = True
        self.journal.drop(self._freed)

    def _put_back(self) -> None:
        """Restore, with the directory still locked: no other controller may journal our settings as originals."""
        # Whoever took it away must not keep BE from having its originals back.
        self.journal.defend()
        held = self.journal.unstored
        # The journal is gone after a forced `rlctl restore`; what this run wrote since is restored too.
        if not (self.journal.state_dir / JOURNAL).exists():
            held = [*self.journal.entries, *held]
        report = restore(self.journal.state_dir, force=True, held=held)
        for line in str(report).splitlines():
            log.log(logging.INFO if report.restored or report.failed else logging.DEBUG, "BE's settings: %s", line)
        if not report.ok:
            raise HostError(
                f"{len(report.failed)} originals were not put back, first {report.failed[0].path}: `rlctl restore`"
            )


def _is_left(path: Path) -> bool:
    """Whether a file has weights, memory or disks: all but quota, CPUs and freezer, and an LC's cache."""
    return path.name != "schemata" and kind_of(path).rank in (0, 4)


def _place(entry: Entry) -> tuple[Path, Identity]:
    return entry.path.parent, entry.identity


def _is_free(place: Path | None, found: Workloads, selects: Sequence[Callable[[str], bool]]) -> bool:
    """Whether a control group is there, is no relative of BE's, and is not selected to become one."""
    roots = {mount.path for mount in found.layout.mounts.values()}
    if place is None or not (above := roots.intersection(place.parents)):
        return False
    ours = (f"{directory}/" for group in found.be for directory in group.directories)
    if any(one.startswith(f"{place}/") or f"{place}/".startswith(one) for one in ours):
        return False
    line = [f"/{one.relative_to(root)}" for root in above for one in (place, *place.parents) if root in one.parents]
    return not any(select(name) for name in line for select in selects)


def unwritable(config: ServeConfig) -> tuple[Path, ...]:
    """What a run that is not dry would write and this user may not: knobs of BE, state and log directory."""
    layout, knobs = Layout.detect(), Knobs(None, dry_run=True)
    best_effort = be_group(config, layout, make=False)
    be = [group for workload in best_effort.workloads for group in groups_of(workload, layout, knobs)]
    files = [file for group in be for file in group.knob_files(*RESTRICTING)]
    knobs.close()
    homes = [_nearest(directory) for directory in (config.state_directory, config.log.directory)]
    return tuple(path for path in (*files, *homes) if not os.access(path, os.W_OK))


def _actuator(found: Workloads, lc_cpus: Sequence[int], known: bool, knobs: Knobs, ownership: Ownership) -> BeActuator:
    config, order = found.config, found.be_cpus(lc_cpus)
    limits = Limits(
        len(order), max(1.0, float(len(lc_cpus))), config.be.min_quota_cpus, config.be.quota_levels,
        exclusive_cpus=exclusive_cpus(order, lc_cpus) if known else 0, can_freeze=config.be.hold == "freeze",
    )  # fmt: skip
    # CFS bandwidth: quota and period are in microseconds (Documentation/scheduler/sched-bwc.rst).
    period_us = round(config.quota_period_milliseconds * 1e3)
    return BeActuator(found.be, order, limits, knobs, lc=found.lc, period_us=period_us, ownership=ownership)


def _reins(
    config: ServeConfig,
    actuator: BeActuator,
    knobs: Knobs,
    sensors: Iterable[Sensor],
    originals: _Originals | None,
    events: Events,
) -> Reins:
    """The reins that BE may be held by; a dry run holds it by none, and has the CPUs' alone."""
    be, resources = config.be, config.resources
    wanted = set(be.reins) if originals else {Rein.CPU}
    if be.link == "none":
        wanted.discard(Rein.LINK)
    # What an operator fixed is no level to move.
    if resources.be_disk_read_bytes_per_second or resources.be_disk_write_bytes_per_second:
        wanted.discard(Rein.DISK)
    alive = next(one for one in sensors if isinstance(one, LcAlive))

    def lc_pids() -> tuple[int, ...]:
        return () if isinstance(pids := alive.pids(), Missing) else pids

    place = LinkPlace(None if be.link == "auto" else be.link, lc_pids)
    reins = open_reins(actuator, knobs, wanted, place, originals.journal if originals else None, events)
    for rein, why in reins.absent.items():
        # What somebody named must be there; what is found by itself may not be.
        if rein is Rein.LINK and be.link != "auto":
            raise type(why)(f"be.link: {in_one_line(why)}")
        log.info("BE cannot be held by the %s: %s", rein, in_one_line(why))
    return reins


def _ownership(config: ServeConfig, events: Events, witness: Witness | None) -> Ownership:
    ticks = max(round(config.ownership.most_backoff_seconds / config.tick_seconds), 1)
    return Ownership(config.ownership.foreign, ticks, events, witness)


def _sensors(found: Workloads, lc_cpus: Sequence[int]) -> list[Sensor]:
    """Readers of the first LC, of BE and of the host."""
    config, section = found.config, next(iter(found.config.lcs.values()))
    of_groups = group_sensors(found.lc, found.be)
    sensors = [_latency(section, of_groups, found.lc), *of_groups]
    if config.perf:
        sensors += perf_sensors(found.lc, found.be, config.tick_seconds)
    return sensors + resource_sensors(config.resources, lc_cpus)


def _latency(section: LcSection, of_groups: Iterable[Sensor], lc: Group) -> Sensor:
    """The source of an LC's latency, told of its processes by the sensor that lists them.

    Where none is configured it is `tcp`, and `waiting` where that does not fit.

    Raises:
        ConfigError: The source does not fit the target, or `waiting` a stated maximum load.
        HostError: It does not fit the service; the LC has no process, or began to run a moment ago.
    """
    alive = next(one for one in of_groups if isinstance(one, LcAlive))
    alive.read(time.monotonic())
    try:
        return latency_source(section.latency, section.slo.slo, alive.pids, lc)
    except (ConfigError, HostError) as error:
        # An LC without a process is not there yet, and a new one may listen later: another start may find its port.
        pids = alive.pids()
        if "latency" in section.model_fields_set or isinstance(pids, Missing) or not pids:
            raise
        if isinstance(error, NotTcp) and (age := max(map(age_seconds, pids))) < YOUNG_SECONDS:
            raise NotTcp(
                f"{error}; it began to run {age:.0f} s ago: start rlctl again in a minute, or set "
                "`latency: {kind: waiting}` for it"
            ) from error
        if not isinstance(section.slo.max_load_rps, str):
            raise ConfigError(
                f"{error}; what an LC waits for tells no requests: set a `latency` for it, or remove slo.max_load_rps"
            ) from error
        try:
            waiting = latency_source(WaitingLatency(kind="waiting"), section.slo.slo, alive.pids, lc)
        except HostError as other:
            raise type(error)(f"no latency by `kind: tcp` ({error}); {other}") from error
        log.warning("LC %s has no latency by `kind: tcp` (%s): held is %s", lc.name, error, waiting.name)
        return waiting


def _max_load(lc: str, found: Workloads) -> MaxLoad:
    cpus, cpu = max(1.0, float(len(found.cpus_of(lc)))), found.lcs[lc].cpu
    return MaxLoad(lc, min(cpus, cpu.quota().cpus, cpu.ceiling_cpus()) if cpu else cpus)


def _further_lc(name: str, section: LcSection, found: Workloads) -> Lc:
    own = [sensor for sensor in group_sensors(found.lcs[name], ()) if not isinstance(sensor, HostCpus)]
    sensors = (_latency(section, own, found.lcs[name]), *own)
    return Lc(name, section.slo.slo, sensors, _max_load(name, found))


def _claim(claims: Claims | None, be: Iterable[Group]) -> None:
    """Keep other controllers off BE's groups; a dry run claims none."""
    if claims is None:
        return
    for group in be:
        # One group may vanish while the others are still there.
        with contextlib.suppress(CgroupGone):
            claims.take(group)


def _nearest(directory: Path) -> Path:
    return next((path for path in (directory, *directory.parents) if path.exists()), Path("/"))


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
