"""What this host offers of memory, disks, cache, memory bandwidth, power and frequency, for `rlctl doctor`."""

from __future__ import annotations

from pathlib import Path

from rlctl.envs.errors import CgroupError
from rlctl.envs.host.capability import Capability
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Controller, Layout
from rlctl.envs.host.decode import text_of
from rlctl.envs.host.resources.blockio import disks
from rlctl.envs.host.resources.cpufreq import LcFrequency
from rlctl.envs.host.resources.powercap import Energy, rapl_zones
from rlctl.envs.host.resources.resctrl import Classes, mount_options, why_no_resctrl
from rlctl.envs.host.sensors.probe import NO_PSI, answers
from rlctl.envs.host.sensors.psi import some_seconds
from rlctl.envs.host.topology import read_list
from rlctl.envs.telemetry import Missing


def probe_resources(layout: Layout, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> tuple[Capability, ...]:
    """All of it, each with what a lack disables; writes nothing, starts nothing, never raises."""
    return (
        _protection(layout),
        answers("memory PSI", proc / "pressure/memory", some_seconds, "the shield's memory-pressure guard", NO_PSI),
        _io_weight(layout, sys),
        *_resctrl(proc, sys),
        _powercap(sys),
        _cpufreq(sys),
    )


def _protection(layout: Layout) -> Capability:
    name, disables = "memory protection", "resources.lc_memory_min_bytes and lc_memory_low_bytes"
    mount = layout.mounts.get(Controller.MEMORY)
    if mount is None:
        return Capability(name, False, layout.missing[Controller.MEMORY], disables)
    if mount.version == 1:
        return Capability(name, False, "cgroup v1 has limits only (boot with cgroup_no_v1=memory)", disables)
    return Capability(name, True, f"memory.min and memory.low below {mount.path}", disables)


def _io_weight(layout: Layout, sys: Path) -> Capability:
    name, disables = "I/O weight", "resources.be_io_weight (be_disk_*_bytes_per_second take no scheduler)"
    if Controller.IO not in layout.mounts:
        return Capability(name, False, layout.missing[Controller.IO], "resources.be_io_weight and be_disk_*")
    all_disks = disks(sys)
    listed = (
        ", ".join(f"{disk.name} under {disk.scheduler}" for disk in all_disks) or "this host has no disk of its own"
    )
    costed = "enable=1" in text_of(layout.mounts[Controller.IO].path / "io.cost.qos")
    heeded = any(disk.scheduler == "bfq" for disk in all_disks) or costed
    way_out = "" if heeded or not all_disks else f": write bfq to /sys/block/{all_disks[0].name}/queue/scheduler"
    return Capability(name, heeded, listed + way_out, disables)


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
    disables = "energy readings (package_watts, dram_watts, power_ratio)"
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
