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
from typing import Literal

from rlctl.envs.errors import CgroupError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController
from rlctl.envs.host.decode import text_of

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


def set_io_weight(group: Group, knobs: Knobs, weight: int, sys: Path = Path("/sys")) -> None:
    """Set a group's share among those that want the same disk, where some disk heeds it.

    Args:
        weight: 1 to 10000; 100 is what every group has by default.

    Raises:
        CgroupError: No disk of this host heeds a weight; why, and the way out. Besides it, what `Knobs` raises.
    """
    mount, folder = group.shared_part(CgroupController.IO, "io.max")
    first, qos = mount.version == 1, mount.path / "io.cost.qos"
    wanted = {}
    bfq = folder / ("blkio.bfq.weight" if first else "io.bfq.weight")
    if bfq.exists() and any(disk.scheduler == "bfq" for disk in disks(sys)):
        wanted[bfq] = min(weight, MOST_BFQ_WEIGHT)
    if (folder / "io.weight").exists() and _ENABLED.search(text_of(qos)):
        wanted[folder / "io.weight"] = weight
    if not wanted:
        raise CgroupError(_why_unheeded(sys, f" or enable io.cost in {qos}" if qos.exists() else ""))
    for path, number in wanted.items():
        knobs.write(path, str(number) if first else f"default {number}")


def limit_io(
    group: Group, knobs: Knobs, disk: Disk, direction: Literal["read", "write"], bytes_per_second: int
) -> None:
    """Bound what a group reads from a disk or writes to it; the other direction, and a tighter limit, stay as they are.

    Raises:
        CgroupError: The kernel does not take it. Besides it, what `Knobs` raises.
    """
    mount, folder = group.part(CgroupController.IO)
    first = mount.version == 1
    file = folder / (f"blkio.throttle.{direction}_bps_device" if first else "io.max")
    name = "" if first else f"{direction[0]}bps="
    original = knobs.original(file)
    own = knobs.read(file) if original is None else original
    if listed := re.search(rf"^{disk.device} (?:.* )?{name}(\d+)", own, re.MULTILINE):
        if original is None and int(listed[1]) <= bytes_per_second:
            return  # it stays its owner's, who may change it meanwhile
        bytes_per_second = min(bytes_per_second, int(listed[1]))
    knobs.write(file, f"{disk.device} {name}{bytes_per_second}")


def _why_unheeded(sys: Path, or_else: str) -> str:
    all_disks = disks(sys)
    if not all_disks:
        return "this host has no disk of its own"
    schedulers = ", ".join(f"{disk.name} ({disk.scheduler})" for disk in all_disks)
    return f"no disk heeds a weight: {schedulers}; write bfq to /sys/block/{all_disks[0].name}/queue/scheduler{or_else}"
