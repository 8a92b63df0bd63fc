"""Disks: weights only where a disk heeds them, limits anywhere, and all of it back byte for byte."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.errors import CgroupError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs, kind_of
from rlctl.envs.host.cgroup.layout import CgroupController, Mount
from rlctl.envs.host.cgroup.restore import restore
from rlctl.envs.host.resources.blockio import Disk, disks, limit_io, set_io_weight
from tests.waiting import PATIENCE_SECONDS

Bench = Any
VDA, VDB = Disk("vda", "254:0", "mq-deadline"), Disk("vdb", "254:16", "bfq")


def sys_with(folder: Path, *found: Disk) -> Path:
    """A /sys with these disks, and with what is no disk of its own."""
    for disk in found:
        block = folder / "block" / disk.name
        (block / "device").mkdir(parents=True)
        (block / "queue").mkdir()
        (block / "queue/scheduler").write_text(f"none [{disk.scheduler}] kyber\n")
        (block / "dev").write_text(f"{disk.device}\n")
    (folder / "block/loop0/queue").mkdir(parents=True)
    return folder


@contextlib.contextmanager
def own_group(bench: Bench, mount: Mount) -> Iterator[Path]:
    kernel, parent = bench.kernel, mount.path / f"rlctl-test-io-{os.getpid()}"
    if mount.version == 2:
        kernel.write(mount.path / "cgroup.subtree_control", "+io")
    kernel.make_group(parent)
    try:
        yield parent
    finally:
        bench.restore()
        kernel.remove_group(parent)


@pytest.fixture
def folder(bench: Bench) -> Iterator[Path]:
    """A group of the test's own in the io hierarchy."""
    if CgroupController.IO not in bench.layout.mounts:
        pytest.skip(f"cgroup io: {bench.layout.missing[CgroupController.IO]}")
    with own_group(bench, bench.layout.mounts[CgroupController.IO]) as path:
        yield path


def at(bench: Bench, folder: Path) -> tuple[Group, Knobs]:
    """A group in one hierarchy, and what writes to it."""
    knobs = bench.knobs()
    return Group("own", {CgroupController.IO: folder}, bench.layout, knobs), knobs


def text_of(folder: Path) -> dict[str, str]:
    files = [path for path in folder.iterdir() if path.name.startswith(("io.", "blkio.")) and is_setting(path)]
    return {path.name: path.read_text() for path in files}


def is_setting(path: Path) -> bool:
    return path.name.endswith(("weight", "io.max", "bps_device"))


def test_only_disks_that_are_hardware_count(tmp_path: Path) -> None:
    assert disks(sys_with(tmp_path, VDA, VDB)) == (VDA, VDB)
    assert disks(tmp_path / "nowhere") == ()


def test_unheeded_weight_is_missing_with_way_out(bench: Bench, folder: Path, tmp_path: Path) -> None:
    before = text_of(folder)
    with pytest.raises(CgroupError, match=r"vda \(mq-deadline\); write bfq to /sys/block/vda/queue/scheduler"):
        set_io_weight(*at(bench, folder), 10, sys_with(tmp_path / "sys", VDA))
    with pytest.raises(CgroupError, match="no disk of its own"):
        set_io_weight(*at(bench, folder), 10, tmp_path / "nowhere")
    assert text_of(folder) == before


def test_weight_is_written_where_bfq_schedules(bench: Bench, folder: Path, tmp_path: Path) -> None:
    names = [name for name in ("io.bfq.weight", "blkio.bfq.weight") if (folder / name).exists()]
    if not names:
        pytest.skip("this kernel has no bfq weights")
    before = text_of(folder)
    set_io_weight(*at(bench, folder), 5000, sys_with(tmp_path / "sys", VDB))
    assert (folder / names[0]).read_text().split()[-1] == "1000", "the most that bfq takes"
    assert bench.restore().ok
    assert text_of(folder) == before


def test_io_cost_heeds_weight_where_it_is_enabled(fake: Bench, tmp_path: Path) -> None:
    mount = fake.layout.mounts[CgroupController.IO]
    if mount.version == 1:
        return
    (mount.path / "io.cost.qos").write_text("254:0 enable=1 ctrl=auto\n")
    with own_group(fake, mount) as folder:
        before = text_of(folder)
        set_io_weight(*at(fake, folder), 5000, sys_with(tmp_path / "sys", VDA))
        assert (folder / "io.weight").read_text() == "default 5000\n"
        assert (folder / "io.bfq.weight").read_text() == "default 100\n"
        assert fake.restore().ok
        assert text_of(folder) == before


@pytest.mark.host
def test_this_kernels_weight_file_takes_one(real: Bench) -> None:
    mount = real.layout.mounts.get(CgroupController.IO)
    if mount is None:
        pytest.skip("no io controller")
    with own_group(real, mount) as folder:
        names = [name for name in ("io.weight", "io.bfq.weight", "blkio.bfq.weight") if (folder / name).exists()]
        if not names:
            pytest.skip("this kernel has no weights")
        before, knobs = text_of(folder), real.knobs()
        for name in names:
            knobs.write(folder / name, "50" if name.startswith("blkio") else "default 50")
        assert text_of(folder) != before
        assert real.restore().ok
        assert text_of(folder) == before


