"""What `rlctl doctor` finds out, on hosts that are folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlctl.envs.host.cgroup.layout import Capability
from rlctl.envs.host.probe import probe_host


def no_perf(command: Sequence[str]) -> tuple[int, str]:
    return 1, f"{command[0]}: No such file or directory"


def no_pmu(command: Sequence[str]) -> tuple[int, str]:
    event = command[command.index("-e") + 1]
    return 0, "<not supported>;;cycles;0;100.00;;" if event == "cycles" else f"1;;{event};5;100.00;;"


def by_name(proc: Path, run: object = no_pmu) -> dict[str, Capability]:
    return {capability.name: capability for capability in probe_host(proc, run)}  # type: ignore[arg-type]


def test_a_bare_machine_lacks_all_and_says_why(tmp_path: Path) -> None:
    found = by_name(tmp_path / "proc", no_perf)
    for name in ("perf cycles", "perf task-clock", "perf per cgroup", "PSI", "schedstat"):
        assert not found[name].present
        assert found[name].reason
        assert found[name].disables
    assert "No such file" in found["perf cycles"].reason


def test_a_full_machine_has_all(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    files = {
        proc / "sys/kernel/perf_event_paranoid": "-1\n",
        proc / "self/mountinfo": "25 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        proc / "self/schedstat": "1 2 3\n",
        proc / "pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
    }
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    found = by_name(proc)
    names = ("perf_event_paranoid", "perf per cgroup", "perf task-clock", "PSI", "schedstat")
    assert all(found[name].present for name in names)
    assert not found["perf cycles"].present


def test_capabilities_are_told_of_this_process(tmp_path: Path) -> None:
    status = tmp_path / "proc/self/status"
    status.parent.mkdir(parents=True)
    for content, triggers in (
        ("CapEff:\t000001fffeffffff\n", False),  # root of a container, without CAP_SYS_RESOURCE
        ("CapEff:\t000001ffffffffff\n", True),
        ("CapEff:\t0000000000000000\n", False),
        ("garbage", False),
    ):
        status.write_text(content)
        found = by_name(tmp_path / "proc")
        assert found["PSI triggers"].present == triggers
    assert found["PSI triggers"].reason == "takes CAP_SYS_RESOURCE"
