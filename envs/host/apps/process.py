"""What rlctl must know of a process that is not its own: whether it is still the same one, and where it belongs."""

from __future__ import annotations

from pathlib import Path

from rlctl.envs.errors import HostError
from rlctl.envs.host.partition.tasks import read_task

__all__ = ["PROC", "ancestors", "memberships", "start_time"]

PROC = Path("/proc")
_START_TIME = 19  # counted from the state, the first field after the name: field 22 of proc(5)


def start_time(pid: int, proc: Path = PROC) -> int | None:
    """When a process was started, in the kernel's clock ticks since boot; None if there is no such process.

    With its pid it tells a process from a later one of that number. A zombie has ended.
    """
    try:
        fields = (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    if len(fields) <= _START_TIME or fields[0] in (b"Z", b"X"):
        return None
    return int(fields[_START_TIME])


def ancestors(pid: int, proc: Path = PROC) -> tuple[int, ...]:
    """A process and those above it, up to the first of all."""
    found: list[int] = []
    while pid > 0 and (task := read_task(pid, proc)) is not None:
        found.append(pid)
        pid = task.parent
    return tuple(found)


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
