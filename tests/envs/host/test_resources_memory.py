"""Memory of LC and BE: what each version of cgroups is told, and that all of it comes back byte for byte."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import CgroupError, CgroupGone
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Mount
from rlctl.envs.host.resources.memory import set_memory
from rlctl.envs.host.sensors.psi import Psi
from rlctl.envs.telemetry import Telemetry
from rlctl.safety.constants import MemoryPressure
from rlctl.safety.memory_guards import MemoryPressureGuard
from rlctl.safety.trust import Trust
from rlctl.safety.verdict import Bound
from tests.waiting import PATIENCE_SECONDS

Bench = Any
MIB = 1 << 20


def text_of(group: Path) -> dict[str, str]:
    """All settings, byte for byte."""
    names = ("memory.min", "memory.low", "memory.high", "memory.max")
    v1 = ("memory.limit_in_bytes", "memory.soft_limit_in_bytes")
    return {str(group / name): (group / name).read_text() for name in (*names, *v1) if (group / name).exists()}


@pytest.fixture
def mount(bench: Bench) -> Mount:
    """The memory hierarchy."""
    if CgroupController.MEMORY not in bench.layout.mounts:
        pytest.skip(f"cgroup memory: {bench.layout.missing[CgroupController.MEMORY]}")
    found: Mount = bench.layout.mounts[CgroupController.MEMORY]
    return found


@pytest.fixture
def folder(bench: Bench, mount: Mount) -> Iterator[Path]:
    """A group of the test's own in a group of its own, with the memory controller."""
    with own_group(bench, mount) as path:
        yield path


@contextlib.contextmanager
def own_group(bench: Bench, mount: Mount) -> Iterator[Path]:
    kernel, parent = bench.kernel, mount.path / f"rlctl-test-memory-{os.getpid()}"
    if mount.version == 2:
        kernel.write(mount.path / "cgroup.subtree_control", "+memory")
    kernel.make_group(parent)
    try:
        if mount.version == 2:
            kernel.write(parent / "cgroup.subtree_control", "+memory")
        kernel.make_group(parent / "own")
        yield parent / "own"
    finally:
        bench.restore()
        for group in (parent / "own", parent):
            remove(kernel, group)


