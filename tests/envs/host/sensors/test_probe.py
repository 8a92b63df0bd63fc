"""What `rlctl doctor` finds out, on hosts that are folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlctl.envs.host.sensors.probe import Capability, probe_host


def no_perf(command: Sequence[str]) -> tuple[int, str]:
    return 1, f"{command[0]}: No such file or directory"


def no_pmu(command: Sequence[str]) -> tuple[int, str]:
    event = command[command.index("-e") + 1]
    return 0, "<not supported>;;cycles;0;100.00;;" if event == "cycles" else f"1;;{event};5;100.00;;"


def by_name(proc: Path, sys: Path, run: object = no_pmu) -> dict[str, Capability]:
    return {capability.name: capability for capability in probe_host(proc, sys, run)}  # type: ignore[arg-type]


def test_a_bare_machine_lacks_all_and_says_why(tmp_path: Path) -> None:
    found = by_name(tmp_path / "proc", tmp_path / "sys", no_perf)
    for name in ("perf cycles", "perf task-clock", "perf per cgroup", "PSI", "schedstat", "resctrl", "powercap"):
        assert not found[name].present
        assert found[name].reason
        assert found[name].disables
    assert "No such file" in found["perf cycles"].reason


def test_a_full_machine_has_all(tmp_path: Path) -> None:
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    files = {
        proc / "sys/kernel/perf_event_paranoid": "-1\n",
        proc / "self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
        proc / "self/schedstat": "1 2 3\n",
        proc / "pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
        proc / "filesystems": "nodev\tresctrl\n",
        sys / "fs/resctrl/schemata": "L3:0=fff\n",
        sys / "class/powercap/intel-rapl:0/energy_uj": "17\n",
    }
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    found = by_name(proc, sys)
    names = ("perf_event_paranoid", "perf per cgroup", "perf task-clock", "PSI", "schedstat", "resctrl", "powercap")
    assert all(found[name].present for name in names)
    assert not found["perf cycles"].present


def test_resctrl_that_is_only_not_mounted_tells_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "filesystems").write_text("nodev\tresctrl\n")
    reason = by_name(tmp_path, tmp_path / "sys")["resctrl"].reason
    assert "mount -t resctrl" in reason
