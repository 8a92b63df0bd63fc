"""BE's budget divided among applications, on fake kernels of every layout."""

import errno
import itertools
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.applications import CpuCluster
from rlctl.envs.errors import HostError
from rlctl.envs.host.apps.population import make_group
from rlctl.envs.host.apps.registry import AppMode, Registration, Registry
from rlctl.envs.host.apps.rlctl_mode import Mode as Told
from rlctl.envs.host.apps.rlctl_mode import ModeClient
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import Journal
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.host.cgroup.restore import restore
from rlctl.envs.host.cgroup.values import Quota
from rlctl.envs.host.process import start_time
from rlctl.serve.sharing import Sharing
from tests.doubles.cgroup_kernel import FakeKernel

NUMBERS = itertools.count(4_000_000)  # of nobody's processes
SMALL_OR_LARGE = (AppMode(cpus=0.2, threads=1, value=0.5), AppMode(cpus=0.6, threads=2, value=1.0))


class Scene:
    """A group of BE on a fake kernel, its actuator, and applications that come and go by themselves."""

    def __init__(self, folder, kind, clusters=1):
        self.kernel = FakeKernel(folder, kind, cpus=2)
        self.layout = Layout.detect(self.kernel.root, self.kernel.proc)
        self.free = Knobs(None, self.kernel)
        self.parent = Group.create(self.layout, "be", self.free, also=(CgroupController.MEMORY,))
        cpus = [frozenset({0, 1})] if clusters == 1 else [frozenset({number}) for number in range(clusters)]
        self.clusters = [CpuCluster(f"c{number}", one, float(len(one))) for number, one in enumerate(cpus)]
        self.state, self.now = folder / "state", 1000.0
        self.registry = Registry(folder / "apps")
        self.journal = Journal.open(self.state, self.kernel.proc)
        self.knobs = Knobs(self.journal, self.kernel)
        self.actuator = BeActuator([self.parent], (1, 0), Limits(2), self.knobs, settle_seconds=0.0)
        self.sharing = Sharing(self.clusters, self.parent, self.knobs, registry=self.registry, clock=lambda: self.now)
        self.groups = {}

    def come(self, name, modes=SMALL_OR_LARGE, priority=0, registered=True, below="be", pid=None):
        pid = pid or os.getpid()
        key = f"{pid}:{name}" if registered else name
        self.groups[name] = group = make_group(self.layout, below, key, self.free)
        group.attach(next(NUMBERS))
        if registered:
            self.registry.add(
                Registration(
                    name=name,
                    priority=priority,
                    modes=modes,
                    pid=pid,
                    start_time=start_time(pid) or 1,
                    group=group.name,
                )
            )
        return key

    def leave(self, name):
        group = self.groups.pop(name)
        for folder in group.directories:
            (folder / "cgroup.procs").write_text("\n")
        group.remove()

    def tick(self, cpus, cpuset=2, frozen=False):
        self.now += 1.0
        budget = Allocation(cpus, cpuset, frozen)
        self.sharing.look()
        with_all = self.actuator.apply(budget) if not frozen else self._freeze(budget)
        return self.sharing.share(with_all)

    def _freeze(self, budget):
        try:
            return self.actuator.apply(budget)
        except Exception:  # noqa: BLE001 - tasks of a fake kernel never stop
            return budget

    def quota(self, name):
        return self.group(name).cpu.quota().cpus

    def group(self, name):
        return self.groups[name].using(self.free)

    def end(self):
        self.journal.close()
        return restore(self.state, kernel=self.kernel, proc=self.kernel.proc, patience_seconds=0.1)


@pytest.fixture(params=["v1", "v2", pytest.param("hybrid", marks=pytest.mark.slow)])
def scene(request, tmp_path):
    made = Scene(tmp_path, request.param)
    yield made
    made.end()


