"""Groups of applications on this host: every thread is moved, also of a process that keeps forking."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from rlctl.envs.errors import CgroupBusy, CgroupGone, HostError
from rlctl.envs.host.apps.groups import make_group, move_all, return_home
from rlctl.envs.host.apps.launch import LaunchSite, _register_process, release
from rlctl.envs.host.apps.registry import AppMode, Description, Registration, Registry
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


def test_processes_without_old_group_return_to_root(tmp_path):
    inside, moved = {7, 8}, []

    def poke(path, text):
        if path.parent.name == "old":
            raise CgroupGone(f"{path}: no such group")
        inside.discard(int(text))
        moved.append((path.parent, int(text)))

    app, old = tmp_path / "app", tmp_path / "old"
    old.mkdir()
    layout = SimpleNamespace(mounts={"cpu": SimpleNamespace(path=tmp_path)})
    knobs = SimpleNamespace(read=lambda path: " ".join(map(str, inside)), poke=poke)
    return_home(SimpleNamespace(directories=(app,)), (old,), layout, knobs)
    assert moved == [(tmp_path, 7), (tmp_path, 8)]


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


def test_group_below_absent_one_makes_both(fake):
    group = make_group(fake.layout, "be", "7:app", Knobs(None, fake.kernel))
    assert group.name == "be/7:app"
    assert Group.open(fake.layout, "be", Knobs(None, fake.kernel)).exists()


def test_unregistered_process_is_back_where_it_was(fake, tmp_path):
    """Its group could not be removed with it inside, and that was all that was told."""
    (tmp_path / "file").write_text("")
    place = LaunchSite(fake.layout, "be", Registry(tmp_path / "file/apps"), knobs=Knobs(None, fake.kernel))
    with pytest.raises(HostError, match="cannot register"):
        _register_process(Description(name="app", modes=(AppMode(cpus=1.0, threads=1),)), os.getpid(), place)
    assert (fake.layout.mounts["cpu"].path / "cgroup.procs").read_text().split() == [str(os.getpid())]
    assert not list(fake.kernel.root.rglob("*:app"))


def test_one_outside_its_lost_group_is_remembered(fake, tmp_path):
    """Its registration was all that told where it came from."""
    place = LaunchSite(fake.layout, "be", Registry(tmp_path / "apps"), knobs=Knobs(None, fake.kernel))
    adopted = Registration(
        name="app", modes=(AppMode(cpus=1.0, threads=1),), pid=os.getpid(), start_time=start_time(os.getpid()),
        group="be/1:app", home=(tmp_path / "db",),
    )  # fmt: skip
    place.registry.add(adopted)
    with pytest.raises(CgroupGone, match=f"{tmp_path}/db by hand, then remove .*/{adopted.key}.json"):
        release(adopted, place)
    assert adopted.key in place.registry.read()
    release(adopted.model_copy(update={"start_time": 1}), place)
    assert not place.registry.read(), "one that has ended is"
