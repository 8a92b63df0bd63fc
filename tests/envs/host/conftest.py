"""Fake kernels of every layout, and this host's own, behind one fixture."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import Journal
from rlctl.envs.host.cgroup.kernel import Kernel, KernelFiles
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.host.cgroup.restore import RestoreReport, restore
from tests.doubles.cgroup_kernel import FakeKernel
from tests.needs import needs

NAMES = itertools.count()
BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"  # and ends with it


@dataclass
class Bench:
    """A tree of control groups to test on, fake or real; every group made with it is removed at the end."""

    layout: Layout
    kernel: Kernel
    proc: Path
    state_dir: Path
    fake: FakeKernel | None
    journal: Journal | None = None
    groups: list[Group] = field(default_factory=list)
    tasks: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def real(self) -> bool:
        return self.fake is None

    def open_journal(self) -> Journal:
        if self.journal is None:
            self.journal = Journal.open(self.state_dir, self.proc)
        return self.journal

    def close_journal(self) -> None:
        if self.journal is not None:
            self.journal.close()
            self.journal = None

    def knobs(self, *, dry_run: bool = False) -> Knobs:
        return Knobs(self.open_journal(), self.kernel, dry_run=dry_run)

    def group(self, name: str = "", knobs: Knobs | None = None) -> Group:
        name = name or f"rlctl-test-{os.getpid()}-{next(NAMES)}"
        group = Group.create(self.layout, name, knobs or Knobs(None, self.kernel))
        self.groups.append(group)
        return group

    def restore(self) -> RestoreReport:
        self.close_journal()
        return restore(self.state_dir, kernel=self.kernel, proc=self.proc, patience_seconds=0.3)

    def task(self, program: str = BUSY) -> int:
        """A process that spins; on a fake kernel a number that is no process."""
        if not self.real:
            return 4_000_000 + next(NAMES)  # above the kernel's largest pid
        self.tasks.append(subprocess.Popen([sys.executable, "-S", "-c", program]))
        return self.tasks[-1].pid

    def end_tasks(self) -> None:
        for group in self.groups:
            if group.freezer is not None and group.exists():
                group.freezer.order(False)
        for task in self.tasks:
            task.kill()
            task.wait()
        self.tasks.clear()
        if self.fake is not None:
            for listing in self.fake.root.rglob("cgroup.procs"):
                listing.write_text("\n")

    def clean(self) -> None:
        self.end_tasks()
        for group in reversed(self.groups):
            group.remove()
        self.restore()
        self.kernel.close()


FAKES = ["v1", "v2", pytest.param("hybrid", marks=pytest.mark.slow)]
"""A hybrid host has v1's controllers, and a hierarchy without any."""

KINDS = [*FAKES, pytest.param("real", marks=pytest.mark.host)]


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made = real_bench(tmp_path) if request.param == "real" else fake_bench(tmp_path, request.param)
    yield made
    made.clean()


def real_bench(folder: Path) -> Bench:
    layout = needs(CgroupController.CPUACCT, cpus=2)
    return Bench(layout, KernelFiles(), Path("/proc"), folder / "state", None)


def fake_bench(folder: Path, kind: str) -> Bench:
    fake = FakeKernel(folder, kind)
    return Bench(Layout.detect(fake.root, fake.proc), fake, fake.proc, folder / "state", fake)


@pytest.fixture(params=FAKES)
def fake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Only the fake kernels, for what no real one can be made to do."""
    made = fake_bench(tmp_path, request.param)
    yield made
    made.clean()


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Bench]:
    """Only this host, for what takes processes that run."""
    made = real_bench(tmp_path)
    yield made
    made.clean()