def test_budget_is_divided_by_priority_rest_is_frozen(scene):
    first, second = scene.come("first"), scene.come("second", priority=1)
    assert {name: one.mode for name, one in scene.tick(1.2).items()} == {first: 1, second: 1}
    assert scene.quota("first") == pytest.approx(0.6)
    assert scene.quota("second") == pytest.approx(0.6)
    assert scene.tick(0.3).keys() == {first}
    assert scene.sharing.shares[second] is None
    assert scene.group("second").freezer.is_ordered()
    assert not scene.group("first").freezer.is_ordered()
    assert scene.quota("first") == pytest.approx(0.3), "what is left goes to those that are placed"
    assert scene.tick(1.2).keys() == {first, second}
    assert not scene.group("second").freezer.is_ordered()


def test_what_the_owner_set_is_kept(scene):
    """`docker pause`, `systemctl freeze`, a quota and CPUs (`--cpuset-cpus`) of its own lasted until the next tick."""
    scene.come("box", registered=False)
    scene.group("box").cpu.set_quota(Quota.of_cpus(0.5))
    scene.group("box").cpuset.set_cpus({1})
    for _ in range(2):
        scene.tick(2.0)
    assert scene.quota("box") == 0.5
    assert scene.group("box").cpuset.effective() == {1}
    scene.group("box").freezer.order(True)
    scene.tick(2.0)
    assert scene.group("box").freezer.is_ordered()


def test_no_change_of_the_budget_lifts_a_share(scene, monkeypatch):
    """Each one of BE's quota in v1 once lifted that of every application, until it was written anew."""
    scene.come("first")
    scene.tick(1.0)
    write, written = scene.kernel.write, []
    monkeypatch.setattr(scene.kernel, "write", lambda *one: written.append(one) or write(*one))
    for budget in (1.5, 0.4, 1.2):
        scene.tick(budget)
        assert scene.quota("first") == pytest.approx(budget)
    quotas = [text for path, text in written if "first" in path.parent.name and "cfs_quota" in path.name]
    assert "-1" not in quotas


def test_deferred_without_a_freezer_hardly_runs(scene):
    """Once it ran beside those that were placed, without a quota, on a v1 host without that hierarchy."""
    scene.come("first")
    second = scene.come("second", priority=1)
    scene.sharing.look()
    scene.sharing._population.members[second].group.freezer = None
    scene.tick(0.3)
    assert scene.quota("second") == pytest.approx(0.001)
    scene.tick(1.2)
    assert scene.quota("second") == pytest.approx(0.6)


def test_deferred_by_a_killed_predecessor_comes_back(scene):
    scene.come("first")
    scene.come("second", priority=1)
    scene.tick(0.3)
    assert scene.group("second").freezer.is_ordered()
    scene.sharing = Sharing(scene.clusters, scene.parent, scene.knobs, registry=scene.registry, clock=lambda: scene.now)
    for _ in range(2):
        scene.tick(1.2)
    assert not scene.group("second").freezer.is_ordered()


def test_coming_and_going_changes_shares_at_once(scene):
    first = scene.come("first")
    assert scene.tick(0.6)[first].cpus == pytest.approx(0.6)
    second = scene.come("second")
    assert scene.tick(0.6).keys() == {first, second}
    scene.leave("first")
    assert scene.tick(0.6)[second].cpus == pytest.approx(0.6)
    assert any(line.startswith("application-left: ") for line in scene.sharing._events.drain())


def test_unregistered_group_is_one_mode_of_least_priority(scene):
    key = scene.come("stray", registered=False)
    own = scene.come("own")
    assert scene.tick(1.5)[key].mode == 0
    (stray,) = [one for one in scene.sharing.applications if one.name == "stray"]
    assert stray.priority == 9
    assert scene.tick(0.25).keys() == {own}


def test_empty_group_gets_nothing(scene):
    make_group(scene.layout, "be", "idle", scene.free)
    assert scene.tick(1.0) == {}
    Group.open(scene.layout, "be/idle", scene.free).attach(4_000_000)
    scene.now += 5.0
    assert scene.tick(1.0).keys() == {"idle"}