def test_limits_are_set_on_every_disk(bench: Bench, folder: Path) -> None:
    found = disks() if bench.real else (VDA,)
    if not found:
        pytest.skip("this host has no disk of its own")
    before, (group, knobs) = text_of(folder), at(bench, folder)
    for disk in found:
        limit_io(group, knobs, disk, "read", 1 << 20)
        limit_io(group, knobs, disk, "write", 2 << 20)
        limit_io(group, knobs, disk, "write", 4 << 20)
    during = " ".join(text_of(folder).values())
    assert str(1 << 20) in during
    assert str(4 << 20) in during
    assert bench.restore().ok
    assert text_of(folder) == before


def test_bes_tighter_disk_limit_is_kept(fake: Bench) -> None:
    mount = fake.layout.mounts[CgroupController.IO]
    name, limits = "io.max", "rbps=max wbps={} riops=max wiops=max"
    if mount.version == 1:
        name, limits = "blkio.throttle.write_bps_device", "{}"
    with own_group(fake, mount) as folder:
        (folder / name).write_text(f"254:0 {limits.format(5000)}\n")
        group, knobs = at(fake, folder)
        for wanted, there in ((1 << 20, 5000), (4096, 4096), (1 << 20, 5000)):
            limit_io(group, knobs, VDA, "write", wanted)
            assert (folder / name).read_text() == f"254:0 {limits.format(there)}\n"
        limit_io(group, knobs, VDB, "write", 1 << 20)
        assert f"254:16 {limits.format(1 << 20)}\n" in (folder / name).read_text()


def test_limits_of_disks_go_back_singly(fake: Bench) -> None:
    mount = fake.layout.mounts[CgroupController.IO]
    if mount.version == 1:
        return
    with own_group(fake, mount) as folder:
        before = "".join(f"254:{minor} rbps=5 wbps=max riops=max wiops=max\n" for minor in range(1000, 1100))
        (folder / "io.max").write_text(before)
        group, knobs = at(fake, folder)
        for disk in (VDA, VDB):
            limit_io(group, knobs, disk, "read", 1 << 20)
        (folder / "io.max").write_text("")  # whoever else lifted the limits of all the other disks
        fake.close_journal()
        assert restore(fake.state_dir, kernel=fake.kernel, proc=fake.proc, patience_seconds=PATIENCE_SECONDS).ok
        assert (folder / "io.max").read_text() == before


def test_detached_disks_do_not_keep_others(fake: Bench) -> None:
    mount = fake.layout.mounts[CgroupController.IO]
    if mount.version == 1:
        return
    with own_group(fake, mount) as folder:
        limits = "rbps=5 wbps=max riops=max wiops=max"
        (folder / "io.max").write_text(f"179:0 {limits}\n179:8 {limits}\n254:7 {limits}\n")
        limit_io(*at(fake, folder), VDB, "read", 1 << 20)
        fake.fake.detached = {"179:0", "179:8"}
        (folder / "io.max").write_text("".join((folder / "io.max").read_text().splitlines(keepends=True)[3:]))
        fake.close_journal()
        report = restore(fake.state_dir, kernel=fake.kernel, proc=fake.proc, patience_seconds=PATIENCE_SECONDS)
        assert report.ok, str(report)
        assert [item.path for item in report.equivalent] == [folder / "io.max"]
        assert f"the disk is gone, and its limits with it (179:0 {limits}; 179:8 {limits})" in str(report)
        assert (folder / "io.max").read_text() == f"254:7 {limits}\n"


def test_only_limited_disk_may_be_detached(fake: Bench) -> None:
    mount = fake.layout.mounts[CgroupController.IO]
    name = "io.max" if mount.version == 2 else "blkio.throttle.read_bps_device"
    with own_group(fake, mount) as folder:
        before = "8:0 rbps=5 wbps=max riops=max wiops=max\n" if mount.version == 2 else "8:0 5\n"
        (folder / name).write_text(before)
        fake.knobs().write(folder / name, before.replace("5", "3").strip())
        fake.fake.detached = {"8:0"}
        (folder / name).write_text("")
        report = fake.restore()
        assert report.ok, str(report)
        assert (folder / name).read_text() == ""


LINES = st.dictionaries(
    st.sampled_from(["8:0", "8:16", "254:0"]), st.sampled_from(["rbps=1 wbps=max", "rbps=2 wbps=3"])
)


@given(before=LINES, now=LINES)
def test_line_by_line_writing_ends_at_original(before: dict[str, str], now: dict[str, str]) -> None:
    def said(lines: dict[str, str]) -> str:
        return "".join(f"{device} {rest}\n" for device, rest in sorted(lines.items()))

    kind = kind_of(Path("io.max"))
    for _ in range(len(before) + len(now)):
        if now == before:
            break
        text = kind.to_write(said(before), said(now))
        device, _, rest = text.partition(" ")
        now = {name: one for name, one in now.items() if name != device}
        if rest != "rbps=max wbps=max riops=max wiops=max":
            now[device] = rest
        assert kind.same(text, said(now))
    assert now == before


def test_group_without_io_says_what_to_write(fake: Bench) -> None:
    mount = fake.layout.mounts[CgroupController.IO]
    if mount.version == 1:
        return
    fake.kernel.make_group(mount.path / "bare")
    with pytest.raises(CgroupError, match=r"write \+io to "):
        set_io_weight(*at(fake, mount.path / "bare"), 10)
