"""Applications on this machine: launched, held to their shares by `rlctl serve`, and safe when that dies."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlctl.cli import main
from rlctl.envs.allocation import Allocation
from rlctl.envs.applications import CpuCluster
from rlctl.envs.errors import RlctlError
from rlctl.envs.host.apps.launch import LaunchSite, forget, register
from rlctl.envs.host.apps.registry import AppMode, Description, Registry
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.serve.sharing import Sharing
from tests.doubles.tick_logs import read_ticks
from tests.needs import needs
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.host

BUSY = [sys.executable, "-S", "-c", "while True: pass"]


class Scene:
    """An LC that answers fast, BE's group with room for applications, and whoever is started here."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.registry = Registry(folder / "apps")
        self.processes = []
        self.config = folder / "serve.yaml"
        self.config.write_text(
            f"""
tick_seconds: 0.2
lc:
  workload: {{kind: cgroup, path: /{name}/lc}}
  slo: {{target_milliseconds: 1000, max_load_rps: 1000000}}
  latency: {{kind: jsonl, path: {folder}/requests.jsonl}}
  cpus: [0]
be:
  cpus: [1, 0]
  applications:
    group: /{name}/be
    directory: {folder}/apps
policy: {{name: static, options: {{quota_ratio: 0.5}}}}
state_directory: {folder}/state
log: {{directory: {folder}/log}}
watchdog: {{restore_after_seconds: 2}}
"""
        )

    def start(self, *words):
        words = [sys.executable, "-m", "rlctl", *map(str, words)]
        self.processes.append(process := subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        return process

    def app(self, *words):
        """`rlctl app` without a process of its own."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["app", *map(str, words), "--config", str(self.config)])
        return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())

    def describe(self, name, priority=0, modes="[{cpus: 0.03, threads: 1, value: 0.5}, {cpus: 0.06, threads: 2}]"):
        path = self.folder / f"{name}.yaml"
        path.write_text(f"name: {name}\npriority: {priority}\nmodes: {modes}\n")
        return path

    def launch(self, name, *command, priority=0):
        process = self.start(
            "app", "run", "--config", self.config, self.describe(name, priority), "--", *(command or BUSY)
        )
        # Some are launched that cannot be, so its end is no failure here.
        until(lambda: process.poll() is not None or any(one.name == name for one in self.registry.read().values()))
        return process

    def groups(self):
        """The groups of BE and of its applications, by the last part of their names."""
        layout, found = Layout.detect(), {}
        with contextlib.suppress(RlctlError):
            found["be"] = be = Group.open(layout, f"{self.name}/be", Knobs(None))
            for folder in be.directories[0].iterdir():
                if folder.is_dir():
                    found[folder.name.partition(":")[2]] = Group.open(layout, folder, Knobs(None))
        return found

    def answer(self):
        """The LC has completed some requests, all fast."""
        with (self.folder / "requests.jsonl").open("a") as file:
            file.write('{"latency_seconds": 0.001}\n' * 200)

    def wait_for(self, condition, process=None):
        """As `until`, with an LC that goes on answering."""

        def answered():
            self.answer()
            return condition()

        until(answered, process)

    def shares(self):
        """Those of the last tick that was recorded."""
        ticks = self.folder / "log/ticks.jsonl"
        said = [tick.get("shares", {}) for tick in read_ticks(ticks)] if ticks.exists() else []
        return {name.partition(":")[2]: one for name, one in said[-1].items()} if said else {}

    def all_placed(self):
        """Three run, and the one of the highest priority in its larger mode."""
        shares = self.shares()
        return sum(one is not None for one in shares.values()) == 3 and shares["one"][0] == 1

    def end(self):
        for group in self.groups().values():
            with contextlib.suppress(RlctlError):
                group.freezer.order(False)
        for process in self.processes:
            process.kill()
        for group in self.groups().values():
            with contextlib.suppress(RlctlError):
                for pid in group.pids():
                    os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.communicate()


@pytest.fixture
def scene(tmp_path):
    layout = needs(CgroupController.CPUACCT, cpus=2)
    name = f"rlctl-test-apps-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        top = Group.create(layout, name, Knobs(None), also=(CgroupController.MEMORY,))
        stack.callback(top.remove)
        lc = Group.create(layout, f"{name}/lc", Knobs(None))
        sleeper = subprocess.Popen(["sleep", "600"])
        stack.callback(sleeper.wait)
        stack.callback(sleeper.kill)
        lc.attach(sleeper.pid)
        made = Scene(tmp_path, name)
        stack.callback(made.end)
        yield made


def test_application_runs_in_its_group_with_its_environment(scene):
    program = "grep -q :oneshot /proc/self/cgroup && echo $RLCTL_THREADS $RLCTL_MODE_FILE; exit 7"
    process = scene.launch("oneshot", "sh", "-c", program)
    out, _ = process.communicate(timeout=PATIENCE_SECONDS)
    threads, file = out.split()
    assert (process.returncode, threads) == (7, "2")
    assert Path(file).parent == scene.folder / "apps/modes"
    assert scene.groups().keys() == {"be"}, "its group is gone with it"
    assert scene.registry.read() == {}


@pytest.mark.slow
def test_application_has_signals_and_threads_of_any_program(scene):
    program = "yes | head -1; echo ${OPENBLAS_NUM_THREADS-all}; grep SigIgn /proc/self/status"
    out, _ = scene.launch("plain", "sh", "-c", program).communicate(timeout=PATIENCE_SECONDS)
    yes, threads, ignored = out.splitlines()
    assert (yes, threads) == ("y", os.environ.get("OPENBLAS_NUM_THREADS", "all"))
    assert not int(ignored.split()[1], 16) & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "code"), [("/no/such", 127), ("/etc/passwd", 126)])
def test_what_cannot_be_executed_ends_as_in_shell(scene, command, code):
    process = scene.launch("broken", command)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == code
    assert scene.registry.read() == {}


@pytest.mark.slow
def test_signals_reach_one_that_is_frozen(scene):
    words = "trap 'sleep 0.5; exit 9' TERM; echo ready; while :; do sleep 0.05; done"
    process = scene.launch("patient", "sh", "-c", words)
    assert process.stdout.readline() == "ready\n"
    freezer = scene.groups()["patient"].freezer
    freezer.order(True)
    process.terminate()
    for _ in range(3):
        time.sleep(0.1)
        freezer.order(True)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 9


@pytest.mark.slow
def test_serve_divides_budget_defers_and_puts_back(scene):
    for priority, name in enumerate(("one", "two", "three")):
        scene.launch(name, priority=priority)
    before = knobs(scene.groups())
    serve = scene.start("serve", "--config", scene.config)
    scene.wait_for(scene.all_placed, serve)
    budget = scene.groups()["be"].cpu.quota().cpus
    each = {name: group.cpu.quota().cpus for name, group in scene.groups().items() if name != "be"}
    assert sum(each.values()) <= budget + 1e-6
    assert each["one"] >= each["three"] - 1e-6
    told = {key.partition(":")[2]: scene.registry.mode_file(key).read_text() for key in scene.registry.read()}
    assert told["one"].startswith("mode 1 threads 2 ")
    scene.processes[0].terminate()
    scene.wait_for(lambda: scene.shares().keys() == {"two", "three"})
    serve.terminate()
    serve.communicate(timeout=PATIENCE_SECONDS)
    assert serve.returncode == 0
    assert {scene.registry.mode_file(key).read_text()[:7] for key in scene.registry.read()} == {"mode 1 "}
    after = knobs(scene.groups())
    assert after == {file: text for file, text in before.items() if ":one/" not in file}


def test_killed_controller_leaves_applications_safe_then_free(scene):
    for priority, name in enumerate(("one", "two", "three")):
        scene.launch(name, priority=priority)
    before = knobs(scene.groups())
    serve = scene.start("serve", "--config", scene.config)
    scene.wait_for(scene.all_placed, serve)
    serve.kill()
    groups = scene.groups()
    until(lambda: all(group.freezer.frozen() for group in groups.values()))
    until(lambda: all(0.0 < group.cpu.quota().cpus <= 0.01 for group in groups.values()))
    until(lambda: knobs(scene.groups()) == before)
    assert not any(group.freezer.frozen() for group in scene.groups().values())


def knobs(groups):
    return {
        str(file): file.read_text()
        for group in groups.values()
        for file in group.knob_files("quota", "cpus", "frozen")
        if file.name != "freezer.state" or file.read_text() != "FREEZING\n"
    }


@pytest.mark.slow
def test_applications_are_moved_to_clusters(scene):
    """On two clusters of one CPU each: all that the two cores here can be divided into."""
    layout, free = Layout.detect(), Knobs(None)
    be = Group.create(layout, f"{scene.name}/be", free, also=(CgroupController.MEMORY,))
    clusters = [CpuCluster(f"c{number}", frozenset({number}), 1.0) for number in range(2)]
    for cluster in clusters:
        group = Group.create(layout, f"{be.name}/{cluster.name}", free, also=(CgroupController.MEMORY,))
        group.cpuset.set_cpus(cluster.cpus)
    place = LaunchSite(layout, f"{be.name}/c0", scene.registry, free)
    description = Description(name="app", modes=(AppMode(cpus=0.9, threads=1),))
    with contextlib.ExitStack() as stack:
        workers = [subprocess.Popen(BUSY) for _ in range(2)]
        for worker in workers:
            stack.callback(worker.wait)
            stack.callback(worker.kill)
        registered = [register(description, worker.pid, place) for worker in workers]
        sharing = Sharing(clusters, be, free, registry=scene.registry)
        placed = sharing.share(Allocation(2.0, 2))
        assert {placed[one.key].cluster for one in registered} == {"c0", "c1"}
        assert sorted(os.sched_getaffinity(worker.pid) == {1} for worker in workers) == [False, True]
        assert sharing.share(Allocation(2.0, 2)) == placed, "and stay there"
        for worker in workers:
            worker.kill()
            worker.wait()
        assert all(forget(one, place) for one in registered)
        assert scene.registry.read() == {}


@pytest.mark.slow
def test_the_worst_of_two_lcs_rules_be(scene):
    layout = Layout.detect()
    said, be = scene.config.read_text().split("be:\n", 1)
    one = f"slo: {{target_milliseconds: 1000, max_load_rps: 1000000}}, workload: {{kind: cgroup, path: /{scene.name}"
    lcs = [
        f"  - {{name: web, {one}/lc}}, cpus: [0], latency: {{kind: jsonl, path: {scene.folder}/requests.jsonl}}}}",
        f"  - {{name: cache, {one}/cache}}, cpus: [0], latency: {{kind: jsonl, path: {scene.folder}/cache.jsonl}}}}",
    ]
    scene.config.write_text("\n".join([said.partition("lc:")[0] + "lc:", *lcs, "be:\n"]) + be)
    ticks, speed = scene.folder / "log/ticks.jsonl", [0.001]

    def last():
        with (scene.folder / "cache.jsonl").open("a") as file:
            file.write(f'{{"latency_seconds": {speed[0]}}}\n' * 200)
        return ([{}, *read_ticks(ticks)] if ticks.exists() else [{}])[-1]

    with contextlib.ExitStack() as stack:
        cache = Group.create(layout, f"{scene.name}/cache", Knobs(None))
        stack.callback(cache.remove)
        sleeper = subprocess.Popen(["sleep", "600"])
        stack.callback(sleeper.wait)
        stack.callback(sleeper.kill)
        cache.attach(sleeper.pid)
        scene.launch("app")
        serve = scene.start("serve", "--config", scene.config)
        scene.wait_for(lambda: last().get("applied", {}).get("frozen") is False, serve)
        assert last()["lcs"].keys() == {"web", "cache"}
        speed[0] = 2.0
        scene.wait_for(lambda: last().get("applied", {}).get("frozen"), serve)
        tick = last()
        assert tick["lc"] == "cache"
        assert any("LC cache" in bound["detail"] for bound in tick["bounds"])
        assert not any("LC web" in bound["detail"] for bound in tick["bounds"] if bound["reason"].startswith("slack"))
        serve.terminate()
        serve.communicate(timeout=PATIENCE_SECONDS)
        assert serve.returncode == 0