def test_a_registered_application_that_died_is_cleared_away(scene):
    key = scene.come("dead", pid=2**22 + 5)
    assert key in scene.tick(1.0)
    for listing in scene.kernel.root.rglob("cgroup.procs"):
        listing.write_text("\n")
    scene.now += 5.0
    assert scene.tick(1.0) == {}
    assert not scene.groups["dead"].exists()
    assert scene.registry.read() == {}


def test_refused_one_is_told_once_and_forgotten(scene, monkeypatch):
    """A host on which jobs come all day and the state directory's disk is full must not fill its memory with them."""

    def full(*_, **__):
        raise HostError("no space left")

    monkeypatch.setattr(Journal, "record", full)
    for number, registered in enumerate((True, False)):
        for _ in range(2):
            key = scene.come(f"job{number}", registered=registered)
            for _ in range(3):
                scene.sharing.look()
            refused = [line for line in scene.sharing._events.drain() if line.startswith("application-refused: ")]
            assert refused == [f"application-refused: {key}: no space left"], "one that comes again is told again"
            scene.leave(f"job{number}")
            scene.registry.remove(key)
            scene.sharing.look()
            assert scene.sharing._population._refused == {}


def test_no_child_is_wider_than_the_verdict(scene):
    scene.come("first")
    scene.tick(1.0, cpuset=2)
    assert scene.group("first").cpuset.effective() == {0, 1}
    scene.tick(1.0, cpuset=1)
    assert scene.group("first").cpuset.effective() == {1}
    scene.tick(1.0, cpuset=2)
    assert scene.group("first").cpuset.effective() == {0, 1}


def test_while_be_is_frozen_all_beneath_stays(scene):
    first = scene.come("first")
    before = scene.tick(1.0)[first]
    scene.tick(0.01, cpuset=1, frozen=True)
    assert scene.sharing.shares == {first: before}
    assert not scene.group("first").freezer.is_ordered()


def test_modes_are_told_tiny_changes_are_not(scene):
    key = scene.come("first")
    client = ModeClient(str(scene.registry.mode_file(key)))
    scene.tick(1.0)
    assert client.poll() == Told(1, 2, 1.0, 0)
    assert scene.registry.mode_file(key).read_text() == "mode 1 threads 2 millicpus 1000 memory 0\n"
    scene.tick(0.98)
    assert client.poll() is None
    scene.tick(0.3)
    assert client.poll() == Told(0, 1, 0.3, 0)
    scene.sharing.close()
    assert client.poll() == Told(1, 2, 0.6, 0), "without a service it once went on in its last mode"


def test_mode_without_memory_limit_has_the_earlier_one(scene):
    if CgroupController.MEMORY not in scene.layout.mounts:
        pytest.skip("no memory controller here")
    scene.come(
        "app",
        (
            AppMode(cpus=0.5, threads=1, value=0.5, memory_bytes=1 << 29),
            AppMode(cpus=2.0, threads=2, value=1.0),
        ),
    )
    mount, folder = scene.group("app").part(CgroupController.MEMORY)
    limit = folder / ("memory.soft_limit_in_bytes" if mount.version == 1 else "memory.high")
    before = limit.read_text().strip()
    scene.tick(0.6)
    assert limit.read_text().strip() == str(1 << 29)
    scene.tick(2.0)
    assert limit.read_text().strip() == before


def test_predecessors_limit_does_not_stay(scene):
    if CgroupController.MEMORY not in scene.layout.mounts:
        pytest.skip("no memory controller here")
    limited = AppMode(cpus=0.5, threads=1, value=0.5, memory_bytes=1 << 29)
    key = scene.come("app", (limited, AppMode(cpus=2.0, threads=2, value=1.0)))
    mount, folder = scene.group("app").part(CgroupController.MEMORY)
    limit = folder / ("memory.soft_limit_in_bytes" if mount.version == 1 else "memory.high")
    before = limit.read_text().strip()
    assert scene.tick(0.6)[key].mode == 0
    scene.sharing = Sharing(scene.clusters, scene.parent, scene.knobs, registry=scene.registry, clock=lambda: scene.now)
    assert scene.tick(2.0)[key].mode == 1
    assert limit.read_text().strip() == before


