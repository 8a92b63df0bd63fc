"""The machine itself, for `rlctl doctor`: CPUs, memory nodes, free memory, and what this process may do."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rlctl.envs.errors import on_one_line
from rlctl.envs.host.capability import Capability
from rlctl.envs.host.decode import text_of
from rlctl.envs.host.topology import read_list

# Free memory that lets the controller (about 60 MB) run beside everything else without reclaim.
ENOUGH_BYTES = 256 << 20


def probe_machine(
    proc: Path = Path("/proc"), sys: Path = Path("/sys"), state_dir: Path | None = None
) -> tuple[Capability, ...]:
    """Facts about the machine, and about where the journal is to live unless that is None; never raises."""
    facts = (_cpus(sys), _smt(sys), _numa(sys), _scheduler(sys), _memory(proc), _root())
    return facts if state_dir is None else (*facts, _state(state_dir))


def _cpus(sys: Path) -> Capability:
    online = read_list(sys / "devices/system/cpu/online")
    reason = f"{len(online)} online" if online else "their number cannot be read"
    return Capability("several CPUs", len(online) > 1, reason, "keeping BE off the LC's CPU by its cpuset")


def _smt(sys: Path) -> Capability:
    topology = (sys / "devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list")
    widest = max((len(read_list(path)) for path in topology), default=1)
    reason = f"{widest} threads a core: BE beside the LC's thread slows it" if widest > 1 else "one thread a core"
    return Capability("SMT", widest > 1, reason, "")


def _numa(sys: Path) -> Capability:
    nodes = read_list(sys / "devices/system/node/online")
    return Capability("NUMA", len(nodes) > 1, f"{max(len(nodes), 1)} memory node(s)", "")


def _scheduler(sys: Path) -> Capability:
    # Documentation/scheduler/sched-ext.rst: a scheduler of one's own need not heed cpu.max or cpu.weight.
    replaced = text_of(sys / "kernel/sched_ext/state").strip() == "enabled"
    name = on_one_line(text_of(sys / "kernel/sched_ext/root/ops")) or "of sched_ext"
    reason = f"replaced by the scheduler {name}" if replaced else "no sched_ext scheduler is loaded"
    return Capability(
        "kernel's scheduler", not replaced, reason, "quotas and weights, unless that scheduler heeds them"
    )


def _memory(proc: Path) -> Capability:
    fields = dict(line.split(":", 1) for line in text_of(proc / "meminfo").splitlines() if ":" in line)
    words = fields.get("MemAvailable", "").split()
    if not words or not re.fullmatch(r"[0-9]{1,19}", words[0]):
        return Capability("free memory", False, f"{proc / 'meminfo'} does not say", "")
    free_bytes = int(words[0]) * 1024
    return Capability(
        "free memory", free_bytes >= ENOUGH_BYTES, f"{free_bytes >> 20} MB", "a controller that is not paged out"
    )


def _root() -> Capability:
    user = os.geteuid()
    return Capability(
        "root", user == 0, f"user id {user}", "control groups and perf counters of other users' processes"
    )


def _state(state_dir: Path) -> Capability:
    nearest = next((path for path in (state_dir, *state_dir.parents) if path.exists()), Path("/"))
    writable = os.access(nearest, os.W_OK | os.X_OK)
    where = f"{state_dir}" if nearest == state_dir else f"{state_dir} can be made"
    reason = where if writable else f"{nearest} may not be written by user id {os.geteuid()}"
    return Capability("state directory", writable, reason, "the journal of original values, and so `rlctl serve`")
