"""What a configuration says of memory, disks, cache and power, put into effect on a live host, and its sensors."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from rlctl.config.resources import ResctrlSection, ResourcesSection
from rlctl.envs.errors import CgroupError, CgroupGone, PermissionMissing
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.kernel import Identity
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.resources.blockio import disks, io_of
from rlctl.envs.host.resources.cpufreq import LcFrequency
from rlctl.envs.host.resources.host_memory import HostMemory
from rlctl.envs.host.resources.memory import MemoryDriver, memory_of
from rlctl.envs.host.resources.node_power import NodePower, power_source
from rlctl.envs.host.resources.powercap import Rapl, rapl_zones
from rlctl.envs.host.resources.resctrl import Classes, Shares, task_ids, why_no_resctrl
from rlctl.envs.host.resources.resctrl_monitor import ResctrlMonitor
from rlctl.envs.host.sensors.sensor import Sensor
from rlctl.envs.telemetry import Missing, Reading

__all__ = ["LOOK_SECONDS", "Caretaker", "resource_sensors"]

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""Between two looks for an LC that was made anew, and for tasks outside their class; a fork is born into its own."""

Setting = tuple[str, Callable[[], object]]
"""A key of the section, and what puts it into effect."""


class Caretaker:
    """Puts the section into effect, and later on for groups and tasks that come.

    It is a sensor without readings, so that it is called each tick, when the others have been read.

    Args:
        section: Of the configuration.
        lcs: The LCs' groups.
        be_groups: BE's groups now.
        layout: Where the hierarchies are.
        knobs: Journals originals; its dry run is heeded.
    """

    name = "resources"
    provides: tuple[str, ...] = ()

    def __init__(
        self,
        section: ResourcesSection,
        lcs: Sequence[Group],
        be_groups: Callable[[], Sequence[Group]],
        layout: Layout,
        knobs: Knobs,
    ) -> None:
        self._section, self._lcs, self._be_groups = section, tuple(lcs), be_groups
        self._layout, self._knobs = layout, knobs
        self._served: tuple[Group, ...] = ()
        self._identities: dict[Group, tuple[Identity, ...]] = {}
        self._classes: Classes | None = None
        self._next_seconds = float("-inf")

    def begin(self) -> None:
        """Write everything, once; what this host lacks is a warning each.

        Raises:
            HostError: It lacks something, and the section is strict; or originals cannot be journalled.
            PermissionMissing: Something may not be written, and the section is strict.
        """
        self._served = tuple(self._be_groups())
        self._effect(self._of_lcs(self._made_anew()))
        self._effect(self._of_be(self._served))
        self._effect(self._of_classes())

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """Look after groups and tasks that are new; there are no readings."""
        groups = tuple(self._be_groups())
        if groups != self._served:
            fresh = [group for group in groups if group not in self._served]
            self._served = groups
            self._next_seconds = now_seconds
            self._tell(self._of_be(fresh))
        if now_seconds >= self._next_seconds:
            self._next_seconds = now_seconds + LOOK_SECONDS
            self._tell(self._of_lcs(self._made_anew()))
            if self._classes is not None:
                self._gather(self._classes)
        return {}

    def close(self) -> None:
        """Nothing: originals come back from the journal."""

    def _effect(self, settings: Iterable[Setting]) -> None:
        for key, error in _lacking(settings):
            if self._section.strict:
                raise type(error)(f"resources.{key}: {error} (and resources.strict is set)") from error
            log.warning("resources.%s is not in effect: %s", key, error)

    def _tell(self, settings: Iterable[Setting]) -> None:
        for key, error in _lacking(settings):
            log.warning("resources.%s: %s", key, error)

    def _made_anew(self) -> list[Group]:
        """LCs whose groups are others than at the last look, as after a restart of their service."""
        found = []
        for group in self._lcs:
            with contextlib.suppress(CgroupError):  # gone, and not yet back
                identity = group.identity()
                if self._identities.get(group) != identity:
                    self._identities[group] = identity
                    found.append(group)
        return found

    def _of_lcs(self, groups: Iterable[Group]) -> Iterator[Setting]:
        least, preferred = self._section.lc_memory_min_bytes, self._section.lc_memory_low_bytes
        for group in groups:
            if least is not None:
                yield "lc_memory_min_bytes", partial(self._keep, group, least, None)
            if preferred is not None:
                yield "lc_memory_low_bytes", partial(self._keep, group, None, preferred)

    def _keep(self, group: Group, least_bytes: int | None, preferred_bytes: int | None) -> None:
        self._memory(group).keep(least_bytes, preferred_bytes)

    def _of_be(self, groups: Iterable[Group]) -> Iterator[Setting]:
        for group in groups:
            yield from self._memory_of_be(group)
            yield from self._disks_of_be(group)

    def _memory_of_be(self, group: Group) -> Iterator[Setting]:
        high, most = self._section.be_memory_high_bytes, self._section.be_memory_max_bytes
        if high is not None:
            yield "be_memory_high_bytes", lambda: self._memory(group).cap(high_bytes=high)
        if most is not None:
            yield "be_memory_max_bytes", lambda: self._memory(group).cap(most_bytes=most)

    def _disks_of_be(self, group: Group) -> Iterator[Setting]:
        section = self._section
        weight = section.be_io_weight
        if weight is not None:
            yield "be_io_weight", lambda: io_of(group, self._knobs).set_weight(weight)
        limits = section.be_disk_read_bytes_per_second, section.be_disk_write_bytes_per_second
        for key, given in zip(("read", "write"), ((limits[0], None), (None, limits[1])), strict=True):
            if given != (None, None):
                yield f"be_disk_{key}_bytes_per_second", partial(self._limit_disks, group, *given)

    def _limit_disks(self, group: Group, read: int | None, write: int | None) -> None:
        driver = io_of(group, self._knobs)
        for disk in disks():
            driver.limit(disk, read, write)

    def _of_classes(self) -> Iterator[Setting]:
        if self._section.resctrl is not None:
            yield "resctrl", partial(self._divide, self._section.resctrl)

    def _divide(self, section: ResctrlSection) -> None:
        shares = Shares(
            section.be_cache_ratio, section.be_bandwidth_percent, section.be_bandwidth_megabytes_per_second
        )  # fmt: skip
        classes = Classes(self._knobs)
        classes.make()
        self._classes = classes  # they count, even where they cannot be divided
        self._gather(classes)
        classes.divide(shares)

    def _gather(self, classes: Classes) -> None:
        try:
            classes.gather(task_ids(self._lcs), task_ids(self._served))
        except (CgroupError, PermissionMissing) as error:
            log.warning("resources.resctrl: %s", error)
            self._classes = None

    def _memory(self, group: Group) -> MemoryDriver:
        return memory_of(group, self._knobs)


def resource_sensors(section: ResourcesSection, lc_cpus: Iterable[int]) -> list[Sensor]:
    """Readings beside CPUs that this host has, and those that the section asks for: the latter with the reason if not.

    Args:
        section: Of the configuration.
        lc_cpus: CPUs of the LC.
    """
    sensors: list[Sensor] = [HostMemory()]
    if rapl_zones():
        sensors.append(Rapl())
    frequency = LcFrequency(lc_cpus)
    if frequency.present:
        sensors.append(frequency)
    if not why_no_resctrl() or section.dram_peak_bytes_per_second is not None:
        sensors.append(ResctrlMonitor(section.dram_peak_bytes_per_second))
    if section.node_power:
        source = power_source()
        if isinstance(source, Missing):
            log.warning("resources.node_power is not in effect: %s", source.detail)
        else:
            sensors.append(NodePower(source[0], cancel=source[1]))
    return sensors


def _lacking(settings: Iterable[Setting]) -> Iterator[tuple[str, CgroupError | PermissionMissing]]:
    for key, put in settings:
        try:
            put()
        except CgroupGone:
            continue  # and with the group all that could be bounded
        except (CgroupError, PermissionMissing) as error:
            yield key, error