@pytest.mark.parametrize("modes", [SMALL_OR_LARGE, (AppMode(cpus=0.2, threads=1),)], ids=["the same", "fewer modes"])
def test_released_and_adopted_between_ticks_begins_anew(scene, modes):
    """Once a mode that it had no more failed every later division."""
    key = scene.come("app")
    assert scene.tick(2.0)[key].mode == 1
    scene.leave("app")
    scene.registry.mode_file(key).unlink()
    assert scene.come("app", modes) == key
    for _ in range(2):
        placed = scene.tick(2.0)
    assert placed[key].mode == len(modes) - 1
    assert scene.registry.mode_file(key).exists()
    assert scene.quota("app") == pytest.approx(2.0)


def test_restore_thaws_deferred_and_sets_everybody_free(scene):
    scene.come("first")
    scene.come("second", priority=1)
    before = {name: _knobs(group) for name, group in scene.groups.items()}
    scene.tick(0.3)
    assert scene.group("second").freezer.is_ordered()
    assert scene.end().ok
    assert {name: _knobs(group) for name, group in scene.groups.items()} == before


@pytest.mark.parametrize("registered", [True, False])
def test_late_comer_has_all_cpus_after_restore(scene, registered):
    scene.tick(1.0, cpuset=1)
    scene.come("late", registered=registered)
    scene.tick(1.0, cpuset=1)
    assert scene.group("late").cpuset.effective() == {1}
    assert scene.end().ok
    assert scene.group("late").cpuset.effective() == {0, 1}


def test_the_watchdogs_plan_reaches_the_children(scene):
    scene.come("first")
    scene.tick(1.0)
    files = {str(path) for path in scene.actuator.emergency_plan().paths}
    if scene.layout.mounts[CgroupController.CPU].version == 1:  # in v2 the parent's quota binds whatever children have
        assert {str(file) for file in scene.group("first").knob_files("quota")} <= files


def _knobs(group):
    return {str(file): file.read_text() for file in group.knob_files("quota", "cpus", "frozen")}


@pytest.fixture(params=["v1", "v2", pytest.param("hybrid", marks=pytest.mark.slow)])
def two(request, tmp_path):
    """Two clusters of one CPU, each with a group of its own."""
    layout = FakeKernel(tmp_path, request.param)
    found = Layout.detect(layout.root, layout.proc)
    free = Knobs(None, layout)
    for number in range(2):
        group = Group.create(found, f"be/c{number}", free, also=(CgroupController.MEMORY,))
        group.cpuset.set_cpus({number})
    Group.open(found, "be", free)
    made = TwoClusters(tmp_path, request.param)
    yield made
    made.end()


class TwoClusters(Scene):
    def __init__(self, folder, kind):
        original = Group.create
        try:
            Group.create = classmethod(lambda cls, layout, name, knobs, also=(): cls.open(layout, name, knobs))
            super().__init__(folder, kind, clusters=2)
        finally:
            Group.create = original


def test_application_moves_to_cluster_that_has_room(two):
    names = [two.come(name, below="be/c0", modes=(AppMode(cpus=0.9, threads=1),)) for name in ("first", "second")]
    placed = two.tick(2.0)
    assert {placed[name].cluster for name in names} == {"c0", "c1"}
    (moved,) = [name for name in names if placed[name].cluster == "c1"]
    assert two.registry.read()[moved].group == f"be/c1/{moved}"
    assert not (two.kernel.root / "cpu/be/c0" / moved).exists()
    group = Group.open(two.layout, f"be/c1/{moved}", two.free)
    assert group.pids()
    assert group.cpuset.effective() == {1}
    assert two.sharing.pop_regrouped(), "the watchdog needs another plan"
    two.tick(2.0)
    assert two.sharing.shares[moved].cluster == "c1"
    assert any(line.startswith("application-moved: ") for line in two.sharing._events.drain())


