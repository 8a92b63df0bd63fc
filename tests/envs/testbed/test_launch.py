"""Starting and ending programs: nothing inherited, nobody outside the group, nobody left."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rlctl.envs.errors import CgroupBusy, TestbedError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.testbed import launch, leftovers
from rlctl.envs.testbed.launch import Launcher, Process
from rlctl.envs.testbed.namespace import require_tools
from rlctl.envs.testbed.network.link import TOOLS
from rlctl.envs.testbed.services import Postgres
from scripts.studies.realtime.cyclictest import Cyclictest
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.host  # real processes

SH = shutil.which("sh") or "sh"


def finished(process: Process) -> str:
    until(lambda: process.exit_code is not None)
    return process.output.read_text()


@dataclass
class Recorder:
    """A group that only notes who is attached, and what that was running then."""

    refuse: Exception | None = None
    attached: list[tuple[int, str]] = field(default_factory=list)
    directories: tuple[Path, ...] = ()
    name: str = "recorder"

    def attach(self, pid: int) -> None:
        # empty for a moment while the kernel is exchanging the program
        self.attached.append((pid, until(Path(f"/proc/{pid}/cmdline").read_text)))
        if self.refuse is not None:
            raise self.refuse

    def pids(self) -> list[int]:
        return [pid for pid, _ in self.attached]


def test_command_runs_only_in_its_group(tmp_path: Path) -> None:
    group = Recorder()
    with Launcher(tmp_path, group) as launcher:
        process = launcher.start("hello", [SH, "-c", "echo hello; exit 3"])
        assert finished(process) == "hello\n"
        assert process.exit_code == process.stop() == 3
    (pid, was_running) = group.attached[0]
    assert pid == process.pid
    assert "launch_barrier.py" in was_running
    assert process.pids() == ()


def test_group_that_refuses_leaves_no_process(tmp_path: Path) -> None:
    group = Recorder(refuse=CgroupBusy("no CPUs"))
    with Launcher(tmp_path, group) as launcher, pytest.raises(CgroupBusy):
        launcher.start("never", [SH, "-c", "echo ran"])
    assert not Path(f"/proc/{group.pids()[0]}").exists()
    assert (tmp_path / "never.out").read_text() == ""


def test_command_that_does_not_exist_says_so(tmp_path: Path) -> None:
    with Launcher(tmp_path) as launcher:
        process = launcher.start("ghost", ["/no/such/program"])
        finished(process)
        assert process.exit_code == 127
        assert "No such file" in process.tail()


@pytest.mark.parametrize(
    ("start", "program", "package"),
    [
        (lambda _: require_tools(TOOLS), "ip", "iproute2"),
        (Postgres().start, "initdb", "postgresql"),
        (Cyclictest().start, "cyclictest", "rt-tests"),
    ],
)
def test_missing_program_is_told_with_its_package(
    start: Callable[[Launcher], None], program: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(launch, "SYSTEM_PROGRAMS", str(tmp_path))
    with pytest.raises(TestbedError, match=f"^{program} is not installed: apt-get install {package}$"):
        start(Launcher(tmp_path))


TELL = """
import os, signal
print(sorted(os.sched_getaffinity(0)), os.sched_getscheduler(0), os.nice(0), os.getsid(0) == os.getpid(),
      signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.pthread_sigmask(signal.SIG_BLOCK, ()),
      repr(os.read(0, 1)), os.listdir("/proc/self/fd")[3:4])
"""


def test_nothing_is_inherited_from_real_time_controller(tmp_path: Path) -> None:
    """The controller ignores SIGINT, blocks SIGTERM, is pinned to one CPU, niced and FIFO, as services may be."""
    script = f"""
import os, signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.nice(5)
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
except PermissionError:
    pass
from rlctl.envs.testbed.launch import Launcher
with Launcher(Path({str(tmp_path)!r})) as launcher:
    process = launcher.start("tell", [sys.executable, "-c", {TELL!r}])
    process.wait({PATIENCE_SECONDS})
"""
    everywhere = sorted(os.sched_getaffinity(0))
    nice = 0 if os.geteuid() == 0 else os.nice(0) + 5
    with Launcher(tmp_path) as outer:
        finished(controller := outer.start("controller", [sys.executable, "-c", script]))
        assert controller.exit_code == 0, controller.tail()
    assert (tmp_path / "tell.out").read_text() == f"{everywhere} 0 {nice} True True set() b'' ['3']\n"


def test_descendants_end_whatever_they_ignore(tmp_path: Path) -> None:
    deaf = "trap '' TERM INT; while :; do sleep 0.05; done"
    with Launcher(tmp_path) as launcher:
        process = launcher.start("family", [SH, "-c", f"({deaf}) & ({deaf}) & echo up; wait"])
        until(lambda: process.output.read_text())
        family = process.pids()
        assert len(family) >= 3
        process.stop(grace_seconds=0.1)
    assert all(leftovers.task(pid) is None or not leftovers.task(pid).alive for pid in family)  # type: ignore[union-attr]


def test_stop_asks_first_and_may_be_repeated(tmp_path: Path) -> None:
    with Launcher(tmp_path) as launcher:
        asked = launcher.start("polite", [SH, "-c", "trap 'exit 7' INT; echo up; while :; do sleep 0.02; done"])
        until(lambda: asked.output.read_text())
        assert asked.exit_code is None
        assert asked.stop(signal.SIGINT) == asked.stop() == 7


def test_frozen_group_can_be_stopped_and_removed(be_launcher: Launcher, group: Group) -> None:
    process = be_launcher.start("spin", [SH, "-c", "while :; do :; done"])
    daemon = be_launcher.start(
        "daemon", [sys.executable, "-c", "import os, time; os.fork() or os.setsid(); time.sleep(60)"]
    )
    until(lambda: len(group.pids()) == 3)
    assert group.freezer is not None
    group.freezer.order(True)
    assert process.stop() == -signal.SIGTERM
    be_launcher.close()  # the daemon's child has left the session, but not the group
    assert daemon.exit_code is not None
    assert group.pids() == frozenset()


def test_started_in_frozen_group_it_waits_for_thaw(be_launcher: Launcher, group: Group) -> None:
    assert group.freezer is not None
    group.freezer.order(True)
    process = be_launcher.start("late", [SH, "-c", "echo ran"])
    time.sleep(0.1)
    assert process.exit_code is None
    assert process.output.read_text() == ""
    leftovers.thaw(group.directories)
    assert finished(process) == "ran\n"


def test_frozen_group_below_launcher_is_thawed(be_launcher: Launcher, group: Group) -> None:
    """Applications have groups of their own; a frozen process of v1 does not even die."""
    below = Group.create(group.layout, f"{group.name}/below", Knobs(None))
    assert below.freezer is not None
    below.attach(be_launcher.start("sleeper", ["sleep", "600"]).pid)
    below.freezer.order(True)
    below.freezer.settle(True, 10.0)
    be_launcher.close()
    assert not leftovers.members(below.directories)
