"""Controllers of cgroup v2. All are bound to the one directory that a group has."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from rlctl.envs.errors import CgroupError
from rlctl.envs.host.cgroup.driver import IDLE, CpuDriver, CpusetDriver, FreezerDriver, ancestors
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.parse import number, quota_of, table
from rlctl.envs.host.cgroup.quota import Quota
from rlctl.envs.workload import Weight


class CpuV2(CpuDriver):
    """Quota and weight by `cpu.max`, `cpu.weight` and `cpu.idle`."""

    # Children may have any quota: the tightest on the way up is enforced (cgroup-v2.rst, "Limits").

    weight_file = "cpu.weight"
    burst_file = "cpu.max.burst"
    # The kernel's default, its minimum, and what stands for cpu.idle.
    weights = {Weight.EQUAL: 100, Weight.MINIMUM: 1, Weight.IDLE: IDLE}  # noqa: RUF012

    def __init__(self, knobs: Knobs, group: Path, mount: Path) -> None:
        super().__init__(knobs, group, mount)
        self._max = group / "cpu.max"
        self.quota_files = (self._max, *self._burst_files)

    @cached_property
    def _above(self) -> tuple[Path, ...]:
        return tuple(parent for parent in ancestors(self.group, self._mount) if (parent / self._max.name).exists())

    def _quota_in(self, group: Path) -> Quota:
        path = group / self._max.name
        return _quota(self._knobs.read(path), path)

    def set_quota(self, quota: Quota) -> None:
        """Write the group's own quota; the period stays as it is when there is none."""
        # One write for both, so that no mixture is ever in force (cgroup-v2.rst, "cpu.max").
        text = "max" if quota.quota_us is None else f"{quota.quota_us} {quota.period_us}"
        self._make_way_for(quota.quota_us)
        self._knobs.write(self._max, text)

    def originally(self) -> Quota:
        """The quota before our first write to it."""
        original = self._knobs.original(self._max)
        return self.quota() if original is None else _quota(original, self._max)


def _quota(content: str, path: Path) -> Quota:
    if (text := content.strip()) != " ".join(content.split()):  # as no kernel prints it: nobody knows what is in force
        raise CgroupError(f"{path}: {text[:60]!r} is no quota and period")
    quota, _, period = text.partition(" ")
    return quota_of(None if quota == "max" else number(quota, path), number(period, path), path)


class CpusetV2(CpusetDriver):
    """The group's CPUs by `cpuset.cpus`."""

    # The kernel cuts children's CPUs down to the parent's by itself (cgroup-v2.rst, "cpuset.cpus").

    effective_file = "cpuset.cpus.effective"


class FreezerV2(FreezerDriver):
    """`cgroup.freeze`, and `cgroup.events` for what came of it (cgroup-v2.rst, "cgroup.freeze")."""

    order_file, state_file = "cgroup.freeze", "cgroup.events"
    orders = "0", "1"
    waits_for_thaw = True

    def is_ordered(self) -> bool:
        """Whether this group itself has the order to freeze."""
        return number(self._knobs.read(self._order), self._order) == 1

    def frozen(self) -> bool:
        """Whether all its tasks are stopped."""
        events = table(self._knobs.read(self.state_path), self.state_path)
        if "frozen" not in events:
            raise CgroupError(f"{self.state_path}: says nothing about frozen: Linux 5.2 or later is needed")
        return events["frozen"] == 1
