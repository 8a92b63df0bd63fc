"""The writes that take BE from anything to the safe allocation, for a process that knows no drivers."""

from __future__ import annotations

import errno
from collections import ChainMap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlctl.envs.allocation import Limits
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.kernel import Identity, Kernel
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.values import PERIOD_US, Quota

# What the drivers read from these files, so that they never take a write for unnecessary.
_UNLIKE_ANY = {"cpu.cfs_period_us": "1", "cpu.cfs_burst_us": "1000000000", "cpu.max.burst": "1000000000"}

# By the file that orders a freeze: where a line shows that all tasks have stopped, and that line.
_STOPPED = {"freezer.state": ("freezer.state", "FROZEN"), "cgroup.freeze": ("cgroup.events", "frozen 1")}


@dataclass(frozen=True, slots=True)
class EmergencyWrite:
    """One write of the plan.

    Attributes:
        identity: Of the group's directory when the plan was made.
        probe: File of the same group that tells whether it has taken.
        wanted: A whole line of that file that says yes.
    """

    path: Path
    text: str
    identity: Identity
    probe: str
    wanted: str

    def __str__(self) -> str:
        where = f"{self.identity[0]}:{self.identity[1]}", str(self.path.parent), self.path.name
        return "\0".join((*where, self.text, self.probe, self.wanted))


@dataclass(frozen=True, slots=True)
class EmergencyPlan:
    """Stages of writes: first the freeze of every group, then quotas and CPUs beneath it.

    A step that fails is to be tried again, after the others. A v1 kernel refuses some orders of quota and period, and
    going round finds one that it takes.
    """

    stages: tuple[tuple[EmergencyWrite, ...], ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every file that it may write, once."""
        return tuple(dict.fromkeys(step.path for stage in self.stages for step in stage))

    def to_bytes(self) -> bytes:
        """For `rlctl.safety.watchdog`: lines of NUL-separated fields, an empty line between stages.

        No control group has a newline in its name: the kernel refuses to make one.
        """
        stages = ("\n".join(map(str, stage)) for stage in self.stages if stage)
        return "\n\n".join(stages).encode(errors="surrogateescape")


def emergency_plan(
    groups: Sequence[Group],
    order: Sequence[int],
    limits: Limits,
    knobs: Knobs,
    period_us: int = PERIOD_US,
) -> EmergencyPlan:
    """The writes that bring `limits.safe` about, whatever the groups hold by then.

    The drivers themselves make it, by running against a kernel that only records.

    Args:
        knobs: The originals of all files of the plan are journalled here and now, with one fsync.

    Raises:
        CgroupGone: A group vanished meanwhile: make another plan.
        CgroupError: A file cannot be read.
        HostError: The originals could not be journalled.
    """
    kernel = _RecordingKernel(knobs.kernel)
    recorded = Knobs(None, kernel)
    there = [group.using(recorded) for group in groups if group.exists()]
    # As many parts as there are groups now; whatever vanishes meanwhile leaves BE with less, not more.
    share = Quota.of_cpus(limits.safe.quota_cpus / max(len(there), 1), period_us)
    cpus = frozenset(order[: limits.safe.cpuset_cpus])
    # The freeze of all groups comes first: it needs no room above or below.
    for group in there:
        if group.freezer is not None and limits.safe.frozen:
            group.freezer.order(True)
    freeze = kernel.take_steps()
    # Children before their parent: v1 refuses a parent's quota or CPUs below a child's. Those that have none of their
    # own are left alone.
    for group in there:
        for cpu in reversed(group.cpu.family() if group.cpu else ()):
            if cpu is group.cpu or cpu.quota().quota_us is not None:
                cpu.set_quota(share)
    for group in there:
        for cpuset in reversed(group.cpuset.family() if group.cpuset else ()):
            if cpuset is group.cpuset or cpuset.cpus():
                cpuset.set_cpus(cpus)
    plan = EmergencyPlan(((*freeze, *map(_stop_tasks, freeze)), kernel.take_steps()))
    cpusets = [group.using(knobs).cpuset for group in there]
    knobs.remember(plan.paths, ChainMap(*[cpuset.originals_below() for cpuset in cpusets if cpuset is not None]))
    return plan


class _RecordingKernel:
    """A `Kernel` that takes every write, remembers it as a step, and changes nothing."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._written: dict[Path, str] = {}
        self._steps: list[EmergencyWrite] = []

    def take_steps(self) -> tuple[EmergencyWrite, ...]:
        """The steps since the last call."""
        steps, self._steps = tuple(self._steps), []
        return steps

    def read(self, path: Path) -> str:
        """What was written; else something that makes a driver write, or what the file holds."""
        written = self._written.get(path, _UNLIKE_ANY.get(path.name))
        if written is not None:
            return written
        try:
            return self._kernel.read(path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):
                raise
            return ""  # what cannot be read is written all the same

    def write(self, path: Path, text: str) -> None:
        """Remember a step and its read-back: the group's own order to `freezer.state` shows in another file."""
        probe, wanted = (path.name, text) if path.name != "freezer.state" else ("freezer.self_freezing", "1")
        self._written[path] = text
        self._written[path.with_name(probe)] = wanted
        self._steps.append(EmergencyWrite(path, text, self.identity(path.parent), probe, wanted))

    def identity(self, group: Path) -> Identity:
        return self._kernel.identity(group)

    def subgroups(self, group: Path) -> tuple[Path, ...]:
        return self._kernel.subgroups(group)

    def make_group(self, group: Path) -> None:
        raise NotImplementedError

    def remove_group(self, group: Path) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open here."""


def _stop_tasks(order: EmergencyWrite) -> EmergencyWrite:
    """The order once more until all tasks stand still; v1 needs that for tasks that were forked meanwhile."""
    probe, wanted = _STOPPED[order.path.name]
    return replace(order, probe=probe, wanted=wanted)
