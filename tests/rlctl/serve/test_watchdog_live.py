"""Controller and watchdog on this machine: a busy BE in real control groups, and either process killed or stopped."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from tests.needs import needs
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.host

CONTROLLER = """
import sys, time
from pathlib import Path
from rlctl.envs.allocation import Limits
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.emergency import emergency_plan
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import Journal
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.safety.lease import Lease

name, state, tick, restore_after = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
limits, layout = Limits(2), Layout.detect()
knobs = Knobs(Journal.open(state))
groups = [Group.open(layout, name, knobs)]
actuator = BeActuator(groups, (1, 0), limits, knobs)
lease = Lease(emergency_plan(groups, (1, 0), limits, knobs), state, tick + 0.7, restore_after)
while True:
    why = lease.check()
    actuator.apply(limits.safe if why else limits.full.but(quota_cpus=1.5))
    lease.renew()
    print("tick", lease.pid, why, flush=True)
    time.sleep(tick)
"""


class Scene:
    """BE's group with a busy process in it, and a controller that gives BE much in every tick."""

    def __init__(self, group, state):
        self.group, self.state = group, state
        self.controller = None
        self.before = self.knobs()

    def knobs(self):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.max", "cpuset.cpus", "freezer.state", "cgroup.freeze")
        files = [folder / name for folder in self.group.directories for name in names]
        return {str(file): file.read_text() for file in files if file.exists()}

    def start(self, tick=1.0, restore_after=600.0):
        words = (self.group.name, self.state, tick, restore_after)
        self.controller = subprocess.Popen(
            [sys.executable, "-c", CONTROLLER, *map(str, words)], stdout=subprocess.PIPE, text=True
        )
        self.next_tick()

    def next_tick(self):
        """Watchdog's pid and the reason of the next tick."""
        _, pid, *why = self.controller.stdout.readline().split()
        return int(pid), " ".join(why)

    @property
    def safe(self):
        quota = self.group.cpu.quota().cpus
        return self.group.freezer.frozen() and quota <= 0.01 and self.group.cpuset.cpus() == {1}

    @property
    def free(self):
        return not self.group.freezer.is_ordered() and self.group.cpu.quota().cpus > 1.0

    def restore(self):
        words = [sys.executable, "-m", "rlctl", "restore", "--state", str(self.state)]
        return subprocess.run(words, capture_output=True, text=True, check=False)


def seconds_until(condition):
    begun = time.monotonic()
    until(condition)
    return time.monotonic() - begun


@pytest.fixture
def scene(tmp_path):
    group = Group.create(needs(cpus=2), f"rlctl-test-watchdog-{os.getpid()}", Knobs(None))
    group.cpuset.set_cpus({0, 1})  # v2 begins with an empty list, which the kernel does not take back
    busy = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    made = Scene(group, tmp_path / "state")
    try:
        group.attach(busy.pid)
        yield made
    finally:
        if made.controller is not None:
            for pid in (watchdog_of(made), made.controller.pid):  # in this order: else it would go on for ten minutes
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            made.controller.wait()
            made.controller.stdout.close()
        group.freezer.order(False)
        busy.kill()
        busy.wait()
        group.remove()


def watchdog_of(scene):
    """The latest watchdog that guards this scene; one that ended is no process any more."""
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = status.read_bytes().split(b"\0")
            if str(scene.state / "lock").encode() in words:
                return int(status.parent.name)
    return scene.controller.pid


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_controller_that_dies_or_stops_leaves_be_safe(scene, number, capsys):
    """Within two seconds on a machine that is not busy: what is printed; scripts/fault-matrix holds it to that."""
    scene.start()
    assert scene.free
    os.kill(scene.controller.pid, number)
    seconds = seconds_until(lambda: scene.safe)
    with capsys.disabled():
        print(f" {signal.Signals(number).name}: safe after {seconds:.3f} s", end=" ")


@pytest.mark.slow
def test_stopped_controller_goes_on_with_safe_tick(scene):
    scene.start(tick=0.2)
    os.kill(scene.controller.pid, signal.SIGSTOP)
    seconds_until(lambda: scene.safe)
    os.kill(scene.controller.pid, signal.SIGCONT)
    seconds_until(lambda: "no tick completed" in scene.next_tick()[1])
    seconds_until(lambda: scene.free)


@pytest.mark.slow
def test_killed_watchdog_costs_one_safe_tick(scene):
    scene.start(tick=0.2)
    pid, _ = scene.next_tick()
    os.kill(pid, signal.SIGKILL)
    seconds_until(lambda: "was killed by signal 9" in scene.next_tick()[1])
    seconds_until(lambda: scene.next_tick()[1] == "")
    assert scene.next_tick()[0] != pid


def test_both_killed_and_restore_puts_everything_back(scene):
    scene.start()
    watchdog = watchdog_of(scene)
    assert watchdog != scene.controller.pid
    os.kill(watchdog, signal.SIGKILL)
    os.kill(scene.controller.pid, signal.SIGKILL)
    scene.controller.wait()
    assert scene.knobs() != scene.before
    done = scene.restore()
    assert done.returncode == 0, done.stderr
    assert scene.knobs() == scene.before


@pytest.mark.slow
def test_everything_is_put_back_when_nobody_succeeds(scene):
    scene.start(tick=0.2, restore_after=5.0)
    os.kill(scene.controller.pid, signal.SIGKILL)
    seconds_until(lambda: scene.safe)
    assert scene.controller.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    seconds_until(lambda: scene.knobs() == scene.before)
    seconds_until(lambda: (scene.state / "journal.jsonl.restored").exists())


@pytest.mark.slow
def test_be_stays_safe_after_hung_controller_was_ended(scene):
    scene.start(tick=0.2, restore_after=1.0)
    os.kill(scene.controller.pid, signal.SIGSTOP)
    assert scene.controller.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    time.sleep(2.0)
    assert scene.safe
    assert scene.restore().returncode == 0
    assert scene.knobs() == scene.before


@pytest.mark.slow
def test_another_controller_takes_over_and_old_watchdog_goes(scene):
    scene.start(restore_after=600.0)
    old = watchdog_of(scene)
    os.kill(scene.controller.pid, signal.SIGKILL)
    scene.controller.wait()
    scene.controller.stdout.close()
    seconds_until(lambda: scene.safe)
    scene.start()
    seconds_until(lambda: not Path(f"/proc/{old}").exists())
    scene.next_tick()
    assert scene.free
    os.kill(scene.controller.pid, signal.SIGSTOP)
    seconds_until(lambda: scene.safe)
