"""What `rlctl doctor` says of memory, disks, cache, power and frequency: on bare trees, on full ones, and here."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlctl.envs.host.cgroup.layout import Capability, CgroupController, Layout
from rlctl.envs.host.probe import probe_resources
from tests.doubles.cgroup_kernel import FakeKernel

NAMES = ("memory protection", "memory PSI", "I/O weight", "I/O limits", "resctrl", "powercap", "cpufreq")


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def found_on(folder: Path, kind: str = "v1") -> dict[str, Capability]:
    kernel = FakeKernel(folder / "groups", kind)
    layout = Layout.detect(kernel.root, kernel.proc)
    return {one.name: one for one in probe_resources(layout, folder / "proc", folder / "sys")}


def test_bare_machine_lacks_all_and_says_why(tmp_path: Path) -> None:
    layout = Layout.detect(tmp_path, tmp_path)
    found = {one.name: one for one in probe_resources(layout, tmp_path / "proc", tmp_path / "sys")}
    assert tuple(found) == NAMES
    for one in found.values():
        assert not one.present
        assert one.reason
        assert one.disables


@pytest.mark.parametrize("kind", ["v1", "v2", "hybrid"])
def test_memory_is_protected_by_v2_only(tmp_path: Path, kind: str) -> None:
    assert found_on(tmp_path, kind)["memory protection"].present == (kind == "v2")


def test_a_full_machine_has_all(tmp_path: Path) -> None:
    sys, proc = tmp_path / "sys", tmp_path / "proc"
    for path, text in {
        proc / "pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
        proc / "self/mountinfo": "25 1 0:22 / /sys/fs/resctrl rw - resctrl resctrl rw,cdp,mba_MBps\n",
        sys / "block/vda/dev": "254:0\n",
        sys / "block/vda/device/vendor": "0x1af4\n",
        sys / "block/vda/queue/scheduler": "none mq-deadline [bfq]\n",
        sys / "fs/resctrl/schemata": "L3:0=fff\nMB:0=100\n",
        sys / "fs/resctrl/mon_data/mon_L3_00/mbm_total_bytes": "0\n",
        sys / "class/powercap/intel-rapl:0/name": "package-0\n",
        sys / "class/powercap/intel-rapl:0/energy_uj": "17\n",
        sys / "class/powercap/intel-rapl:0/max_energy_range_uj": "262143328850\n",
        sys / "class/hwmon/hwmon3/name": "power_meter\n",
        sys / "class/hwmon/hwmon3/power1_average": "300000000\n",
        sys / "devices/system/cpu/online": "0-1\n",
        sys / "devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "2600000\n",
        sys / "devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
    }.items():
        put(path, text)
    found = found_on(tmp_path, "v2")
    assert all(one.present for one in found.values()), found
    assert tuple(found) == (*NAMES[:5], "resctrl L3", "resctrl MB", "resctrl MBM", *NAMES[5:])
    assert found["resctrl"].reason.endswith("with cdp, mba_MBps")
    assert found["cpufreq"].reason == "2.60 GHz now, governor performance"
    assert found["I/O weight"].reason == "vda under bfq"


def test_not_switched_on_tells_the_way_out(tmp_path: Path) -> None:
    put(tmp_path / "proc/filesystems", "nodev\tresctrl\n")
    put(tmp_path / "sys/block/vda/dev", "254:0\n")
    put(tmp_path / "sys/block/vda/device/vendor", "0x1af4\n")
    put(tmp_path / "sys/block/vda/queue/scheduler", "[none] bfq\n")
    found = found_on(tmp_path, "v2")
    assert "mount -t resctrl resctrl" in found["resctrl"].reason
    assert "write bfq to /sys/block/vda/queue/scheduler" in found["I/O weight"].reason


@pytest.mark.host
def test_this_host_is_told_in_full() -> None:
    layout = Layout.detect()
    found = {one.name: one for one in probe_resources(layout)}
    assert set(NAMES) <= set(found)
    assert all(one.reason for one in found.values())
    version = layout.mounts[CgroupController.MEMORY].version if CgroupController.MEMORY in layout.mounts else 0
    assert found["memory protection"].present == (version == 2)
