"""Groups of the real-time conditions: there as described, gone afterwards, and a reason where they cannot be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlctl.envs.errors import ConfigError, HostError
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.host.resources.blockio import Disk, disks
from rlctl.envs.host.topology import read_topology
from rlctl.envs.testbed.janitor import Janitor
from scripts.studies.realtime.rtgroups import IO_SHARE, Condition, Rig, disk_of, in_memory

host = pytest.mark.host
LIMITS = ("io.max", "blkio.throttle.write_bps_device")


@pytest.fixture
def rig(janitor: Janitor) -> Iterator[Rig]:
    layout = Layout.detect()
    if os.geteuid() != 0:
        pytest.skip("needs root")
    first, *others = sorted(read_topology())
    knobs = Knobs(None)
    disk = next(iter(disks()), None)
    yield Rig(layout, knobs, janitor, first, tuple(others), disk, io_bytes_per_second=50e6)
    knobs.close()


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Rig]:
    """A host without any control group, and with one CPU."""
    layout = Layout({}, dict.fromkeys(CgroupController, "not mounted"))
    with Janitor(tmp_path / "state", keeper=False) as janitor:
        yield Rig(layout, Knobs(None), janitor, 0, ())


def needed(rig: Rig, condition: Condition) -> None:
    for controller in condition.controllers:
        if controller in rig.layout.missing:
            pytest.skip(f"cgroup {controller}: {rig.layout.missing[controller]}")
    if CgroupController.CPUSET in condition.controllers and not rig.other_cpus:
        pytest.skip("one CPU only")
    if CgroupController.IO in condition.controllers and rig.disk is None:
        pytest.skip("no disk of this host's own")


@host
@pytest.mark.parametrize("condition", [Condition.CPUSET, Condition.CPUSET_IO])
def test_task_and_load_share_no_cpu(rig: Rig, condition: Condition) -> None:
    needed(rig, condition)
    with rig.placed(condition) as places:
        assert places.rt
        assert places.load
        assert places.rt.cpuset
        assert places.load.cpuset
        assert places.rt.cpuset.effective() == {rig.rt_cpu}
        assert places.load.cpuset.effective() == set(rig.other_cpus)


@host
def test_the_load_has_a_tenth_of_the_disk(rig: Rig) -> None:
    needed(rig, Condition.IO)
    with rig.placed(Condition.IO) as places:
        assert rig.disk
        assert places.load
        files = [places.load.paths[CgroupController.IO] / name for name in LIMITS]
        text = " ".join(file.read_text() for file in files if file.exists())
        limited = f"{rig.disk.device} " in text and str(round(50e6 / IO_SHARE)) in text
        assert limited == any("instead the load may write" in remark for remark in places.remarks)


@host
def test_load_is_restricted_and_task_real_time(rig: Rig) -> None:
    needed(rig, Condition.RLCTL)
    with rig.placed(Condition.RLCTL) as places:
        assert places.rt
        assert places.load
        assert all((places.load.cpu, places.load.cpuset, places.load.freezer))
        if rig.layout.mounts[CgroupController.CPU].version == 1:  # RT_GROUP_SCHED
            assert places.rt.cpu is None
        assert places.rt.cpuset
        assert places.rt.cpuset.effective() == {rig.rt_cpu}


@host
@pytest.mark.parametrize("condition", [one for one in Condition if one is not Condition.NONE])
def test_nothing_is_left_of_a_condition(rig: Rig, condition: Condition) -> None:
    needed(rig, condition)
    directories: list[Path] = []
    with pytest.raises(KeyboardInterrupt), rig.placed(condition) as places:  # noqa: PT012 - the condition is the point
        assert places.rt
        assert places.load
        directories += [*places.rt.directories, *places.load.directories]
        assert all(directory.is_dir() for directory in directories)
        raise KeyboardInterrupt
    assert directories
    assert not any(directory.exists() for directory in directories)


def test_no_cgroups_makes_no_group(bare: Rig) -> None:
    with bare.placed(Condition.NONE) as places:
        assert places.rt is places.load is None


def test_one_cpu_cannot_be_divided(bare: Rig) -> None:
    with pytest.raises(ConfigError, match="takes two CPUs"), bare.placed(Condition.CPUSET):
        pass


def test_a_controller_that_is_not_there_is_named(bare: Rig) -> None:
    with pytest.raises(HostError, match="cgroup io: not mounted"), bare.placed(Condition.IO):
        pass


def test_folder_in_memory_is_known(tmp_path: Path) -> None:
    if Path("/dev/shm").is_dir():
        assert in_memory(Path("/dev/shm"))
        assert disk_of(Path("/dev/shm")) is None
    assert not in_memory(Path("/proc"))


def test_a_partition_belongs_to_its_disk(tmp_path: Path) -> None:
    device = os.stat(tmp_path).st_dev
    disk = tmp_path / "sys/devices/vda"
    (disk / "device").mkdir(parents=True)
    (disk / "queue").mkdir()
    (disk / "queue/scheduler").write_text("none [bfq]\n")
    (disk / "dev").write_text("254:0\n")
    (disk / "vda1").mkdir()
    (disk / "vda1/partition").touch()
    for folder, name, target in (("block", "vda", disk), ("dev/block", numbers(device), disk / "vda1")):
        (tmp_path / "sys" / folder).mkdir(parents=True)
        (tmp_path / "sys" / folder / name).symlink_to(target)
    assert disk_of(tmp_path, tmp_path / "sys") == Disk("vda", "254:0", "bfq")


def numbers(device: int) -> str:
    return f"{os.major(device)}:{os.minor(device)}"
