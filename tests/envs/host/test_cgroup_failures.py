"""When the kernel refuses: the right error, and as much restriction of BE as can still be had."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.errors import (
    CgroupBusy,
    CgroupError,
    CgroupGone,
    CgroupRejected,
    ConfigError,
    HostError,
    PermissionMissing,
)
from rlctl.envs.host.cgroup import kernel as kernel_module
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.kernel import KernelFiles, group_devices, refusal
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController
from rlctl.envs.host.cgroup.restore import RestoreReport, Skipped
from rlctl.envs.host.cgroup.values import Quota
from rlctl.envs.workload import Weight
from tests.waiting import PATIENCE_SECONDS, until

Bench = Any
LIMITS = Limits(cpus=2)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EACCES, PermissionMissing),
        (errno.EPERM, PermissionMissing),
        (errno.EROFS, PermissionMissing),
        (errno.ENOENT, CgroupGone),
        (errno.ENODEV, CgroupGone),
        (errno.EBUSY, CgroupBusy),
        (errno.ENOSPC, CgroupBusy),
        (errno.EINVAL, CgroupRejected),
        (errno.ERANGE, CgroupRejected),
        (errno.EIO, CgroupError),
    ],
)
def test_every_errno_has_its_error(number: int, kind: type[Exception]) -> None:
    path = Path("/sys/fs/cgroup/rlctl-test-nobody/cpu.max")
    error = refusal(OSError(number, os.strerror(number), str(path)), path, "write '1'")
    assert type(error) is kind
    assert "cpu.max" in str(error)
    assert "\n" not in str(error)
    assert errno.errorcode[number] in str(error)


def test_v1_says_eacces_for_cpus_beyond_parent() -> None:
    path = Path("/sys/fs/cgroup/cpuset/be/cpuset.cpus")
    assert isinstance(refusal(OSError(errno.EACCES, "denied"), path, "write"), CgroupRejected)
    assert isinstance(refusal(OSError(errno.EACCES, "denied", str(path)), path, "write"), PermissionMissing)


def test_missing_file_is_no_vanished_group(tmp_path: Path) -> None:
    with pytest.raises(CgroupError, match="controller is not enabled") as caught:
        Knobs(None).read(tmp_path / "cpu.max")
    assert not isinstance(caught.value, CgroupGone)


def test_a_refusing_opener_is_a_missing_permission(tmp_path: Path) -> None:
    def refuse(path: Path, flags: int) -> int:
        if flags & os.O_WRONLY:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return os.open(path, flags)

    (tmp_path / "cpu.weight").write_text("100\n")
    knobs = Knobs(None, KernelFiles(refuse))
    with pytest.raises(PermissionMissing, match="run as root"):
        knobs.write(tmp_path / "cpu.weight", "1")
    knobs.close()
    assert (tmp_path / "cpu.weight").read_text() == "100\n"


UNPRIVILEGED = """
import os, sys
from pathlib import Path
from rlctl.envs.errors import PermissionMissing
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
os.setgroups([]); os.setgid(65534); os.setuid(65534)
layout = Layout.detect()
print([item.present for item in layout.describe() if item.name == "cgroup cpu"])
try:
    Group.create(layout, sys.argv[1], Knobs(None))
except PermissionMissing as error:
    print(error)