def test_move_one_hierarchy_refuses_leaves_all(two, monkeypatch):
    """As cpuset does without CAP_SYS_NICE, when cpu has taken it already."""
    keys = [two.come(name, below="be/c0", modes=(AppMode(cpus=0.9, threads=1),)) for name in ("first", "second")]
    before, write = {name: group.pids() for name, group in two.groups.items()}, two.kernel.write

    def refusing(path, text):
        if path.name in {"cgroup.procs", "tasks"} and "c1" in path.parts and "cpu" not in path.parts:
            raise PermissionError(errno.EPERM, "Operation not permitted", str(path))
        write(path, text)

    monkeypatch.setattr(two.kernel, "write", refusing)
    for _ in range(3):
        two.tick(2.0)
    assert {name: group.pids() for name, group in two.groups.items()} == before
    assert two.sharing.shares.keys() == set(keys)
    assert any("not all of it moved to c1" in line for line in two.sharing._events.drain())


def test_a_group_of_somebody_else_is_not_moved(two):
    """Nor promised another cluster's CPU time: shares once added up to 2 CPUs of one."""
    keys = [two.come(name, below="be/c0", registered=False) for name in ("first", "second")]
    own = two.come("own", below="be/c0", modes=(AppMode(cpus=0.8, threads=1),))
    for _ in range(2):
        two.sharing.pop_regrouped()
        two.tick(2.0)
    assert two.sharing.shares.keys() == {own, *(f"c0/{key}" for key in keys)}
    assert all(one is None or one.cluster == "c0" for one in two.sharing.shares.values())
    assert sum(one.cpus for one in two.sharing.shares.values() if one) <= 1.0 + 1e-9
    assert all(group.exists() for group in two.groups.values())
    assert not two.sharing.pop_regrouped(), "the watchdog's plan is the same"


@pytest.mark.slow
def test_clusters_without_bes_cpus_hold_nobody(two):
    names = [two.come(name, below="be/c0") for name in ("first", "second")]
    placed = two.tick(2.0, cpuset=1)  # CPU 1 alone
    assert {one.cluster for one in placed.values()} == {"c1"}
    assert placed.keys() == set(names)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(["v1", "v2"]))
def test_children_never_have_more_than_the_budget(tmp_path_factory, seed, kind):
    """Nor does a v1 kernel refuse a write: its parents must cover their children at each moment."""
    chance, scene = random.Random(seed), Scene(tmp_path_factory.mktemp("sharing"), kind)
    try:
        for number in range(12):
            if chance.random() < 0.5 and len(scene.groups) < 5:
                scene.come(f"app{number}", priority=chance.randrange(3), registered=chance.random() < 0.8)
            elif scene.groups and chance.random() < 0.3:
                scene.leave(chance.choice(sorted(scene.groups)))
            budget = chance.choice([UNLIMITED, chance.uniform(0.02, 2.0)])
            placed = scene.tick(budget, chance.choice([1, 2]))
            assert sum(one.cpus for one in placed.values()) <= min(budget, 2.0) + 1e-9
            running = [name for name in scene.groups if not scene.group(name).freezer.is_ordered()]
            assert sum(scene.quota(name) for name in running) <= min(budget, 2.0) + 1e-6
            assert not scene.sharing._population._refused
    finally:
        assert scene.end().ok


def test_started_outside_of_be_is_told_once(scene):
    key = scene.come("astray", below="elsewhere")
    for _ in range(3):
        scene.tick(1.0)
    told = [line for line in scene.sharing._events.drain() if line.startswith(f"application-refused: {key}: runs in ")]
    assert len(told) == 1
    assert told[0].endswith("not below BE's /be: `rlctl app` needs serve's --config")
