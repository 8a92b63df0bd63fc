"""Groups that come, go and are made anew mid-run: BE's stay under the budget, the LC's readings come back."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from typing import Any

import pytest

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import CgroupGone, HostError
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import COMPACT_ENTRIES, load
from rlctl.envs.host.cgroup.kernel import KernelFiles
from rlctl.envs.host.cgroup.layout import CgroupController
from rlctl.envs.host.cgroup.locks import Claims
from rlctl.envs.host.cgroup.ownership import Ownership
from rlctl.envs.host.cgroup.restore import restore
from rlctl.envs.host.containers import ContainerPaths
from rlctl.envs.host.discovery import ByCgroup, ByContainer, ByPid, selects
from rlctl.envs.host.following import Follower, GroupRoles
from rlctl.envs.host.groupsearch import outermost
from rlctl.envs.host.live import Lc, LiveHost, LiveParts
from rlctl.envs.host.sensors.of_groups import follow_groups, group_sensors
from rlctl.envs.telemetry import Missing, Value
from rlctl.envs.workload import SLO, Weight

Bench = Any
LAYOUT: Any = None  # asked by the search for a container alone
LIMITS = Limits(cpus=2)
HALF = Allocation(0.5, 2)


class Run:
    """A host whose BE is every group `batch-*` (or `selected`) and whose LC is `web*`, below a group of its own."""

    def __init__(
        self,
        bench: Bench,
        monkeypatch: pytest.MonkeyPatch,
        *names: str,
        selected: str = "batch-*",
        other: str = "",
        tick_seconds: float = 1.0,
    ) -> None:
        monkeypatch.setattr("rlctl.envs.host.following.LOOK_SECONDS", 0.0)
        self.bench = bench
        self.top = bench.group().name
        self.lc = bench.group(f"{self.top}/web")
        be = [bench.group(f"{self.top}/{name}") for name in names]
        others = [bench.group(f"{self.top}/{other}")] if other else []
        self.ownership = Ownership()
        self.knobs = bench.knobs()
        self.actuator = BeActuator(be, (1, 0), LIMITS, self.knobs, ownership=self.ownership)
        sensors = group_sensors(self.lc, be)
        events = self.ownership.events
        lc, batch = (selects(ByCgroup(path=f"/{self.top}/{name}"), [], LAYOUT) for name in ("web*", selected))
        assert batch is not None
        self.claims = Claims(bench.state_dir)
        self.follower = Follower(
            bench.layout,
            self.knobs,
            GroupRoles(self.lc, [batch], lc, others),
            self.actuator,
            sensors,
            events,
            self.claims,
        )
        self.plans: list[Any] = []
        self.host = LiveHost(
            [Lc("web", SLO(0.01, max_load_rps=100.0), sensors)], self.actuator, tick_seconds, lambda: None,
            LiveParts(events=events, follow=self.follower.follow, replan=self.plans.append),
        )  # fmt: skip

    def tick(self, allocation: Allocation = HALF) -> Allocation:
        self.host.follow()
        self.telemetry = self.host.read()
        return self.host.apply(allocation)

    def make(self, name: str) -> Group:
        return self.bench.group(f"{self.top}/{name}")

    def kinds(self) -> list[str]:
        return [event.partition(":")[0] for event in self.host.events()]


def test_anothers_group_is_left_until_it_ends(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(bench, monkeypatch, "batch-1")
    with Claims(bench.state_dir.parent / "other") as other:
        other.take(run.make("batch-2"))
        run.tick()
        assert run.kinds() == ["group-refused"]
        assert f"{run.top}/batch-2" not in [group.name for group in run.actuator.groups]
    run.tick()
    assert run.kinds() == ["group-appeared"]
    run.claims.close()


def test_refused_group_is_told_once(fake: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(fake, monkeypatch, "batch-1")
    with Claims(fake.state_dir.parent / "other") as other:
        for number in range(2, 6):
            late = run.make(f"batch-{number}")
            other.take(late)
            for _ in range(4):  # each look is at another hierarchy
                run.tick()
            assert list(run.follower._refused) == [late.name]
            assert run.kinds() == ["group-refused"]
            late.remove()
        run.tick()
    assert run.follower._refused == {}
    assert run.kinds() == []


def test_refused_group_is_no_churn(fake: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlctl.envs.host.following.CHURN_GROUPS", 4)
    run = Run(fake, monkeypatch, "batch-1")
    with Claims(fake.state_dir.parent / "other") as other:
        other.take(run.make("batch-2"))
        for _ in range(24):
            run.tick()
    assert run.kinds() == ["group-refused"]


def test_endless_coming_and_going_is_told(fake: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 564 groups that BE moved through 1 was restricted in time, and nothing said so."""
    monkeypatch.setattr("rlctl.envs.host.following.CHURN_GROUPS", 4)
    run = Run(fake, monkeypatch, "batch-0")
    for number in range(1, 5):
        late = run.make(f"batch-{number}")
        for _ in range(4):  # each look is at another hierarchy
            run.tick()
        late.remove()
        run.tick()
    assert "be-churn" in run.kinds()


