"""Which sensors the groups of an LC and of BE get, and why they give no readings of some names."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from rlctl.envs.errors import SensorError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.sensors.cpu import GroupCpus, HostCpus, LcAlive
from rlctl.envs.host.sensors.perf import PerfSensor, perf_root
from rlctl.envs.host.sensors.psi import Psi
from rlctl.envs.host.sensors.schedstat import RunDelay
from rlctl.envs.host.sensors.sensor import Sensor
from rlctl.envs.telemetry import READINGS, Missing, Why

log = logging.getLogger(__name__)

ABSENT = Missing(Why.NOT_CONFIGURED, "no sensor of this set-up provides it")

# Readings that one sensor gives; the others take two to know.
SENSED = frozenset(READINGS) - {"be_work_rate", "lc_cpu_seconds_per_request"}


def group_sensors(lc: Group, be: Sequence[Group]) -> list[Sensor]:
    """Every sensor that these groups have files for; what the host has not stays missing, as `rlctl doctor` tells."""
    sensors: list[Sensor] = [alive := LcAlive(lc.procs_file), RunDelay(alive.pids), HostCpus()]
    if lc.usage_file:
        sensors.append(GroupCpus(lc.usage_file, [group.usage_file for group in be if group.usage_file]))
    if lc.pressure_file:
        pressed = [group.pressure_file.parent for group in be if group.pressure_file]
        sensors.append(Psi(lc.pressure_file.parent, pressed))
    return sensors


def follow_groups(sensors: Iterable[Sensor], lc: Group, be: Sequence[Group]) -> None:
    """Point sensors as `group_sensors` and `perf_sensors` made them at other groups, right after they were read.

    Raises:
        SensorError: perf does not take a group's name; the other sensors follow.
    """
    for sensor in sensors:
        match sensor:
            case LcAlive():
                sensor.follow(lc.procs_file)
            case GroupCpus() if lc.usage_file:
                sensor.follow(lc.usage_file, [group.usage_file for group in be if group.usage_file])
            case Psi() if lc.pressure_file:
                pressed = [group.pressure_file.parent for group in be if group.pressure_file]
                sensor.follow(lc.pressure_file.parent, pressed)
    for sensor in sensors:
        if isinstance(sensor, PerfSensor):
            sensor.follow(_perf_names([lc], sensor.root), _perf_names(be, sensor.root))


NO_CPUACCT = "has no cpuacct group; make one of the same name there, with its processes"


def absent_readings(lc: Group, be: Sequence[Group], sensors: Sequence[Sensor], *, perf: bool) -> dict[str, str]:
    """Telemetry fields that these groups and sensors do not give, each with its reason."""
    provided = {name for sensor in sensors for name in sensor.provides}
    reasons = dict.fromkeys(SENSED - provided, ABSENT.detail)
    if "cpi" in reasons:
        reasons["cpi"] = "perf cannot count here, see `rlctl doctor`" if perf else "perf is off; set perf: true"
    if lc.usage_file is None:
        reasons |= dict.fromkeys(("lc_cpus", "be_cpus"), f"the LC {NO_CPUACCT}")
    elif not any(group.usage_file for group in be):
        reasons["be_cpus"] = f"BE {NO_CPUACCT}"
    if lc.pressure_file is None:
        reasons |= dict.fromkeys(("lc_pressure_ratio", "be_pressure_ratio"), "the LC has no cgroup2 group")
    elif not any(group.pressure_file for group in be):
        reasons["be_pressure_ratio"] = "BE has no cgroup2 group"
    reasons |= {"be_work_rate": reasons["be_cpus"]} if "be_cpus" in reasons else {}
    return reasons | ({"lc_cpu_seconds_per_request": reasons["lc_cpus"]} if "lc_cpus" in reasons else {})


def perf_sensors(lc: Group, be: Sequence[Group], interval_seconds: float) -> list[Sensor]:
    """Hardware and software counters of these groups, where perf can find them; else none, and the log says why."""
    root = perf_root()
    if root is None:
        log.warning("perf finds cgroups by their cgroup2 or perf_event mount, and there is neither: no counters")
        return []

    try:
        names = _perf_names([lc], root), _perf_names(be, root)
        if not any(names):
            log.warning("no perf counters: neither the LC nor BE has a group below %s, where perf looks", root)
            return []
        return [PerfSensor(*names, root, interval_seconds=interval_seconds)]
    except SensorError as error:
        log.warning("no perf counters: %s", error)
        return []


def _perf_names(groups: Iterable[Group], root: Path) -> list[str]:
    folders = (folder for group in groups for folder in group.directories if folder.is_relative_to(root))
    return [str(folder.relative_to(root)) for folder in folders]
