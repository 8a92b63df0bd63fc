"""What this host offers to sensors and what it lacks, for `rlctl doctor`; each answer with its reason."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from rlctl.envs.host.capability import Capability
from rlctl.envs.host.decode import first_line, text_of
from rlctl.envs.host.sensors.kernel_file import Gauge, KernelFile, Parse
from rlctl.envs.host.sensors.perf import EVENTS, perf_root
from rlctl.envs.host.sensors.perf_process import NO_REASON
from rlctl.envs.host.sensors.psi import some_seconds
from rlctl.envs.host.sensors.schedstat import run_delay_seconds
from rlctl.envs.telemetry import Missing

NO_PSI = " (boot with psi=1)"

_CAP_SYS_RESOURCE = 24  # linux/capability.h

TRIAL_SECONDS = 0.02
TRIAL_TIMEOUT_SECONDS = 5.0

_TOOLS = {
    "perf": "CPI and perf counters",
    "nginx": "testbed scenario live-nginx",
    "memcached": "testbed scenario live-memcached",
    "initdb": "testbed scenario live-disk (Debian: postgresql)",
    "stress-ng": "testbed BE jobs",
    "cyclictest": "wake-up latency measurements",
}
_NEEDED_FOR = {"cycles": "CPI", "instructions": "CPI and BE work by instructions", "task-clock": "perf counters"}


Run = Callable[[Sequence[str]], tuple[int, str]]
"""Runs a command; returns exit code and stderr."""


def probe_host(proc: Path = Path("/proc"), run: Run | None = None) -> tuple[Capability, ...]:
    """Everything that sensors and testbed can use; each perf event is counted, by `run`, for a moment. Never raises."""
    return (
        _paranoid(proc),
        _cgroup_names(proc),
        *(_event(event, run or _run) for event in EVENTS),
        answers("PSI", proc / "pressure/cpu", some_seconds, "pressure readings and the guards that use them", NO_PSI),
        _psi_triggers(proc),
        answers("schedstat", proc / "self/schedstat", run_delay_seconds, "the LC's run delay"),
        *(_tool(name, disables) for name, disables in _TOOLS.items()),
    )


def _psi_triggers(proc: Path) -> Capability:
    """Whether this process has the capability that a trigger takes."""
    effective = re.search(r"^CapEff:\s*([0-9a-f]{1,16})$", text_of(proc / "self/status"), re.MULTILINE)
    present = effective is not None and bool(int(effective[1], 16) >> _CAP_SYS_RESOURCE & 1)
    reason = f"{'this process has' if present else 'takes'} CAP_SYS_RESOURCE"
    return Capability("PSI triggers", present, reason, "the kernel's word between the ticks: pressure is read instead")


def _event(event: str, run: Run) -> Capability:
    name, disables = f"perf {event}", _NEEDED_FOR.get(event, f"counters lc_/be_{event.lower().replace('-', '_')}")
    code, words = run(["perf", "stat", "-x;", "-a", "-e", event, "--", "sleep", str(TRIAL_SECONDS)])
    if code != 0:
        return Capability(name, False, first_line(words, NO_REASON), disables)
    if "<not supported>" in words:
        return Capability(name, False, "not supported by this CPU, or hidden by the hypervisor", disables)
    return Capability(name, True, f"counted for {TRIAL_SECONDS * 1e3:g} ms", disables)


def _run(command: Sequence[str]) -> tuple[int, str]:
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TRIAL_TIMEOUT_SECONDS,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, f"{command[0]}: {error}"
    return done.returncode, done.stderr


def _paranoid(proc: Path) -> Capability:
    path = proc / "sys/kernel/perf_event_paranoid"
    content = KernelFile(path, keep_open=False).read()
    disables = "CPI and perf counters without root or CAP_PERFMON"
    if isinstance(content, Missing):
        return Capability("perf_event_paranoid", False, content.detail, disables)
    level = content.decode(errors="replace").strip()
    open_to_all = level.lstrip("-").isdecimal() and int(level) <= 0
    allowed = open_to_all or os.geteuid() == 0
    what = "lets everybody count system-wide" if open_to_all else "lets root and CAP_PERFMON count system-wide"
    return Capability("perf_event_paranoid", allowed, f"{level}: {what}", disables)


def _cgroup_names(proc: Path) -> Capability:
    root = perf_root(proc)
    reason = "neither cgroup2 nor v1 perf_event is mounted" if root is None else f"names resolve under {root}"
    return Capability("perf per cgroup", root is not None, reason, "CPI and perf counters of LC and BE")


def answers(name: str, path: Path, parse: Parse, disables: str, way_out: str = "") -> Capability:
    """Whether a kernel file answers with a number; `way_out` tells how to come by it."""
    gauge = Gauge(path, parse)
    number = gauge.now()
    gauge.close()
    if isinstance(number, Missing):
        return Capability(name, False, number.detail + way_out, disables)
    return Capability(name, True, f"{path} answers", disables)


def _tool(name: str, disables: str) -> Capability:
    debian = ":".join(map(str, Path("/usr/lib/postgresql").glob("*/bin")))  # on nobody's PATH
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin:{debian}")
    return Capability(name, path is not None, path or "not on PATH", disables)
