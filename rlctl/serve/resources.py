"""What a configuration says of memory, disks, cache and power, put into effect on a live host, and its sensors."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from rlctl.config.sections import ResourcesSection
from rlctl.envs.errors import CgroupError, CgroupGone, PermissionMissing, in_one_line
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.kernel import Identity
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.events import Seldom
from rlctl.envs.host.resources.blockio import disks, limit_io, set_io_weight
from rlctl.envs.host.resources.memory import HostMemorySensor, set_memory
from rlctl.envs.host.resources.power import LcFrequency, Rapl, rapl_zones
from rlctl.envs.host.resources.resctrl import Classes, ResctrlMonitor, task_ids, why_no_resctrl
from rlctl.envs.host.sensors.sensor import Sensor
from rlctl.envs.telemetry import Reading

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""Between two looks for what was refused or made anew, and tasks outside their class; a fork is born into its own."""

Lack = tuple[str, CgroupError | PermissionMissing]
"""A key of the section that is not in effect, with the reason."""

_LACK = "resources.%s is not in effect: %s"

Put = Callable[[Group, Knobs, Any], object]
"""Puts the value of a key into effect for one group."""

OF_LC: Mapping[str, Put] = {
    "lc_memory_min_bytes": lambda group, knobs, least: set_memory(group, knobs, "min", least),
    "lc_memory_low_bytes": lambda group, knobs, preferred: set_memory(group, knobs, "low", preferred),
}
OF_BE: Mapping[str, Put] = {
    "be_memory_high_bytes": lambda group, knobs, high: set_memory(group, knobs, "high", high),
    "be_memory_max_bytes": lambda group, knobs, most: set_memory(group, knobs, "max", most),
    "be_io_weight": set_io_weight,
    "be_disk_read_bytes_per_second": lambda group, knobs, rate: _limit_disks(group, knobs, "read", rate),
    "be_disk_write_bytes_per_second": lambda group, knobs, rate: _limit_disks(group, knobs, "write", rate),
}
"""Keys of the section that are settings of each LC's and of each BE group, in the order in which they are written."""


class Caretaker:
    """Puts the section into effect, and later on for groups and tasks that come; a dry run of the knobs is heeded.

    It is a sensor without readings, so that it is called each tick, when the others have been read.
    """

    name = "resources"
    provides: tuple[str, ...] = ()

    def __init__(
        self,
        section: ResourcesSection,
        lcs: Callable[[], Sequence[Group]],
        be_groups: Callable[[], Sequence[Group]],
        knobs: Knobs,
    ) -> None:
        self._section, self._lcs, self._be_groups, self._knobs = section, lcs, be_groups, knobs
        self._served: tuple[Group, ...] = ()
        # Why a key is not in effect for a group, as last told; empty where it is.
        self._told: dict[tuple[str, tuple[Identity, ...]], str] = {}
        self._classes: Classes | None = None
        self._next_seconds = float("-inf")
        self._trouble = Seldom(logging.WARNING)

    def begin(self) -> None:
        """Write everything, once; what this host lacks is a warning each, or with `strict` raised as an error."""
        self._served = tuple(self._be_groups())
        for key, error in (*self._put(), *self._divide()):
            if self._section.strict:
                raise type(error)(f"resources.{key}: {error} (and resources.strict is set)") from error
            log.warning(_LACK, key, error)

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """Look after groups and tasks that are new; there are no readings."""
        groups = tuple(self._be_groups())
        # A new BE group is bounded at once; the others can wait for the next look.
        if groups != self._served or now_seconds >= self._next_seconds:
            self._served, self._next_seconds = groups, now_seconds + LOOK_SECONDS
            for key, error in self._put():
                log.warning(_LACK, key, error)
            if self._classes is not None:
                self._gather(self._classes)
        return {}

    def close(self) -> None:
        """Nothing: originals come back from the journal."""

    def _put(self) -> Iterator[Lack]:
        """Put the section's keys into effect where they are not yet; yields those that are refused, once a reason."""
        told, self._told = self._told, {}
        # The LC's protection first, then BE's bounds.
        both = itertools.product(self._lcs(), OF_LC.items()), itertools.product(self._served, OF_BE.items())
        for group, (key, put) in itertools.chain(*both):
            at = key, tuple[Identity, ...]()
            if (value := getattr(self._section, key)) is None:
                continue
            try:
                at = key, group.identity()
                # Written once: what another program writes later stays.
                if told.get(at) != "":
                    put(group, self._knobs, value)
                self._told[at] = ""
            except CgroupGone:
                # With the group everything that could be bounded has gone; an LC may be restarted.
                continue
            except (CgroupError, PermissionMissing) as error:
                self._told[at] = str(error)
                if told.get(at) != str(error):
                    yield key, error

    def _divide(self) -> Iterator[Lack]:
        """Make the classes of cache and memory bandwidth, if there are to be any."""
        if (section := self._section.resctrl) is None:
            return
        try:
            classes = Classes(self._knobs)
            classes.make()
            # The classes count traffic even where cache cannot be divided.
            self._classes = classes
            self._gather(classes)
            classes.divide(
                section.be_cache_ratio, section.be_bandwidth_percent, section.be_bandwidth_megabytes_per_second
            )
        except (CgroupError, PermissionMissing) as error:
            yield "resctrl", error

    def _gather(self, classes: Classes) -> None:
        try:
            classes.gather(task_ids(self._lcs()), task_ids(self._served))
        except (CgroupError, PermissionMissing) as error:
            self._trouble.tell(f"resources.resctrl: {in_one_line(error)}")
        else:
            self._trouble.tell("")


def _limit_disks(group: Group, knobs: Knobs, direction: Literal["read", "write"], bytes_per_second: int) -> None:
    for disk in disks():
        limit_io(group, knobs, disk, direction, bytes_per_second)


def resource_sensors(section: ResourcesSection, lc_cpus: Iterable[int]) -> list[Sensor]:
    """Readings beside CPUs that this host has, and those that the section asks for: the latter with the reason if not.

    The CPUs are the LC's, whose frequency is read.
    """
    sensors: list[Sensor] = [HostMemorySensor()]
    if rapl_zones():
        sensors.append(Rapl())
    frequency = LcFrequency(lc_cpus)
    if frequency.present:
        sensors.append(frequency)
    if not why_no_resctrl() or section.dram_peak_bytes_per_second is not None:
        sensors.append(ResctrlMonitor(section.dram_peak_bytes_per_second))
    return sensors