"""


@pytest.mark.host
def test_nobody_may_not_make_groups(real: Bench) -> None:
    name = f"rlctl-test-{os.getpid()}-nobody"
    said = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED, name], check=True, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    ).stdout
    assert said.startswith("[False]\n")
    assert "run as root" in said


def test_only_control_groups_and_resctrl_are_ever_written(tmp_path: Path) -> None:
    """A forged journal once had `restore` write over a system file, and remove a folder, as root."""
    kernel, victim, folder = KernelFiles(), tmp_path / "passwd", tmp_path / "rlctl-class"
    victim.write_text("root:x:0:0")
    folder.mkdir()
    link = tmp_path / "cpu.max"
    link.symlink_to(victim)
    for path in (victim, link):
        with pytest.raises(OSError, match=r"control groups|symbolic links"):
            kernel.write(path, "1")
    with pytest.raises(OSError, match="control groups"):
        kernel.remove_group(folder)
    assert victim.read_text() == "root:x:0:0"
    assert folder.is_dir()


@pytest.mark.host
def test_every_mounted_hierarchy_may_be_written(real: Bench) -> None:
    assert {mount.path.stat().st_dev for mount in real.layout.mounts.values()} <= group_devices()


def test_files_are_neither_made_nor_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_module, "group_devices", lambda: frozenset({tmp_path.stat().st_dev}))
    kernel = KernelFiles()
    with pytest.raises(FileNotFoundError):
        kernel.write(tmp_path / "cpu.max", "1")
    assert not (tmp_path / "cpu.max").exists()
    (tmp_path / "cpu.max").write_text("123456")
    kernel.write(tmp_path / "cpu.max", "99")
    assert (tmp_path / "cpu.max").read_text() == "993456"


def test_more_files_than_may_stay_open(tmp_path: Path) -> None:
    kernel = KernelFiles(most_kept=2)
    for number in range(5):
        (tmp_path / str(number)).write_text(str(number))
    for _ in range(2):
        assert [kernel.read(tmp_path / str(number)) for number in range(5)] == list("01234")
    kernel.close()
    assert kernel.read(tmp_path / "3") == "3"
    kernel.close()


def test_file_longer_than_page_is_read_whole(tmp_path: Path) -> None:
    """`io.max` with a line for each of a hundred disks is an original too."""
    kernel, text = (
        KernelFiles(),
        "".join(f"8:{minor} rbps=1048576 wbps=max riops=max wiops=max\n" for minor in range(100)),
    )
    (tmp_path / "io.max").write_text(text)
    assert [kernel.read(tmp_path / "io.max") for _ in range(2)] == [text, text], "opened, and kept open"
    kernel.close()


def test_lying_kernel_file_is_caught_on_read_back(fake: Bench) -> None:
    group = fake.group()
    be = BeActuator([group], (1, 0), LIMITS, fake.knobs())
    fake.fake.ignored = {"cpu.cfs_quota_us", "cpu.max"}
    with pytest.raises(CgroupError, match=r"wanted .*reads back .*another program") as caught:
        be.apply(Allocation(0.25, 1, frozen=True))
    assert type(caught.value) is CgroupError
    assert be.read() == Allocation(UNLIMITED, 1, frozen=True), "cpuset and freeze were written all the same"


def test_be_gets_nothing_more_while_a_restriction_fails(fake: Bench) -> None:
    group = fake.group()
    be = BeActuator([group], (1, 0), LIMITS, fake.knobs())
    be.apply(Allocation(1.0, 1, frozen=True))
    fake.fake.ignored = {"cpu.cfs_quota_us", "cpu.max", "cpu.cfs_period_us"}
    with pytest.raises(CgroupError):
        be.apply(Allocation(0.25, 2))
    assert be.read() == Allocation(1.0, 1, frozen=True)


def test_one_groups_failure_does_not_spare_the_others(fake: Bench) -> None:
    first, second = fake.group(), fake.group()
    be = BeActuator([first, second], (1, 0), LIMITS, fake.knobs())
    assert first.cpuset is not None
    fake.fake.write(first.cpuset.cpus_files[0], "0")
    fake.fake.denied = {"cpuset.cpus"}
    with pytest.raises(PermissionMissing) as caught:
        be.apply(LIMITS.safe)
    assert "more" in caught.value.__notes__[0]
    assert first.cpu is not None
    assert second.cpu is not None
    assert (first.cpu.quota(), second.cpu.quota()) == (Quota(1000, 200_000), Quota(1000, 200_000))
    assert be.read().frozen


def test_lost_controller_does_not_stop_the_freeze(fake: Bench) -> None:
    group = fake.group()
    be = BeActuator([group], (1, 0), LIMITS, fake.knobs())
    assert group.cpuset is not None
    for path in group.cpuset.cpus_files[0].parent.glob("cpuset.*"):
        path.unlink()
    with pytest.raises(CgroupError, match="not enabled"):
        be.apply(LIMITS.safe)
    assert be.read() == Allocation(LIMITS.min_quota_cpus, 2, frozen=True), "and its CPUs count as wide open"


@pytest.mark.parametrize("content", ["\xff\n", None])
def test_unreadable_quota_is_tightened(fake: Bench, monkeypatch: pytest.MonkeyPatch, content: str | None) -> None:
    group, other = fake.group(), fake.group()
    be = BeActuator([group, other], (1, 0), LIMITS, fake.knobs())
    be.apply(Allocation(1.0, 2))
    file = group.cpu.quota_files[0]
    read = fake.fake.read

    def unreadable(path: Path) -> str:
        if path != file:
            return read(path)
        if content is None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return content

    monkeypatch.setattr(fake.fake, "read", unreadable)
    with pytest.raises(CgroupError, match=file.name):
        be.apply(Allocation(0.2, 2))
    plan = be.emergency_plan()
    monkeypatch.undo()
    assert group.cpu.quota() == other.cpu.quota() == Quota(1000, 10_000)
    assert file in plan.paths, "the watchdog does not need to read it either"


def test_tasks_yet_to_stop_are_told_once(fake: Bench) -> None:
    group = fake.group()
    be = BeActuator([group], (1, 0), LIMITS, fake.knobs(), settle_seconds=0.01)
    stuck = {"freezer.state": "FREEZING\n", "cgroup.events": "populated 1\nfrozen 0\n"}
    honest, fake.fake.read = fake.fake.read, lambda path: stuck.get(path.name) or honest(path)
    assert be.apply(LIMITS.safe) == be.apply(LIMITS.safe) == LIMITS.safe.but(frozen=False)
    fake.fake.read = honest
    assert be.apply(LIMITS.safe) == LIMITS.safe
    assert [event.partition(":")[0] for event in be.ownership.events.drain()] == ["freeze-late"]


def test_late_freezes_withholding_is_no_foreign_doing(fake: Bench) -> None:
    group = fake.group()
    be = BeActuator([group], (1, 0), LIMITS, fake.knobs(), settle_seconds=0.01)
    some = be.apply(Allocation(0.3, 1))
    stuck = {"freezer.state": "FREEZING\n", "cgroup.events": "populated 1\nfrozen 0\n"}
    honest, fake.fake.read = fake.fake.read, lambda path: stuck.get(path.name) or honest(path)
    assert be.apply(LIMITS.full.but(frozen=True)) == some
    fake.fake.read = honest
    assert be.apply(LIMITS.full) == LIMITS.full
    assert [event.partition(":")[0] for event in be.ownership.events.drain()] == ["freeze-late"]


@pytest.mark.parametrize(("order", "cpus"), [((0,), 2), ((0, 0), 2), ((), 1)])
def test_orders_that_do_not_fit(fake: Bench, order: tuple[int, ...], cpus: int) -> None:
    with pytest.raises(ConfigError, match="different CPUs"):
        BeActuator([fake.group()], order, Limits(cpus=cpus), fake.knobs())


def test_no_groups_is_a_configuration_error(fake: Bench) -> None:
    with pytest.raises(ConfigError, match="nothing to control"):
        BeActuator([], (0,), Limits(cpus=1), fake.knobs())


@pytest.mark.parametrize("fake", ["v1", "hybrid"], indirect=True)  # v2 has one hierarchy
def test_unrestrictable_group_is_refused_with_way_out(fake: Bench) -> None:
    fake.kernel.make_group(fake.layout.mounts["memory"].path / "batch")
    told = r"batch is in no hierarchy of cpu, cpuset or freezer: on cgroup v1 set CPUAccounting=yes"
    with pytest.raises(ConfigError, match=told):
        BeActuator([Group.open(fake.layout, "batch", fake.knobs())], (0,), Limits(cpus=1), fake.knobs())


@pytest.mark.parametrize("name", ["", "/", "a/../b"])
def test_names_that_make_no_group(fake: Bench, name: str) -> None:
    with pytest.raises(ConfigError):
        Group.create(fake.layout, name, Knobs(None, fake.kernel))


def test_unfinished_group_is_not_left_half_made(fake: Bench) -> None:
    fake.fake.denied = {"cpuset.mems", "cgroup.subtree_control"}
    with pytest.raises(PermissionMissing):
        Group.create(fake.layout, "rlctl-test-half", Knobs(None, fake.kernel))
    assert not list(fake.fake.root.rglob("rlctl-test-half"))


def test_a_process_in_no_group_has_none(fake: Bench) -> None:
    with pytest.raises(HostError, match="has it ended"):
        Group.of_process(fake.layout, 4711, fake.knobs(), fake.proc)
    (fake.proc / "4711").mkdir()
    (fake.proc / "4711/cgroup").write_text("2:cpuset:/\n1:cpu,cpuacct:/\n0::/\n")
    with pytest.raises(ConfigError, match="no control group of its own"):
        Group.of_process(fake.layout, 4711, fake.knobs(), fake.proc)


def test_process_may_be_in_other_groups_per_hierarchy(fake: Bench) -> None:
    one, two = fake.group(), fake.group()
    (fake.proc / "4711").mkdir()
    (fake.proc / "4711/cgroup").write_text(f"3:freezer:/{two.name}\n1:cpu,cpuacct:/{one.name}\n0::/{two.name}\n")
    found = Group.of_process(fake.layout, 4711, fake.knobs(), fake.proc)
    names = {str(controller): path.name for controller, path in found.paths.items()}
    assert names["freezer"] == two.name
    assert names["cpu"] == (two.name if fake.layout.kind == "v2" else one.name)


def test_weights_of_groups_without_cpu_controller_are_nobodys(fake: Bench) -> None:
    group = fake.group()
    group.paths.pop("cpu")
    be = BeActuator([group], (1, 0), LIMITS, fake.knobs())
    be.set_weight(Weight.MINIMUM)
    assert be.apply(LIMITS.safe) == Allocation(UNLIMITED, 1, frozen=True)


@pytest.mark.parametrize("fake", ["hybrid"], indirect=True)
def test_a_threaded_group_hides_no_escape(fake, monkeypatch):
    """One of cgroup2 that tells no processes kept the escapes of all groups from being named."""
    group = fake.group()
    threaded = group.paths[CgroupController.PRESSURE] / "cgroup.procs"
    task = fake.task()
    Group.open(fake.layout, group.name, Knobs(None, fake.kernel)).attach(task)
    (group.paths[CgroupController.CPU] / "cgroup.procs").write_text("")
    read = fake.kernel.read

    def refuse(path):
        if path == threaded:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return read(path)

    monkeypatch.setattr(fake.kernel, "read", refuse)
    assert group.strays() == {task}


def test_many_files_of_one_reason_are_one_line(tmp_path):
    gone = [Skipped(tmp_path / str(number), "the group is gone") for number in range(753)]
    report = RestoreReport(skipped=[*gone, Skipped(tmp_path / "x", "another reason")])
    assert len(str(report).splitlines()) == 3
    assert "(and 752 more files): the group is gone" in str(report)


@pytest.mark.host
def test_frozen_task_that_is_killed_dies_at_once(real):
    """kubelet and docker waited for the end of a container until BE was thawed."""
    group = real.group()
    pid = real.task()
    group.attach(pid)
    actuator = BeActuator([group], (1, 0), Limits(2), real.knobs(), settle_seconds=PATIENCE_SECONDS)
    actuator.apply(Limits(2).safe)
    real.tasks[-1].kill()
    until(lambda: group.release_killed() == 0 and real.tasks[-1].poll() is not None)
    assert real.tasks[-1].returncode == -9
    assert actuator.read().frozen
