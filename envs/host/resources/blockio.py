"""Disks: BE's weight against others where a scheduler heeds one, and limits of its throughput where none does.

| wanted | cgroup v2 | cgroup v1 |
| --- | --- | --- |
| a weight, on disks under bfq | `io.bfq.weight` | `blkio.bfq.weight` |
| a weight, on disks with io.cost enabled | `io.weight` | nothing |
| bytes per second, on every disk | `io.max` | `blkio.throttle.*_bps_device`: buffered writes escape it |

A weight can be written where no disk heeds it. That would protect nothing while it looks as if it did, so it is
reported as missing; the limits need no scheduler.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.errors import CgroupError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Controller

MOST_BFQ_WEIGHT = 1000  # io.weight goes on to 10000

_ENABLED = re.compile(r"^(\d+:\d+) enable=1\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk of this host, with the scheduler in use: `bfq`, `mq-deadline`, `none`, ..."""

    name: str
    device: str
    scheduler: str


def disks(sys: Path = Path("/sys")) -> tuple[Disk, ...]:
    """The disks that are hardware (or a hypervisor's); what is stacked upon them (loop, dm, zram) is left out."""
    found = []
    for folder in sorted((sys / "block").glob("*")):
        try:
            if not (folder / "device").exists():
                continue
            offered = (folder / "queue/scheduler").read_text(errors="replace")
            chosen = re.search(r"\[([^\]]+)\]", offered)
            found.append(
                Disk(folder.name, (folder / "dev").read_text().strip(), chosen[1] if chosen else offered.strip())
            )
        except OSError:  # pulled out meanwhile
            continue
    return tuple(found)


class IoV2:
    """`io.weight`, `io.bfq.weight` and `io.max`; the hierarchy's root, `mount`, says where io.cost is enabled."""

    def __init__(self, knobs: Knobs, group: Path, mount: Path, sys: Path = Path("/sys")) -> None:
        self._knobs = knobs
        self._group = group
        self._qos = mount / "io.cost.qos"
        self._sys = sys

    def set_weight(self, weight: int) -> None:
        """Set the group's share among those that want the same disk, where some disk heeds it.

        Args:
            weight: 1 to 10000; 100 is what every group has by default.

        Raises:
            CgroupError: No disk of this host heeds a weight; why, and the way out.
        """
        if not (self._group / "io.max").exists():
            way_out = f"write +io to {self._group.parent / 'cgroup.subtree_control'}"
            raise CgroupError(f"{self._group}: its parent shares no io controller ({way_out})")
        under_bfq = any(disk.scheduler == "bfq" for disk in disks(self._sys))
        wanted = {}
        if under_bfq and (self._group / "io.bfq.weight").exists():
            wanted["io.bfq.weight"] = min(weight, MOST_BFQ_WEIGHT)
        if self._cost_enabled() and (self._group / "io.weight").exists():
            wanted["io.weight"] = weight
        if not wanted:
            raise CgroupError(_unheeded(self._sys, f" or enable io.cost in {self._qos}" if self._qos.exists() else ""))
        for name, number in wanted.items():
            self._knobs.write(self._group / name, f"default {number}")

    def limit(self, disk: Disk, read_bytes_per_second: int | None, write_bytes_per_second: int | None) -> None:
        """Bound what the group reads and writes, by io.max; None leaves that direction as it is."""
        wanted = {"rbps": read_bytes_per_second, "wbps": write_bytes_per_second}
        limits = " ".join(f"{name}={number}" for name, number in wanted.items() if number is not None)
        if limits:
            self._knobs.write(self._group / "io.max", f"{disk.device} {limits}")

    def _cost_enabled(self) -> bool:
        try:
            return bool(_ENABLED.search(self._knobs.read(self._qos)))
        except CgroupError:
            return False


class IoV1:
    """`blkio.bfq.weight` (or `blkio.weight`, before Linux 5.0) and `blkio.throttle.*`."""

    def __init__(self, knobs: Knobs, group: Path, sys: Path = Path("/sys")) -> None:
        self._knobs = knobs
        self._group = group
        self._sys = sys

    def set_weight(self, weight: int) -> None:
        """As `IoV2.set_weight`; cfq's default is 500, of 10 to 1000."""
        in_use = {disk.scheduler for disk in disks(self._sys)}
        bfq, cfq = self._group / "blkio.bfq.weight", self._group / "blkio.weight"
        if "bfq" in in_use and bfq.exists():
            self._knobs.write(bfq, str(min(weight, MOST_BFQ_WEIGHT)))
        elif "cfq" in in_use and cfq.exists():
            self._knobs.write(cfq, str(min(max(weight * 5, 10), 1000)))
        else:
            raise CgroupError(_unheeded(self._sys, ""))

    def limit(self, disk: Disk, read_bytes_per_second: int | None, write_bytes_per_second: int | None) -> None:
        """As `IoV2.limit`, by blkio.throttle.read_bps_device and write_bps_device."""
        for direction, number in (("read", read_bytes_per_second), ("write", write_bytes_per_second)):
            if number is not None:
                path = self._group / f"blkio.throttle.{direction}_bps_device"
                self._knobs.write(path, f"{disk.device} {number}")


IoDriver = IoV1 | IoV2
"""Disks as one group may use them, whichever version serves it. Every method raises the CgroupErrors of `Knobs`."""


def io_of(group: Group, knobs: Knobs, sys: Path = Path("/sys")) -> IoDriver:
    """The driver for a group."""
    mount, path = group.part(Controller.IO)
    return IoV1(knobs, path, sys) if mount.version == 1 else IoV2(knobs, path, mount.path, sys)


def _unheeded(sys: Path, or_else: str) -> str:
    all_disks = disks(sys)
    if not all_disks:
        return "this host has no disk of its own"
    schedulers = ", ".join(f"{disk.name} ({disk.scheduler})" for disk in all_disks)
    return f"no disk heeds a weight: {schedulers}; write bfq to /sys/block/{all_disks[0].name}/queue/scheduler{or_else}"
