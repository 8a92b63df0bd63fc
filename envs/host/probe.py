"""What this host offers and what it lacks, for `rlctl doctor`: each answer with its reason and what a lack disables.

The machine itself, what sensors and testbed can use, and what can be set of memory, disks, cache, power and frequency.
Nothing is written, only perf is started, and a network namespace made, for a moment each; nothing raises.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from rlctl.envs.errors import CgroupError, SensorError, on_one_line
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Capability, CgroupController, Layout
from rlctl.envs.host.decode import first_line, text_of
from rlctl.envs.host.latency.inet_diag import InetDiag, jiffy_seconds
from rlctl.envs.host.network.namespace import has_capability
from rlctl.envs.host.network.trial import why_no_link
from rlctl.envs.host.resources.blockio import disks
from rlctl.envs.host.resources.power import Energy, LcFrequency, rapl_zones
from rlctl.envs.host.resources.resctrl import Classes, mount_options, why_no_resctrl
from rlctl.envs.host.sensors.kernel_file import Gauge, KernelFile, Parse
from rlctl.envs.host.sensors.perf import EVENTS, perf_root
from rlctl.envs.host.sensors.perf_process import NO_REASON
from rlctl.envs.host.sensors.psi import some_seconds
from rlctl.envs.host.sensors.schedstat import run_seconds
from rlctl.envs.host.topology import read_list
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
        _tcp_diag(),
        answers("schedstat", proc / "self/schedstat", _waited_seconds, "the LC's run delay"),
        *(_tool(name, disables) for name, disables in _TOOLS.items()),
    )


def _psi_triggers(proc: Path) -> Capability:
    """Whether this process has the capability that a trigger takes."""
    present = has_capability(_CAP_SYS_RESOURCE, proc)
    reason = f"{'this process has' if present else 'takes'} CAP_SYS_RESOURCE"
    return Capability("PSI triggers", present, reason, "the kernel's word between the ticks: pressure is read instead")


def _tcp_diag() -> Capability:
    """Whether the kernel lists TCP sockets, by asking it for those that listen."""
    name, disables = "tcp_diag", "`latency: {kind: tcp}`"
    try:
        with contextlib.closing(InetDiag()) as diag:
            listening = len(diag.listeners())
    except SensorError as error:
        return Capability(name, False, str(error), disables)
    hertz = 1.0 / jiffy_seconds()
    reason = f"{listening} TCP sockets listen; HZ={hertz:.0f}: targets from {2e3 / hertz:g} ms on can be judged"
    return Capability(name, True, reason, disables)


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


def probe_resources(layout: Layout, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> tuple[Capability, ...]:
    """All of it, each with what a lack disables; writes nothing to the host, starts nothing, never raises."""
    return (
        _protection(layout),
        answers("memory PSI", proc / "pressure/memory", some_seconds, "the shield's memory-pressure guard", NO_PSI),
        _io_weight(layout, sys),
        _io_limits(layout),
        *_resctrl(proc, sys),
        _powercap(sys),
        _cpufreq(sys),
    )


def _protection(layout: Layout) -> Capability:
    name, disables = "memory protection", "resources.lc_memory_min_bytes and lc_memory_low_bytes"
    mount = layout.mounts.get(CgroupController.MEMORY)
    if mount is None:
        return Capability(name, False, layout.missing[CgroupController.MEMORY], disables)
    if mount.version == 1:
        return Capability(name, False, "cgroup v1 has limits only (boot with cgroup_no_v1=memory)", disables)
    return Capability(name, True, f"memory.min and memory.low below {mount.path}", disables)


def _io_limits(layout: Layout) -> Capability:
    name, disables = "I/O limits", "be.reins: disk"
    mount = layout.mounts.get(CgroupController.IO)
    if mount is None:
        return Capability(name, False, layout.missing[CgroupController.IO], disables)
    if mount.version == 2:
        return Capability(name, True, f"io.max below {mount.path}", disables)
    present = (mount.path / "blkio.throttle.io_serviced").exists()
    reason = f"blkio.throttle.* below {mount.path}: buffered writes escape it"
    return Capability(name, present, reason if present else "this kernel lacks BLK_DEV_THROTTLING", disables)


def _io_weight(layout: Layout, sys: Path) -> Capability:
    name, disables = "I/O weight", "resources.be_io_weight (be_disk_*_bytes_per_second take no scheduler)"
    if CgroupController.IO not in layout.mounts:
        return Capability(name, False, layout.missing[CgroupController.IO], "resources.be_io_weight and be_disk_*")
    all_disks = disks(sys)
    listed = (
        ", ".join(f"{disk.name} under {disk.scheduler}" for disk in all_disks) or "this host has no disk of its own"
    )
    costed = "enable=1" in text_of(layout.mounts[CgroupController.IO].path / "io.cost.qos")
    heeded = any(disk.scheduler == "bfq" for disk in all_disks) or costed
    way_out = "" if heeded or not all_disks else f": write bfq to /sys/block/{all_disks[0].name}/queue/scheduler"
    return Capability(name, heeded, listed + way_out, disables)


def probe_link(layout: Layout) -> Capability:
    """Whether BE's packets can be held on an interface, tried on one of a moment's life; never raises."""
    name, disables = "BE's packets", "holding BE on the link (be.link)"
    hierarchies = {mount.path for mount in layout.mounts.values() if mount.version == 2}
    if not hierarchies:
        way_out = "mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified"
        return Capability(name, False, f"no cgroup2 hierarchy tells whose they are: {way_out}", disables)
    if reason := why_no_link():
        return Capability(name, False, reason, disables)
    where = ", ".join(sorted(map(str, hierarchies)))
    return Capability(name, True, f"HTB and nftables answer; groups below {where} can be told", disables)


def _resctrl(proc: Path, sys: Path) -> tuple[Capability, ...]:
    disables = "cache and memory-bandwidth partitions"
    if reason := why_no_resctrl(sys, proc):
        return (Capability("resctrl", False, reason, disables),)
    root = sys / "fs/resctrl"
    options = ", ".join(sorted(mount_options(proc) & {"cdp", "cdpl2", "mba_MBps"}))
    where = f"mounted at {root}" + (f" with {options}" if options else "")
    try:
        full = Classes(Knobs(None, dry_run=True), sys, proc).full
    except CgroupError as error:
        return (Capability("resctrl", False, str(error), disables),)
    counts = any(root.glob("mon_data/mon_L3_*/mbm_total_bytes"))
    return (
        Capability("resctrl", True, where, disables),
        _part("resctrl L3", bool(full.caches), ", ".join(full.caches), "cat_l3", "resources.resctrl.be_cache_ratio"),
        _part("resctrl MB", bool(full.bandwidth), "MB", "mba", "resources.resctrl.be_bandwidth_*"),
        _part("resctrl MBM", counts, "mbm_total_bytes", "cqm_mbm_total", "the shield's memory-bandwidth guard"),
    )


def _part(name: str, present: bool, what: str, flag: str, disables: str) -> Capability:
    return Capability(name, present, what if present else f"this processor lacks {flag}", disables)


def _powercap(sys: Path) -> Capability:
    disables = "energy readings (package_watts, power_ratio)"
    zones = rapl_zones(sys)
    if not zones:
        return Capability("powercap", False, f"no {sys / 'class/powercap'}/intel-rapl:*", disables)
    energy = Energy(zones)
    joules = energy.joules()
    energy.close()
    reason = joules.detail if isinstance(joules, Missing) else f"{len(zones)} zones"
    return Capability("powercap", not isinstance(joules, Missing), reason, disables)


def _cpufreq(sys: Path) -> Capability:
    name, disables = "cpufreq", "the LC's frequency, and with it the power loop of manager heracles"
    cpus = read_list(sys / "devices/system/cpu/online")
    frequency = LcFrequency(cpus, sys)
    reading = frequency.read(0.0)["lc_frequency_hertz"]
    frequency.close()
    if isinstance(reading, Missing):
        hidden = "hidden by a hypervisor, or no driver is loaded"
        return Capability(name, False, f"no /sys/devices/system/cpu/cpu*/cpufreq: {hidden}", disables)
    folder = sys / f"devices/system/cpu/cpu{min(cpus)}/cpufreq"
    facts = [f"{what} {text}" for what, file in _FACTS.items() if (text := text_of(folder / file))]
    return Capability(
        name, True, f"{reading.value / 1e9:.2f} GHz now" + "".join(f", {fact}" for fact in facts), disables
    )


_FACTS = {"driver": "scaling_driver", "governor": "scaling_governor", "at most kHz": "scaling_max_freq"}


def _waited_seconds(schedstat: bytes) -> float | Missing:
    run = run_seconds(schedstat)
    return run if isinstance(run, Missing) else run[1]
