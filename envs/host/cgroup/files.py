"""What is particular to each kernel file: how two contents compare, and how an original is written back."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.host.cgroup.kernel import Kernel
from rlctl.envs.host.cgroup.schemata import Schemata
from rlctl.envs.host.cpulist import parse_cpus


def _same_text(wanted: str, got: str) -> bool:
    return wanted.strip() == got.strip()


def _same_list(wanted: str, got: str) -> bool:
    try:
        return parse_cpus(wanted) == parse_cpus(got)
    except ValueError:
        return False


def _same_fields(wanted: str, got: str) -> bool:
    # A lone `max` keeps the period, and reads back as `max 10000` (cgroup-v2.rst, "cpu.max").
    fields = wanted.split()
    return fields == got.split()[: len(fields)]


def _same_controllers(wanted: str, got: str) -> bool:
    """Either `+cpu -io`, as it is written, or the list that a read answers."""
    enabled = set(got.split())
    signed = [word for word in wanted.split() if word[0] in "+-"]
    if not signed:
        return set(wanted.split()) == enabled
    return all((word[1:] in enabled) == (word[0] == "+") for word in signed)


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _same_pages(wanted: str, got: str) -> bool:
    # Memory counts in whole pages, and more than there can be is `max` (page_counter_memparse in mm/page_counter.c).
    if wanted.strip() == got.strip():
        return True
    with contextlib.suppress(ValueError):
        return int(wanted) // _PAGE_BYTES == int(got) // _PAGE_BYTES
    return False


def _same_default(wanted: str, got: str) -> bool:
    """`50` and `default 50` alike; weights of single devices may follow below."""
    return wanted.split()[-1:] == got.partition("\n")[0].split()[-1:]


def _default_as_it_was(original: str, _now: str) -> str:
    return original.partition("\n")[0]


def _by_device(content: str) -> dict[str, str]:
    return {device: rest for device, _, rest in (line.partition(" ") for line in content.splitlines() if line)}


def _same_device(wanted: str, got: str) -> bool:
    # What was written of a device is listed of it; one without limits is not listed (cgroup-v2.rst, "io.max").
    device, _, limits = wanted.strip().partition(" ")
    listed = _by_device(got).get(device, "").split()
    return all(limit in listed or limit == "0" or (limit.endswith("=max") and not listed) for limit in limits.split())


def _device_to_write(original: str, now: str) -> str:
    """One device at a time is all that the kernel takes: the first that is not yet as it was.

    Those that are listed now come first: of one that is not, the disk may be gone, and the kernel refuse it.
    """
    before, after = _by_device(original), _by_device(now)
    for device in sorted(before.keys() | after.keys(), key=lambda device: (device not in after, device)):
        if before.get(device) != after.get(device):
            lifted = "rbps=max wbps=max riops=max wiops=max" if "=" in now else "0"
            return f"{device} {before.get(device, lifted)}"
    return original.strip() or "\n"


def _same_schemata(wanted: str, got: str) -> bool:
    # The kernel lines its columns up, and lists what was not written too (Documentation/arch/x86/resctrl.rst).
    with contextlib.suppress(ValueError):
        return Schemata.parse(got).includes(Schemata.parse(wanted))
    return False


def _as_it_was(original: str, _now: str) -> str:
    return original.strip() or "\n"  # a write of no bytes never reaches the kernel


def _controllers_to_toggle(original: str, now: str) -> str:
    """An original is a list as it was read, or `-cpu -io`: only these off, whatever others have switched on since."""
    before, after = set(original.split()), set(now.split())
    if original.startswith("-"):
        return " ".join(word for word in original.split() if word[1:] in after)
    return " ".join([f"-{name}" for name in sorted(after - before)] + [f"+{name}" for name in sorted(before - after)])


@dataclass(frozen=True, slots=True)
class FileKind:
    """How one kind of file is compared and put back.

    Attributes:
        rank: Its turn when originals are put back.
        same: Whether what was written and what was read mean the same.
        to_write: The text that brings an original back, given the content now.
    """

    rank: int
    same: Callable[[str, str], bool] = _same_text
    to_write: Callable[[str, str], str] = _as_it_was


_KINDS: dict[str, FileKind] = {
    # First what the kernel resets other files by: leaving cpu.idle sets the weight to its default
    # (sched_group_set_idle in kernel/sched/fair.c).
    "cpu.idle": FileKind(0),
    "cpu.cfs_period_us": FileKind(1),
    "cpu.cfs_quota_us": FileKind(1),
    "cpu.max": FileKind(1, _same_fields),
    # The burst may not exceed the quota (sched-bwc.rst, "Burst feature").
    "cpu.cfs_burst_us": FileKind(2),
    "cpu.max.burst": FileKind(2),
    "cpuset.mems": FileKind(3, _same_list),
    "cpuset.cpus": FileKind(3, _same_list),
    "cpu.shares": FileKind(4),
    "cpu.weight": FileKind(4),
    **dict.fromkeys(("memory.min", "memory.low", "memory.high", "memory.max"), FileKind(4, _same_pages)),
    **dict.fromkeys(("memory.limit_in_bytes", "memory.soft_limit_in_bytes"), FileKind(4, _same_pages)),
    **dict.fromkeys(("io.weight", "io.bfq.weight"), FileKind(4, _same_default, _default_as_it_was)),
    **dict.fromkeys(
        ("io.max", *(f"blkio.throttle.{way}_{unit}_device" for way in ("read", "write") for unit in ("bps", "iops"))),
        FileKind(4, _same_device, _device_to_write),
    ),
    "schemata": FileKind(4, _same_schemata),
    # Thawed only when all limits are back, so that nothing runs under limits that are not its own.
    "freezer.state": FileKind(5),
    "cgroup.freeze": FileKind(5),
    # Controllers last: their files vanish with them.
    "cgroup.subtree_control": FileKind(6, _same_controllers, _controllers_to_toggle),
}
_OTHER = FileKind(4)


def is_made_class(path: Path) -> bool:
    """Whether a file is of a resctrl class that rlctl made: what is put back there is that the class was not."""
    return path.name == "schemata" and path.parent.name.startswith("rlctl-")


def kind_of(path: Path) -> FileKind:
    """The kind, by the file's name."""
    return _KINDS.get(path.name, _OTHER)


def own_value(kernel: Kernel, path: Path) -> str:
    """The group's own setting in this file.

    That is its content, but for v1 `freezer.state`, which shows FROZEN when only an ancestor is frozen and FREEZING on
    the way. Written back literally, the former would leave a group frozen that nobody had frozen.
    """
    if path.name != "freezer.state":
        return kernel.read(path)
    return "FROZEN\n" if kernel.read(path.parent / "freezer.self_freezing").strip() == "1" else "THAWED\n"