def remove(kernel: Any, group: Path) -> None:
    """Ended processes take a moment to be gone."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while group.exists():
        try:
            kernel.remove_group(group)
        except OSError:
            assert time.monotonic() < deadline, f"{group} has {(group / 'cgroup.procs').read_text()!r}"
            time.sleep(0.01)


def group_at(bench: Bench, folder: Path, knobs: Knobs) -> Group:
    return Group(folder.name, {CgroupController.MEMORY: folder}, bench.layout, knobs)


def test_be_is_bounded_and_the_bounds_go_back(bench: Bench, mount: Mount, folder: Path) -> None:
    before, knobs = text_of(folder), bench.knobs()
    group = group_at(bench, folder, knobs)
    set_memory(group, knobs, "high", 64 * MIB)
    set_memory(group, knobs, "max", 96 * MIB)
    during = text_of(folder)
    high, most = (
        ("memory.soft_limit_in_bytes", "memory.limit_in_bytes") if mount.version == 1 else ("memory.high", "memory.max")
    )
    assert (during[str(folder / high)], during[str(folder / most)]) == (f"{64 * MIB}\n", f"{96 * MIB}\n")
    report = bench.restore()
    assert report.ok, report
    assert text_of(folder) == before


def test_one_setting_goes_back_by_itself(bench: Bench, folder: Path) -> None:
    before, knobs = text_of(folder), bench.knobs()
    group = group_at(bench, folder, knobs)
    set_memory(group, knobs, "high", None)
    assert text_of(folder) == before, "never written, so nothing to undo"
    set_memory(group, knobs, "high", 64 * MIB)
    set_memory(group, knobs, "high", None)
    assert text_of(folder) == before


def test_broken_pages_are_rounded_as_in_kernel(bench: Bench, folder: Path) -> None:
    knobs = bench.knobs()
    set_memory(group_at(bench, folder, knobs), knobs, "max", 64 * MIB + 4095)
    assert f"{64 * MIB}\n" in text_of(folder).values()


def test_lc_is_protected_where_possible(bench: Bench, mount: Mount, folder: Path) -> None:
    before, knobs = text_of(folder) | text_of(folder.parent), bench.knobs()
    if mount.version == 1:
        with pytest.raises(CgroupError, match="cgroup v1 protects no memory"):
            set_memory(group_at(bench, folder, knobs), knobs, "low", 32 * MIB)
        assert text_of(folder) | text_of(folder.parent) == before
        return
    set_memory(group_at(bench, folder, knobs), knobs, "min", 16 * MIB)
    set_memory(group_at(bench, folder, knobs), knobs, "low", 32 * MIB)
    for group in (folder, folder.parent):
        assert (group / "memory.min").read_text() == f"{16 * MIB}\n", "a protection counts as far as all above have one"
        assert (group / "memory.low").read_text() == f"{32 * MIB}\n"
    assert bench.restore().ok
    assert text_of(folder) | text_of(folder.parent) == before


def test_parent_that_protects_more_already_is_left_alone(fake: Bench) -> None:
    mount = fake.layout.mounts[CgroupController.MEMORY]
    if mount.version == 1:
        return
    with own_group(fake, mount) as folder:
        (folder.parent / "memory.low").write_text("max\n")
        knobs = fake.knobs()
        set_memory(group_at(fake, folder, knobs), knobs, "low", MIB)
        assert (folder.parent / "memory.low").read_text() == "max\n"


def test_restarted_lc_raises_its_parent_once(fake: Bench) -> None:
    """Where others below it claim more than it has, each restart of the LC once added a share of theirs."""
    mount = fake.layout.mounts[CgroupController.MEMORY]
    if mount.version == 1:
        return
    with own_group(fake, mount) as folder, contextlib.ExitStack() as leaving:
        fake.kernel.make_group(others := folder.parent / "others")
        leaving.callback(fake.kernel.remove_group, others)
        (others / "memory.low").write_text(f"{8 * MIB}\n")
        (folder.parent / "memory.low").write_text(f"{MIB}\n")
        for _ in range(3):
            knobs = fake.knobs()
            set_memory(group_at(fake, folder, knobs), knobs, "low", 2 * MIB)
            assert (folder.parent / "memory.low").read_text() == f"{3 * MIB}\n"
            fake.kernel.remove_group(folder)
            fake.kernel.make_group(folder)


def test_group_another_rlctl_raised_is_left(fake: Bench) -> None:
    """Whichever of the two ended first would take the other's LC its protection."""
    mount = fake.layout.mounts[CgroupController.MEMORY]
    if mount.version == 1:
        return
    with own_group(fake, mount) as folder, (folder.parent / "memory.low").open() as others:
        knobs = fake.knobs()
        group = group_at(fake, folder, knobs)
        fcntl.flock(others, fcntl.LOCK_EX)
        with pytest.raises(CgroupError, match="another running rlctl has it"):
            set_memory(group, knobs, "low", MIB)
        assert (folder / "memory.low").read_text() == (folder.parent / "memory.low").read_text() == "0\n"
        fcntl.flock(others, fcntl.LOCK_UN)
        for wanted in (MIB, 2 * MIB):  # what is ours may be raised again
            set_memory(group, knobs, "low", wanted)
            assert (folder.parent / "memory.low").read_text() == f"{wanted}\n"
            with pytest.raises(BlockingIOError):
                fcntl.flock(others, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_lcs_own_protection_is_not_lowered(fake: Bench) -> None:
    mount = fake.layout.mounts[CgroupController.MEMORY]
    if mount.version == 1:
        return
    with own_group(fake, mount) as folder:
        (folder / "memory.min").write_text(f"{4 * MIB}\n")
        (folder / "memory.low").write_text("max\n")
        knobs = fake.knobs()
        set_memory(group_at(fake, folder, knobs), knobs, "min", MIB)
        set_memory(group_at(fake, folder, knobs), knobs, "low", MIB)
        found = [(one / name).read_text() for one in (folder, folder.parent) for name in ("memory.min", "memory.low")]
        assert found == [f"{4 * MIB}\n", "max\n", f"{4 * MIB}\n", f"{MIB}\n"]


def test_bes_tighter_limit_is_not_loosened(fake: Bench) -> None:
    """A container's 512 MB once became 8 GB, until the end of the run, which the kernel then ended it for."""
    mount = fake.layout.mounts[CgroupController.MEMORY]
    name = "memory.limit_in_bytes" if mount.version == 1 else "memory.max"
    with own_group(fake, mount) as folder:
        (folder / name).write_text(f"{64 * MIB}\n")
        knobs = fake.knobs()
        for wanted, there in ((128, 64), (32, 32), (128, 64)):
            set_memory(group_at(fake, folder, knobs), knobs, "max", wanted * MIB)
            assert (folder / name).read_text() == f"{there * MIB}\n"


def test_group_without_controller_says_what_to_write(fake: Bench) -> None:
    mount, knobs = fake.layout.mounts[CgroupController.MEMORY], fake.knobs()
    if mount.version == 1:
        bare = Group("bare", {}, fake.layout, knobs)
        with pytest.raises(CgroupError, match="bare has no group in the memory hierarchy"):
            set_memory(bare, knobs, "max", MIB)
        return
    fake.kernel.make_group(mount.path / "bare")
    with pytest.raises(CgroupError, match=r"write \+memory to .*/cgroup.subtree_control"):
        set_memory(group_at(fake, mount.path / "bare", knobs), knobs, "max", MIB)


def test_a_dry_run_writes_nothing(bench: Bench, mount: Mount, folder: Path) -> None:
    before, knobs = text_of(folder), bench.knobs(dry_run=True)
    set_memory(group_at(bench, folder, knobs), knobs, "max", 32 * MIB)
    assert text_of(folder) == before


def test_a_group_that_went_is_told_as_gone(bench: Bench, mount: Mount) -> None:
    with own_group(bench, mount) as folder:
        knobs = bench.knobs()
        group = group_at(bench, folder, knobs)
        remove(bench.kernel, folder)
        with pytest.raises(CgroupGone):
            set_memory(group, knobs, "max", MIB)


READER = """
import os, sys
path = sys.argv[1]
sys.stdin.readline()  # once it is in its group, whose pages they will be
with open(path, "wb") as file:
    for _ in range(48):
        file.write(bytes(1 << 20))
    os.fsync(file.fileno())
while True:
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 16):
            pass
"""
"""Reads a file that does not fit: its pages are thrown out as fast as they come in."""

GROWER = """
import sys
sys.stdin.readline()
held = []
while True:
    held.append(bytearray(b"x" * (1 << 16)))
    if len(held) > 1024:
        held.clear()
"""
"""Takes more than `memory.high`, beyond which the kernel makes it wait the longer the more it takes."""


@pytest.mark.slow
@pytest.mark.host
def test_lc_without_memory_is_seen_stalled(real: Bench, tmp_path: Path) -> None:
    """A limited group of the test's own; PSI is that of a cgroup2 group with the same process."""
    unified = real.layout.mounts.get(CgroupController.PRESSURE)
    mount = real.layout.mounts.get(CgroupController.MEMORY)
    if unified is None or mount is None:
        pytest.skip("needs memory groups, and PSI of groups")
    with own_group(real, mount) as folder, contextlib.ExitStack() as leaving:
        knobs = real.knobs()
        psi = folder
        if mount.version == 1:
            psi = unified.path / folder.parent.name
            psi.mkdir()
            leaving.callback(remove, real.kernel, psi)
        lc = group_at(real, folder, knobs)
        command = [sys.executable, "-S", "-c", GROWER]
        if mount.version == 1:
            set_memory(lc, knobs, "max", 24 * MIB)
            path = Path("/var/tmp", f"rlctl-test-{os.getpid()}")
            leaving.callback(path.unlink, missing_ok=True)
            command[-1:] = [READER, str(path)]
        else:
            set_memory(lc, knobs, "high", 24 * MIB)
            set_memory(lc, knobs, "max", 128 * MIB)
        hog = subprocess.Popen(command, stdin=subprocess.PIPE)
        leaving.callback(hog.wait)
        leaving.callback(hog.kill)
        for group in {folder, psi}:
            (group / "cgroup.procs").write_text(str(hog.pid))
        assert hog.stdin is not None
        with hog.stdin as go:
            go.write(b"go\n")
        bound = ruled(Psi(psi), lambda: hog.poll() is None)
    assert bound is not None
    assert bound.most.frozen, bound.detail


def ruled(psi: Psi, alive: Any) -> Bound | None:
    """What a guard of small thresholds makes of it."""
    constants = MemoryPressure(hold_ratio=0.001, suspend_ratio=0.002, after_ticks=3, calm_seconds=5.0)
    guard, limits = MemoryPressureGuard(constants, 60.0, Trust(3.0, 20)), Limits(cpus=2)
    memory, bound, deadline = guard.start(), None, time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and alive():
        now = time.monotonic()
        telemetry = Telemetry(now, 0.010, counters=dict(psi.read(now)))
        memory = guard.advance(memory, telemetry)
        bound = guard.bound(memory, telemetry, Allocation(1.0, 1), limits)
        if bound is not None and bound.most.frozen:
            break
        time.sleep(0.2)
    psi.close()
    return bound
