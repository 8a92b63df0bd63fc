"""What is particular to each kernel file: how two contents compare, and how an original is written back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.host.cgroup.cpulist import parse_cpus
from rlctl.envs.host.cgroup.kernel import Kernel

__all__ = ["FileKind", "kind_of", "own_value"]


def _same_text(wanted: str, got: str) -> bool:
    return wanted.strip() == got.strip()


def _same_list(wanted: str, got: str) -> bool:
    try:
        return parse_cpus(wanted) == parse_cpus(got)
    except ValueError:
        return False


def _same_fields(wanted: str, got: str) -> bool:
    """`max` alone keeps the period that `max 10000` shows."""
    fields = wanted.split()
    return fields == got.split()[: len(fields)]


def _same_controllers(wanted: str, got: str) -> bool:
    """Either `+cpu -io`, as it is written, or the list that a read answers."""
    enabled = set(got.split())
    signed = [word for word in wanted.split() if word[0] in "+-"]
    if not signed:
        return set(wanted.split()) == enabled
    return all((word[1:] in enabled) == (word[0] == "+") for word in signed)


def _as_it_was(original: str, _now: str) -> str:
    return original.strip() or "\n"  # a write of no bytes never reaches the kernel


def _controllers_to_toggle(original: str, now: str) -> str:
    before, after = set(original.split()), set(now.split())
    return " ".join([f"-{name}" for name in sorted(after - before)] + [f"+{name}" for name in sorted(before - after)])


@dataclass(frozen=True, slots=True)
class FileKind:
    """How one kind of file is compared and put back.

    Attributes:
        rank: Its turn when originals are put back. `cpu.idle` comes before the weights, which it resets; the freezer
            comes when all limits are back, so that nothing runs under limits that are not its own; controllers are
            switched off last, since their files vanish with them.
        same: Whether what was written and what was read mean the same.
        to_write: The text that brings an original back, given the content now.
    """

    rank: int
    same: Callable[[str, str], bool] = _same_text
    to_write: Callable[[str, str], str] = _as_it_was


_KINDS: dict[str, FileKind] = {
    "cpu.idle": FileKind(0),
    "cpu.cfs_period_us": FileKind(1),
    "cpu.cfs_quota_us": FileKind(1),
    "cpu.max": FileKind(1, _same_fields),
    "cpu.cfs_burst_us": FileKind(2),  # may not exceed the quota
    "cpu.max.burst": FileKind(2),
    "cpuset.mems": FileKind(3, _same_list),
    "cpuset.cpus": FileKind(3, _same_list),
    "cpu.shares": FileKind(4),
    "cpu.weight": FileKind(4),
    "freezer.state": FileKind(5),
    "cgroup.freeze": FileKind(5),
    "cgroup.subtree_control": FileKind(6, _same_controllers, _controllers_to_toggle),
}
_OTHER = FileKind(4)


def kind_of(path: Path) -> FileKind:
    """The kind, by the file's name."""
    return _KINDS.get(path.name, _OTHER)


def own_value(kernel: Kernel, path: Path) -> str:
    """The group's own setting in this file.

    That is its content, but for v1 `freezer.state`, which shows FROZEN when only an ancestor is frozen and FREEZING on
    the way. Written back literally, the former would leave a group frozen that nobody had frozen.

    Raises:
        OSError: As `Kernel.read`.
    """
    if path.name != "freezer.state":
        return kernel.read(path)
    return "FROZEN\n" if kernel.read(path.parent / "freezer.self_freezing").strip() == "1" else "THAWED\n"
