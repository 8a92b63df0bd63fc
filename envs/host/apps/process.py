"""What rlctl must know of a process that is not its own: whether it is still the same one, and where it belongs."""

from __future__ import annotations

from pathlib import Path

from rlctl.envs.errors import HostError

__all__ = ["PROC", "ancestors", "is_kernel_thread", "memberships", "start_time"]

PROC = Path("/proc")
_PARENT, _FLAGS, _START_TIME = 1, 6, 19  # counted from the state, the first field after the name: field 3 of proc(5)
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD, linux/sched.h


def start_time(pid: int, proc: Path = PROC) -> int | None:
    """When a process was started, in the kernel's clock ticks since boot; None if there is no such process.

    With its pid it tells a process from a later one of that number. A zombie has ended.
    """
    fields = _fields(pid, proc)
    return int(fields[_START_TIME]) if fields else None


def ancestors(pid: int, proc: Path = PROC) -> tuple[int, ...]:
    """A process and those above it, up to the first of all."""
    found: list[int] = []
    while pid > 0 and pid not in found:
        found.append(pid)
        fields = _fields(pid, proc)
        pid = int(fields[_PARENT]) if fields else 0
    return tuple(found)


def is_kernel_thread(pid: int, proc: Path = PROC) -> bool:
    """Whether it is a thread of the kernel's own."""
    fields = _fields(pid, proc)
    return bool(fields) and bool(int(fields[_FLAGS]) & _KERNEL_THREAD)


def _fields(pid: int, proc: Path) -> list[bytes]:
    """Those of /proc/PID/stat from the state on; none if there is no such process, or it has ended."""
    try:
        fields = (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []
    return [] if len(fields) <= _START_TIME or fields[0] in (b"Z", b"X") else fields


def memberships(pid: int, proc: Path = PROC) -> dict[str, str]:
    """The groups of a process: path below the hierarchy's root by controller, "" standing for cgroup2.

    Raises:
        HostError: There is no such process.
    """
    try:
        lines = (proc / str(pid) / "cgroup").read_text(errors="surrogateescape").splitlines()
    except OSError as error:
        raise HostError(f"process {pid}: {error.strerror}: has it ended?") from error
    found: dict[str, str] = {}
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, where = rest.partition(":")
        found |= dict.fromkeys(controllers.split(","), where)
    return found
