"""Groups of applications on this host: every thread is moved, also of a process that keeps forking."""

import os
import subprocess
import sys
import time

import pytest

from rlctl.envs.errors import CgroupBusy, HostError
from rlctl.envs.host.apps.launch import LaunchSite, register
from rlctl.envs.host.apps.population import make_group, move_all
from rlctl.envs.host.apps.registry import AppMode, Description, Registry
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.process import memberships, start_time
from tests.waiting import PATIENCE_SECONDS

FORKING = """
import os, time
print("ready", flush=True)
while True:
    pid = os.fork()
    if not pid:
        time.sleep(0.02)
        os._exit(0)
    time.sleep(0.01)
    os.waitpid(-1, os.WNOHANG)
"""
THREADS = """
import threading, time
for _ in range(8):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.host
@pytest.mark.parametrize("program", [THREADS, FORKING])
def test_application_moves_between_clusters_with_all_its_threads(real, program):
    name = f"rlctl-test-clusters-{os.getpid()}"
    knobs = Knobs(None)
    clusters = [real.group(name), real.group(f"{name}/c0"), real.group(f"{name}/c1")][1:]
    for number, cluster in enumerate(clusters):
        cluster.cpuset.set_cpus({number})
    old = make_group(real.layout, clusters[0].name, "1:app", knobs)
    worker = subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.stdin.readline()\n" + program],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # fmt: skip
    try:
        old.attach(worker.pid)
        worker.stdin.write("go\n")
        worker.stdin.flush()
        assert worker.stdout.readline() == "ready\n"
        assert {os.sched_getaffinity(int(task)) == {0} for task in os.listdir(f"/proc/{worker.pid}/task")} == {True}
        target = make_group(real.layout, clusters[1].name, "1:app", knobs)
        moved(old, target)
        old.remove()
        for task in os.listdir(f"/proc/{worker.pid}/task"):
            assert os.sched_getaffinity(int(task)) == {1}
            assert memberships(int(task))["cpuset" if "cpuset" in memberships(1) else ""].endswith("c1/1:app")
    finally:
        worker.kill()
        worker.communicate()


def moved(old, target):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return move_all(old, target)
        except CgroupBusy:  # it forks faster than this busy machine moves: the next tick tries again
            assert time.monotonic() < deadline


def test_start_time_tells_processes_apart(tmp_path):
    assert start_time(os.getpid()) == start_time(os.getpid())
    assert start_time(2**22 + 1) is None
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert start_time(child.pid) is None, "a zombie has ended"
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text("7 (a) b (c)) S 1 2 3")
    assert start_time(7, tmp_path) is None
    (tmp_path / "7/stat").write_text("7 (a) b (c)) S " + " ".join(map(str, range(4, 53))))
    assert start_time(7, tmp_path) == 22


def test_what_cannot_be_registered_is_not_attached(fake, tmp_path):
    """Below a frozen BE it could not end, and `rlctl app run` hung with its signals blocked."""
    (tmp_path / "apps").write_text("no directory")
    place = LaunchSite(fake.layout, "be", Registry(tmp_path / "apps"), Knobs(None, fake.kernel))
    with pytest.raises(HostError, match="cannot register"):
        register(Description(name="app", modes=(AppMode(cpus=0.1, threads=1),)), os.getpid(), place)
    assert not Group.open(fake.layout, f"be/{os.getpid()}:app", place.knobs).pids()


def test_group_below_absent_one_makes_both(fake):
    group = make_group(fake.layout, "be", "7:app", Knobs(None, fake.kernel))
    assert group.name == "be/7:app"
    assert Group.open(fake.layout, "be", Knobs(None, fake.kernel)).exists()
