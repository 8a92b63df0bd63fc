"""Memory: what reclaim leaves the LC, how much BE may take, and what the host has left.

| wanted | cgroup v2 | cgroup v1 |
| --- | --- | --- |
| LC keeps so much, whatever happens | `memory.min` | nothing |
| LC keeps so much while others have more than theirs | `memory.low` | nothing |
| BE is reclaimed beyond so much | `memory.high` | `memory.soft_limit_in_bytes`, heeded when the host runs short |
| BE never has more than so much | `memory.max` | `memory.limit_in_bytes` |

The kernel counts in pages: what is written is rounded down to whole ones. A limit below what a group uses makes the
write itself reclaim, and the hard one may end with the OOM killer in that group.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from rlctl.envs.errors import CgroupError, CgroupGone
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController
from rlctl.envs.host.cgroup.locks import claim
from rlctl.envs.host.cgroup.values import number
from rlctl.envs.host.sensors.kernel_file import Gauge
from rlctl.envs.host.sensors.psi import some_seconds
from rlctl.envs.telemetry import Missing, Reading, Value, Why

Setting = Literal["min", "low", "high", "max"]
"""A row of the table above, by its name in v2."""

_V1 = {"high": "memory.soft_limit_in_bytes", "max": "memory.limit_in_bytes"}


def set_memory(group: Group, knobs: Knobs, setting: Setting, wanted_bytes: int | None) -> None:
    """Protect (min, low) or bound (high, max) what a group uses; what it had of its own is never loosened.

    A protection counts only as far as every group above has one too, which its children share: so those that have too
    little for all are raised with it.

    Args:
        wanted_bytes: None puts back what was there before the first write.

    Raises:
        CgroupError: v1 has no such setting, the controller is not enabled for the group, the group cannot be
            brought down to it, or another rlctl has raised one above. Besides these, what `Knobs` raises.
    """
    mount, folder = group.part(CgroupController.MEMORY)
    if mount.version == 1 and setting not in _V1:
        raise CgroupError(f"{folder}: cgroup v1 protects no memory; limit BE instead, or boot with cgroup_no_v1=memory")
    file = folder / (f"memory.{setting}" if mount.version == 2 else _V1[setting])
    original = knobs.original(file)
    if wanted_bytes is None:
        if original is not None:
            knobs.write(file, original.strip())
        return
    if not folder.is_dir():
        raise CgroupGone(f"{folder}: is gone")
    group.shared_part(CgroupController.MEMORY, "memory.current")
    own = (knobs.read(file) if original is None else original).strip()
    own_bytes, protects = _bytes(own, file), setting in ("min", "low")
    if protects:  # where an LC keeps all it has, those above would keep all of theirs: raised for what is asked alone
        _raise_above(knobs, file, wanted_bytes if own == "max" else max(wanted_bytes, own_bytes), mount.path)
    text = own if (own_bytes > wanted_bytes) == protects else str(wanted_bytes)
    if original is not None or text != own:  # else it stays its owner's, who may change it meanwhile
        knobs.write(file, text)


def _raise_above(knobs: Knobs, file: Path, wanted_bytes: int, root: Path) -> None:
    """From the top down: each group above needs what this line claims of it, beside what its siblings have."""
    needed: list[tuple[Path, int]] = []
    line = [file.parent, *(group for group in file.parent.parents if root in group.parents)]  # the root needs none
    for child, group in itertools.pairwise(line):
        above = group / file.name
        now_bytes, original = _bytes(knobs.read(above), above), knobs.original(above)
        before_bytes = now_bytes if original is None else _bytes(original, above)
        ours_bytes = theirs_bytes = 0
        for path in (one / file.name for one in knobs.children(group) if one != child):
            with contextlib.suppress(CgroupGone):  # it has ended meanwhile
                claimed_bytes = _bytes(knobs.read(path), path) if path.exists() else 0
                if knobs.original(path) is None:
                    theirs_bytes += claimed_bytes
                else:
                    ours_bytes += claimed_bytes
        # Others' share of what it had before us, which a restart of the LC must not count again.
        wanted_bytes += ours_bytes + min(theirs_bytes, before_bytes)
        wanted_bytes = min(max(wanted_bytes, now_bytes), _MAX_BYTES)
        if wanted_bytes > now_bytes or original is not None:  # raised before a crash: ours still
            needed.append((above, wanted_bytes))
    for path, _ in reversed(needed):  # the outermost first, which others share: what is refused claims nothing
        claim(knobs, path)
    for path, least_bytes in reversed(needed):
        knobs.write(path, str(least_bytes))


_MAX_BYTES = 1 << 63


def _bytes(content: str, path: Path) -> int:
    """The bytes that a file says; `max` is more than there can be."""
    return _MAX_BYTES if content.strip() == "max" else number(content, path)


_AVAILABLE = re.compile(rb"^MemAvailable: +(\d{1,15}) kB$", re.MULTILINE)


class HostMemorySensor:
    """`memory_available_bytes`, and `host_memory_pressure_ratio` (PSI "some") for an LC without a cgroup2 group."""

    name = "host-memory"
    provides = ("memory_available_bytes", "host_memory_pressure_ratio")

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._available = Gauge(proc / "meminfo", _available_bytes)
        self._pressure = Gauge(proc / "pressure/memory", some_seconds, 1.0)

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """Bytes now, and the share of the time since the previous call in [0, 1]."""
        available, pressure = self._available.now(), self._pressure.rate(now_seconds)
        if isinstance(pressure, Missing) and pressure.why is Why.GONE:  # no /proc/pressure at all
            reason = f"{self._pressure.path}: this kernel measures none (boot with psi=1)"
            pressure = Missing(Why.NOT_SUPPORTED, reason, pressure.age_seconds)
        return {
            "memory_available_bytes": available if isinstance(available, Missing) else Value(available),
            "host_memory_pressure_ratio": pressure,
        }

    def close(self) -> None:
        """Close the kernel's files."""
        self._available.close()
        self._pressure.close()


def _available_bytes(meminfo: bytes) -> float | Missing:
    match = _AVAILABLE.search(meminfo)
    return (
        int(match[1]) * 1024.0 if match else Missing(Why.NOT_SUPPORTED, "/proc/meminfo does not tell what is available")
    )