def quota_cpus(group: Group) -> float:
    assert group.cpu is not None
    return group.cpu.quota().cpus


def test_group_within_further_lc_is_not_bes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start refuses such an overlap; what came later was restricted, and the LC with it."""
    run = Run(bench, monkeypatch, "batch-1", selected="**/batch-*", other="database")
    inner = run.make("database/batch-2")
    for _ in range(3):  # each look is at another hierarchy
        run.tick()
    assert run.kinds() == ["group-refused"]
    assert [group.name for group in run.actuator.groups] == [f"{run.top}/batch-1"]
    assert quota_cpus(inner) > 1.0


def test_appearing_group_is_under_budget_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(bench, monkeypatch, "batch-1")
    run.tick()
    late = run.make("batch-2")
    run.make("other")
    assert run.tick() == HALF
    assert run.kinds() == ["group-appeared"]
    assert quota_cpus(late) == 0.25
    assert [group.name for group in run.actuator.groups] == [f"{run.top}/batch-1", f"{run.top}/batch-2"]
    (plan,) = run.plans
    assert set(late.knob_files("frozen")) <= set(plan.paths), "the watchdog knows of it"
    journalled = {entry.path for entry in bench.open_journal().entries}
    assert set(late.knob_files("quota", "cpus", "frozen")) <= journalled
    run.tick()
    assert run.kinds() == []
    assert isinstance(run.telemetry.be_cpus, Value)


@pytest.mark.slow
def test_look_at_many_groups_goes_on_later(fake: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(fake, monkeypatch, "batch-1")
    monkeypatch.setattr("rlctl.envs.host.following.GROUPS_AT_ONCE", 10)
    for number in range(100):
        run.make(f"other-{number}")
    late, ticks = run.make("batch-2"), 0
    while quota_cpus(late) > 1.0:
        run.tick()
        ticks += 1
        assert ticks < 100
    assert ticks > 5
    run.host.follow()
    assert [group.name for group in run.actuator.groups] == [f"{run.top}/batch-1", f"{run.top}/batch-2"]


def test_many_at_once_are_met_between_ticks(fake: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(fake, monkeypatch, "batch-0")
    monkeypatch.setattr("rlctl.envs.host.following.MOST_AT_ONCE", 2)
    late = [run.make(f"batch-{number}") for number in range(1, 11)]

    def met() -> int:
        return sum(group.freezer.is_ordered() for group in late)

    run.host._deadline = -math.inf
    for _ in range(2):
        run.host.follow()
    assert met() == 4, "some at each time, however late it is"
    assert len(run.plans) == 2, "and the watchdog knows them"
    run.host._deadline = math.inf
    run.host.follow()
    assert met() == 10
    run.tick()
    assert len(run.actuator.groups) == 11


def test_failure_between_ticks_is_next_ones(fake: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(fake, monkeypatch, "batch-1", tick_seconds=0.1)
    with monkeypatch.context() as failing:
        failing.setattr("rlctl.envs.host.following.walk", lambda *_: 1 / 0)
        run.host.wait()
    with pytest.raises(ZeroDivisionError):
        run.host.read()
    run.host.wait()
    run.host.read()


def test_who_appears_is_safe_before_it_has_share(fake: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(fake, monkeypatch, "batch-1")
    run.tick()
    late = run.make("batch-2")
    run.host.follow()
    assert late.freezer is not None
    assert late.freezer.is_ordered()
    assert quota_cpus(late) <= LIMITS.min_quota_cpus


def test_vanishing_group_is_told_and_returns(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(bench, monkeypatch, "batch-1", "batch-2")
    run.tick()
    run.actuator.groups[1].remove()
    run.tick()
    run.tick()
    assert run.kinds() == ["group-vanished"]
    assert quota_cpus(run.actuator.groups[0]) == 0.5
    again = run.make("batch-2")
    assert run.tick() == HALF
    assert run.kinds() == ["group-appeared"]
    assert quota_cpus(again) == 0.25
    assert bench.restore().ok
    assert quota_cpus(again) > 1.0


def test_be_may_be_without_group_for_while(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(bench, monkeypatch, "batch-1")
    run.tick()
    run.actuator.groups[0].remove()
    assert [run.tick() for _ in range(3)] == [LIMITS.safe] * 3
    assert run.kinds() == ["group-vanished", *["be-vanished"] * 3]
    run.host.set_weight(Weight.MINIMUM)  # as a reload does
    assert run.host.limits.least_weight
    run.make("batch-7")
    assert run.tick() == HALF
    assert run.kinds() == ["group-appeared"]


def test_lost_group_of_a_process_ends_the_run(fake: Bench) -> None:
    group = fake.group()
    actuator = BeActuator([group], (1, 0), LIMITS, fake.knobs())
    host = LiveHost([Lc("web", SLO(0.01, max_load_rps=1.0), [])], actuator, 1.0, lambda: None)
    group.remove()
    with pytest.raises(CgroupGone):
        host.apply(HALF)


def test_unjournalled_group_is_restricted_and_stored_later(
    fake: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(fake, monkeypatch, "batch-1")
    journal = fake.open_journal()
    with monkeypatch.context() as patched:
        patched.setattr("rlctl.envs.host.cgroup.journal.os.pwrite", read_only)
        late = run.make("batch-2")
        before = {path: fake.kernel.read(path) for path in late.knob_files("quota", "cpus", "frozen")}
        for _ in range(3):
            run.tick()
        assert run.kinds() == ["group-appeared"]
        assert quota_cpus(late) == 0.25
        assert {step.path.parent for step in run.plans[-1].stages[0]} >= {late.knob_files("frozen")[0].parent}
        assert sum("in memory only" in line for line in caplog.messages) == 1
        assert not any(entry.path.parent.name == "batch-2" for entry in load(fake.state_dir).entries)
    run.tick()
    assert not journal.unstored
    assert any(entry.path.parent.name == "batch-2" for entry in load(fake.state_dir).entries)
    assert fake.restore().ok
    assert {path: fake.kernel.read(path) for path in before} == before


def test_unstored_originals_come_back_at_a_stop(fake: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(fake, monkeypatch, "batch-1")
    late = run.make("batch-2")
    before = {path: fake.kernel.read(path) for path in late.knob_files("quota", "cpus", "frozen")}
    monkeypatch.setattr("rlctl.envs.host.cgroup.journal.os.pwrite", read_only)
    monkeypatch.setattr("rlctl.envs.host.cgroup.journal.os.replace", read_only)
    run.tick()
    assert {path: fake.kernel.read(path) for path in before} != before
    held = fake.open_journal().unstored
    report = restore(fake.state_dir, kernel=fake.kernel, proc=fake.proc, force=True, held=held)
    assert report.ok
    assert "Read-only file system): remove it" in report.note
    assert {path: fake.kernel.read(path) for path in before} == before


def read_only(*_: object) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


LOST = {
    CgroupController.CPU: (Allocation(0.5, 1), True),
    CgroupController.CPUSET: (Allocation(0.5, 1), True),
    CgroupController.FREEZER: (LIMITS.safe, False),
}


@pytest.mark.parametrize("fake", ["v1", "hybrid"], indirect=True)  # v2 has one hierarchy
@pytest.mark.parametrize("controller", LOST)
def test_group_lost_from_one_hierarchy_stays_restricted(
    fake: Bench, monkeypatch: pytest.MonkeyPatch, controller: CgroupController
) -> None:
    """As systemd does with a v1 controller that nobody asks for any more: the tasks move up, out of the quota."""
    run = Run(fake, monkeypatch, "batch-1")
    (group,) = run.actuator.groups
    before = {path: fake.kernel.read(path) for path in group.knob_files("quota", "cpus", "frozen")}
    run.tick(HALF)
    fake.kernel.remove_group(group.paths[controller])
    asked, frozen = LOST[controller]
    assert run.tick(asked) == (LIMITS.safe if frozen else asked.but(frozen=False))
    assert run.kinds() == ["group-reduced"]
    (rest,) = run.actuator.groups
    assert rest.freezer is None or rest.freezer.is_ordered() is frozen
    run.tick(LIMITS.full)
    assert rest.freezer is None or not rest.freezer.is_ordered(), "with all of the host nothing is missing"
    assert {path.parent for path in run.plans[-1].paths} <= set(rest.directories)
    fake.kernel.make_group(group.paths[controller])
    for _ in range(3):  # each look is at another hierarchy
        run.tick(HALF)
    (whole,) = run.actuator.groups
    assert set(whole.directories) == set(group.directories)
    assert fake.restore().ok
    assert {path: fake.kernel.read(path) for path in before if path.name != "cpuset.cpus"} == {
        path: before[path] for path in before if path.name != "cpuset.cpus"
    }, "a cpuset that was made anew has none"


def test_the_lcs_readings_return_with_its_group(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(bench, monkeypatch, "batch-1")
    run.tick()
    run.tick()
    assert isinstance(run.telemetry.lc_cpus, Value)
    run.lc.remove()
    run.tick()
    assert isinstance(run.telemetry.lc_cpus, Missing) or not bench.real, "plain files outlive their names"
    assert run.telemetry.lc_alive == Value(0.0)
    run.make("web")
    run.tick()
    run.tick()
    assert isinstance(run.telemetry.lc_cpus, Value)
    assert run.kinds() == ["lc-vanished", "lc-appeared"]


def test_lc_is_found_under_another_name(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(bench, monkeypatch, "batch-1")
    run.tick()
    run.lc.remove()
    fresh = run.make("web-2")
    fresh.attach(bench.task())
    run.tick()
    run.tick()
    assert isinstance(run.telemetry.lc_cpus, Value)
    assert run.telemetry.lc_alive == Value(1.0)
    assert run.kinds() == ["lc-vanished", "lc-appeared"]


def test_two_candidates_for_the_lc_are_none(fake: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(fake, monkeypatch, "batch-1")
    run.lc.remove()
    for name in ("web-2", "web-3"):
        run.make(name)
    run.tick()
    run.tick()
    assert run.kinds() == ["lc-vanished", "group-refused"]
    assert run.telemetry.lc_alive == Value(0.0)


@pytest.mark.slow
@pytest.mark.host
def test_groups_that_come_and_go_leave_nothing_open(real: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(real, monkeypatch, "batch-1")
    run.tick()

    def churn() -> int:
        for _ in range(5):
            late = run.make("batch-2")
            run.tick()
            late.remove()
            real.groups.remove(late)
            run.tick()
        return len(list(Path("/proc/self/fd").iterdir()))

    assert churn() == churn()
    assert set(run.kinds()) == {"group-appeared", "group-vanished"}


@pytest.mark.slow
def test_a_long_journal_forgets_groups_that_are_gone(fake: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlctl.envs.host.cgroup.journal.COMPACT_ENTRIES", 30)
    run = Run(fake, monkeypatch, "batch-1")
    for number in range(2, 30):
        late = run.make(f"batch-{number}")
        run.tick()
        late.remove()
        run.tick()
    recorded = load(fake.state_dir)
    assert len(recorded.entries) < 40
    assert recorded.entries == tuple(fake.open_journal().entries)
    assert any(entry.path.parent.name == "batch-1" for entry in recorded.entries)
    assert quota_cpus(run.actuator.groups[0]) == 0.5
    first = run.actuator.groups[0]
    assert fake.restore().ok
    assert quota_cpus(first) > 1.0


@pytest.mark.slow
def test_months_of_containers_fill_nothing(fake: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("journal", "knobs"):
        monkeypatch.setattr(f"rlctl.envs.host.cgroup.{module}.COMPACT_ENTRIES", 10)
    pod, knobs = fake.group(), fake.knobs()
    be = BeActuator([pod], (1, 0), LIMITS, knobs)
    for number in range(30):
        container = fake.group(f"{pod.name}/c{number}")
        be.apply(Allocation(0.5, 1 + number % 2))
        container.remove()
    assert len(load(fake.state_dir).entries) <= 25
    assert len(knobs._originals) <= 25
    assert fake.restore().ok
    assert quota_cpus(pod) > 1.0
    assert pod.cpuset.effective() == {0, 1}


def test_unlimited_container_is_not_written(fake: Bench) -> None:
    pod = fake.group()
    container = fake.group(f"{pod.name}/c")
    be = BeActuator([pod], (1, 0), LIMITS, fake.knobs())
    fake.fake.writes.clear()
    for quota_cpus in (0.5, 1.5, 0.2):
        be.apply(Allocation(quota_cpus, 2))
    assert not [path for path, _ in fake.fake.writes if path.parent in container.directories]
    assert not [entry for entry in load(fake.state_dir).entries if entry.path.parent in container.directories]


def test_journal_on_full_disk_is_not_shortened(fake: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlctl.envs.host.cgroup.journal.COMPACT_ENTRIES", 1)
    group = fake.group()
    BeActuator([group], (1, 0), LIMITS, fake.knobs())
    before = load(fake.state_dir)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("rlctl.envs.host.cgroup.journal.os.fsync", full)
    fake.open_journal().compact([])
    assert load(fake.state_dir) == before
    assert COMPACT_ENTRIES > 1


def test_only_the_outermost_matches_are_found(real_tree: Path) -> None:
    for name in ("a/batch/inner/batch", "batch", "b/c/batch", "b/other"):
        (real_tree / name).mkdir(parents=True)
    found = dict(outermost(real_tree, lambda path: path.endswith("/batch")))
    assert found.keys() == {"/a/batch", "/batch", "/b/c/batch"}
    assert found["/batch"] == (real_tree / "batch").stat().st_ino
    assert dict(outermost(real_tree / "absent", lambda _: True)) == {}


@pytest.fixture
def real_tree(tmp_path: Path) -> Path:
    return tmp_path / "tree"


def test_what_no_path_tells_is_not_followed() -> None:
    assert selects(ByPid(pid=2), ["x"], LAYOUT) is None
    container = selects(ByContainer(name="web"), ["docker/0123"], LAYOUT)
    assert container is not None
    assert container("/docker/0123")
    assert not container("/docker/4567")


def test_remade_container_is_found_by_new_id() -> None:
    """`docker compose up --force-recreate`: BE would run on, held to nothing."""
    now, asked = [0.0], list[float]()

    def find() -> tuple[str, ...]:
        asked.append(now[0])
        if len(asked) < 2:
            raise HostError("no runtime knows it")
        return ("docker/4567",)

    container = ContainerPaths(["docker/0123"], find, clock=lambda: now[0])

    def seen(second: float, *paths: str) -> list[bool]:
        now[0] = second
        found = [container(path) for path in paths]
        if container._search:
            container._search.join()
        return found

    assert seen(3.0, "/docker/0123", "/other") == [True, False]
    assert seen(6.9, "/other") == [False]
    assert asked == []
    assert seen(7.1, "/other", "/docker/4567") == [False, False]
    assert seen(9.0, "/docker/4567") == [False]
    assert seen(18.0, "/other") == [False]
    assert seen(19.0, "/docker/4567") == [True]
    assert asked == [7.1, 18.0]
    slow = ContainerPaths(["docker/0123"], find, 60.0, clock=lambda: now[0])
    now[0] += 200.0
    assert not slow("/other")
    assert slow._search is None, "a look is only once a tick"


def test_sensors_without_files_stay_as_they_are(fake: Bench) -> None:
    lc, be = fake.group(), fake.group()
    sensors = group_sensors(lc, [be])
    follow_groups(sensors, lc, [])
    follow_groups(sensors, lc, [be])
    readings = [sensor.read(3.0) for sensor in sensors]
    assert readings
    for sensor in sensors:
        sensor.close()


def test_one_file_of_removed_group_closes_them_all(tmp_path: Path) -> None:
    kernel = KernelFiles()
    folder = tmp_path / "group"
    folder.mkdir()
    for name in ("cpu.max", "cpu.weight"):
        (folder / name).write_text("1")
        kernel.read(folder / name)
    assert len(kernel._open_files) == 2
    with pytest.raises(FileNotFoundError):
        kernel.read(folder / "cgroup.procs")
    assert not kernel._open_files
