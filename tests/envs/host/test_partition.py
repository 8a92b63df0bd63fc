"""Partitions: what a wrong move would cost is a process of the whole host in the wrong group for good."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rlctl.envs.applications import CpuCluster
from rlctl.envs.errors import CgroupBusy, CgroupGone, CgroupRejected, ConfigError, HostError
from rlctl.envs.host.cgroup.journal import JOURNAL, StateLock
from rlctl.envs.host.cgroup.kernel import Kernel
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.partition import moving
from rlctl.envs.host.partition.apply import Applied, Wish, apply, plan
from rlctl.envs.host.partition.moving import REAL_TIME_LEFT, Choice
from rlctl.envs.host.partition.platform import Platform, load_platform
from rlctl.envs.host.partition.record import FOLDER, Stage, Undone, read_record, undo
from rlctl.envs.host.partition.view import rows, tasks_outside
from rlctl.serve.workloads import lacking_partitions
from tests.doubles.cgroup_kernel import FakeKernel
from tests.doubles.meddling import Meddling

MB = 1 << 20
KTHREAD, BOUND = 0x0020_0000, 0x0400_0000
HALF = CpuCluster("half", frozenset({1}), 0.5, frozenset({0}), 64 * MB)
TWO = Platform(frozenset({0}), frozenset({1}), (HALF,))


@dataclass
class Machine:
    """A fake kernel with tasks, as /proc would tell of them."""

    folder: Path
    kind: str
    cpus: int = 2
    memory_nodes: int = 1
    fake: FakeKernel = field(init=False)
    starts: Iterator[int] = field(default_factory=lambda: itertools.count(100))

    def __post_init__(self) -> None:
        self.fake = FakeKernel(self.folder, self.kind, self.cpus, self.memory_nodes)
        self.layout = Layout.detect(self.fake.root, self.fake.proc)
        self.state = self.folder / "state"
        if self.kind == "v2":  # as systemd has it
            self.fake.write(self.fake.root / "cgroup.subtree_control", "+cpu +cpuset +memory")

    def roots(self) -> list[Path]:
        return sorted({mount.path for mount in self.layout.mounts.values()})

    def task(self, tid: int, name: str = "sh", *, group: str = "", **more: int) -> None:
        """A task in a group of every hierarchy."""
        self.tell(tid, name, **more)
        for root in self.roots():
            for folder in (root / group, *(root / group).parents):
                if folder.is_relative_to(root) and not folder.is_dir():
                    self.fake.make_group(folder)
                    self.open_cpuset(folder)
            self.fake.write(root / group / "cgroup.procs", str(tid))

    def open_cpuset(self, group: Path) -> None:
        if (group / "cpuset.effective_cpus").exists():
            self.fake.write(group / "cpuset.cpus", f"0-{self.cpus - 1}")
            self.fake.write(group / "cpuset.mems", "0")

    def tell(self, tid: int, name: str, *, parent: int = 1, flags: int = 0, policy: int = 0) -> None:
        fields = [
            "S",
            str(parent),
            *["0"] * 4,
            str(flags),
            *["0"] * 12,
            str(next(self.starts)),
            *["0"] * 18,
            str(policy),
        ]
        folder = self.fake.proc / str(tid)
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_text(f"{tid} ({name}) {' '.join(fields)} 0 0\n")
        (folder / "status").write_text(f"Name:\t{name}\nTgid:\t{tid}\nCpus_allowed_list:\t0-{self.cpus - 1}\n")

    def where(self, tid: int) -> dict[str, str]:
        """Its group by hierarchy."""
        found = {}
        for root in self.roots():
            for listing in root.rglob("cgroup.procs"):
                if str(tid) in listing.read_text().split() and not self.inside_other(root, listing):
                    found[root.name] = str(listing.parent.relative_to(root))
        return found

    def inside_other(self, root: Path, listing: Path) -> bool:
        return any(
            other != root and other.is_relative_to(root) and listing.is_relative_to(other) for other in self.roots()
        )

    def snapshot(self) -> dict[Path, list[str]]:
        """Every file; lists of tasks have no order."""
        files = (path for path in self.fake.root.rglob("*") if path.is_file() and path.name != ".identities")
        return {path: sorted(path.read_text().split("\n")) for path in files}

    def apply(self, platform: Platform = TWO, wish: Wish | None = None, kernel: Kernel | None = None) -> Applied:
        return apply(platform, self.state, wish, layout=self.layout, kernel=kernel or self.fake, proc=self.fake.proc)

    def undo(self, kernel: Kernel | None = None) -> Undone:
        return undo(self.state, kernel=kernel or self.fake, proc=self.fake.proc, patience_seconds=0.0)

    def read(self, controller: str, group: str, name: str) -> str:
        root = self.fake.root if self.kind == "v2" else self.fake.root / controller
        return (root / group / name).read_text().strip()


@pytest.fixture(params=["v1", "v2", pytest.param("hybrid", marks=pytest.mark.slow)])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """In memory where that is possible: every step waits for a disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield peopled(Machine(Path(folder), request.param))


def peopled(made: Machine) -> Machine:
    for tid, name in ((1, "init"), (10, "sshd"), (11, "cron (x) y")):
        made.task(tid, name)
    made.task(2, "kthreadd", flags=KTHREAD)
    made.task(3, "ksoftirqd/0", flags=KTHREAD | BOUND)
    made.task(20, "postgres", group="db")
    return made


def test_movable_tasks_are_in_the_host(machine: Machine) -> None:
    machine.apply()
    assert machine.read("cpuset", "rlctl-host", "cpuset.cpus") == "0"
    for group in ("rlctl-mdev", "rlctl-mdev/half"):
        assert machine.read("cpuset", group, "cpuset.cpus") == "1"
    assert machine.read("cpuset", "rlctl-mdev/half", "cpuset.mems") == "0"
    if machine.kind == "v2":
        assert machine.read("", "rlctl-mdev/half", "cpu.max") == "5000 10000"
        assert machine.read("", "rlctl-mdev/half", "memory.max") == str(64 * MB)
    else:
        assert machine.read("cpu", "rlctl-mdev/half", "cpu.cfs_quota_us") == "5000"
        assert machine.read("memory", "rlctl-mdev/half", "memory.limit_in_bytes") == str(64 * MB)
        assert not (machine.fake.root / "memory/rlctl-host").exists(), "the memory hierarchy is not the host's business"
    for tid in (1, 10, 11):
        assert {group for name, group in machine.where(tid).items() if name in ("cpu", "cpuset", "cgroup")} == {
            "rlctl-host"
        }


def test_who_stays_is_told_with_the_reason(machine: Machine) -> None:
    done = machine.apply()
    reasons = {one.tid: one.why for one in done.left}
    assert reasons == {2: "kernel thread; --kernel-threads takes it along", 3: "kernel thread, bound to its CPUs"}
    assert set(machine.where(20).values()) == {"db"}, "another program's group is left alone"
    recorded = read_record(machine.state, machine.fake.proc)
    assert recorded is not None
    left, groups = tasks_outside(recorded.mounts, machine.layout, machine.fake, Choice(), machine.fake.proc)
    assert {one.tid for one in left} == {2, 3}
    assert {(group.name, count) for group, count in groups} == {("db", 1)}


def test_undo_leaves_no_trace(machine: Machine) -> None:
    before = machine.snapshot()
    machine.apply()
    assert machine.snapshot() != before
    undone = machine.undo()
    assert undone.ok, undone.failed
    assert machine.snapshot() == before
    assert read_record(machine.state, machine.fake.proc) is None
    assert "no partition" in machine.undo().note, "a second time there is nothing to do"


def test_controllers_that_others_share_meanwhile_stay(tmp_path: Path) -> None:
    """Once they were switched off: others' limits vanished, or the kernel refused it for good as `db` shared them."""
    machine = peopled(Machine(tmp_path, "v2"))
    machine.fake.write(machine.fake.root / "cgroup.subtree_control", "-cpu -cpuset -memory")
    machine.apply()
    machine.fake.write(machine.fake.root / "db/cpu.max", "50000 100000")
    machine.fake.write(machine.fake.root / "db/cgroup.subtree_control", "+cpu")
    undone = machine.undo()
    assert undone.ok, undone.failed
    assert machine.read("", "db", "cpu.max") == "50000 100000"


def test_it_is_built_again_after_undo(machine: Machine) -> None:
    machine.apply()
    machine.undo()
    machine.apply()
    assert machine.where(10)["cpuset" if machine.kind != "v2" else "cgroup"] == "rlctl-host"


def test_a_plan_tells_the_same_and_changes_nothing(machine: Machine) -> None:
    before = machine.snapshot()
    planned = plan(TWO, Wish(), layout=machine.layout, kernel=machine.fake, proc=machine.fake.proc)
    assert machine.snapshot() == before
    assert not machine.state.exists()
    done = machine.apply()
    assert (sorted(planned.made), planned.moved) == (sorted(done.made), done.moved)
    assert planned.left == done.left


def test_plan_refuses_what_apply_refuses(tmp_path: Path) -> None:
    machine = peopled(Machine(tmp_path, "v2"))
    within, wish = (
        Platform(frozenset({0}), frozenset({1}), (HALF,), within="db"),
        Wish(choice=Choice(frozenset({"20"}))),
    )
    (machine.fake.root / "db/cgroup.type").write_text("domain\n")
    with pytest.raises(CgroupBusy, match="all tasks of a divided group have to go: 20: left by your --leave"):
        plan(within, wish, layout=machine.layout, kernel=machine.fake, proc=machine.fake.proc)
    with pytest.raises(CgroupBusy, match="all tasks of a divided group have to go: 20: left by your --leave"):
        machine.apply(within, wish)


def test_rows_show_what_stands(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.apply()
    (machine.folder / "memory.max").write_text("4096\n")
    monkeypatch.chdir(machine.folder)
    recorded = read_record(machine.state, machine.fake.proc)
    assert recorded is not None
    host, mdev, half = rows(recorded.plan, machine.layout, machine.fake)
    assert (host.group, host.cpus, host.processes) == ("rlctl-host", "0", 3)
    assert host.memory_bytes is None, "not what stands in the current directory, where it has no part in v1's memory"
    assert (mdev.group, mdev.cpus, mdev.quota_cpus, mdev.memory_bytes) == ("rlctl-mdev", "1", float("inf"), None)
    assert (half.group, half.quota_cpus, half.memory_bytes, half.exclusive) == ("rlctl-mdev/half", 0.5, 64 * MB, False)


def test_whoever_places_work_can_ask(machine: Machine) -> None:
    knobs = Knobs(None, machine.fake)
    assert lacking_partitions(TWO, machine.layout, knobs)
    assert "`rlctl partition apply` makes the groups" in lacking_partitions(TWO, machine.layout, knobs)
    machine.apply()
    assert not lacking_partitions(TWO, machine.layout, knobs)
    wide = Platform(TWO.host_cpus, TWO.mdev_cpus | {2}, TWO.clusters)
    assert not lacking_partitions(wide, machine.layout, knobs), "its controller leaves BE fewer just now"
    other = Platform(frozenset({1}), frozenset({0}), (CpuCluster("half", frozenset({0}), 1.0),))
    assert "other CPUs than the platform says" in lacking_partitions(other, machine.layout, knobs)


def test_the_papers_machine_from_its_description(tmp_path: Path) -> None:
    """Tables II and III as control groups, on a captured tree of such a machine."""
    captured = (Path(__file__).parents[2] / "fixtures/platform/opteron-8378.txt").read_text()
    for line in captured.splitlines():
        name, _, content = line.partition(":")
        (tmp_path / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys" / name).write_text(content + "\n")
    machine = Machine(tmp_path / "host", "v1", cpus=16, memory_nodes=4)
    machine.task(10)
    before = machine.snapshot()
    machine.apply(load_platform("barbeque-opteron", sys=tmp_path / "sys"))
    table = {
        group: (machine.read("cpuset", group, "cpuset.cpus"), machine.read("cpuset", group, "cpuset.mems"))
        for group in ("rlctl-host", "rlctl-mdev", "rlctl-mdev/node1", "rlctl-mdev/node2", "rlctl-mdev/node3")
    }
    assert table == {
        "rlctl-host": ("0,4,8,12", "0"),
        "rlctl-mdev": ("1-3,5-7,9-11,13-15", "1-3"),
        "rlctl-mdev/node1": ("1,5,9,13", "3"),
        "rlctl-mdev/node2": ("2,6,10,14", "2"),
        "rlctl-mdev/node3": ("3,7,11,15", "1"),
    }
    assert machine.read("memory", "rlctl-mdev/node3", "memory.limit_in_bytes") == str(6000 * MB)
    assert machine.read("cpu", "rlctl-mdev/node1", "cpu.cfs_quota_us") == "-1", "100 percent of each CPU is no limit"
    machine.undo()
    assert machine.snapshot() == before


def test_tasks_that_are_forked_meanwhile_are_moved_too(machine: Machine) -> None:
    forks = iter(range(100, 105))

    def fork(_change: int, path: Path, text: str) -> None:
        if path.parent.name == "rlctl-host" and (child := next(forks, None)) is not None:
            machine.task(child, "child", parent=int(text) if text.isdigit() else 1)

    before = set(machine.where(10).values())
    machine.apply(kernel=Meddling(machine.fake, fork))
    hierarchy = "cgroup" if machine.kind == "v2" else "cpuset"
    assert [machine.where(child)[hierarchy] for child in range(100, 105)] == ["rlctl-host"] * 5
    machine.undo()
    assert set(machine.where(104).values()) == before


def test_fast_forks_end_the_attempt(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "MOST_ROUNDS", 5)
    numbers = itertools.count(1000)

    def fork(_change: int, path: Path, text: str) -> None:
        if path.parent.name == "rlctl-host" and text.isdigit():
            machine.task(next(numbers))

    with pytest.raises(HostError, match="tasks appear faster than they can be moved"):
        machine.apply(kernel=Meddling(machine.fake, fork))
    assert not list(machine.fake.root.rglob("rlctl-*"))


def test_children_go_where_their_parent_came_from(machine: Machine) -> None:
    machine.apply(wish=Wish(take=("db",)))
    hierarchy = "cgroup" if machine.kind == "v2" else "cpuset"
    assert machine.where(20)[hierarchy] == "rlctl-host/db"
    for tid in (21, 22, 23):
        machine.tell(tid, "child", parent=20)
    for root in machine.roots():  # a child begins in its parent's group
        for group, tid in (("rlctl-host/db", 21), ("rlctl-mdev/half", 22), ("rlctl-host", 23)):
            if (root / group).is_dir():
                machine.fake.write(root / group / "cgroup.procs", str(tid))
    assert machine.undo().ok
    assert [machine.where(tid)[hierarchy] for tid in (20, 21, 22, 23)] == ["db", "db", ".", "."]


def test_all_groups_can_be_taken(machine: Machine) -> None:
    before = machine.snapshot()
    machine.task(40, group="db/replica")
    machine.apply(wish=Wish(take=("/",)))
    hierarchy = "cgroup" if machine.kind == "v2" else "cpuset"
    found = [machine.where(tid)[hierarchy] for tid in (10, 20, 40)]
    assert found == ["rlctl-host", "rlctl-host/db", "rlctl-host/db/replica"]
    assert machine.undo().ok
    assert [machine.where(tid)[hierarchy] for tid in (10, 20, 40)] == [".", "db", "db/replica"]
    assert before.items() <= machine.snapshot().items()


def test_task_whose_group_is_gone_goes_to_root(machine: Machine) -> None:
    machine.apply(wish=Wish(take=("db",)))
    for root in machine.roots():
        for listing in ("cgroup.procs", "tasks"):
            if (root / "db" / listing).exists():
                (root / "db" / listing).write_text("\n")
        machine.fake.remove_group(root / "db")
    assert machine.undo().ok
    assert machine.where(20)["cgroup" if machine.kind == "v2" else "cpuset"] == "."


@pytest.mark.parametrize("said", ["10", "sshd"])
def test_a_process_can_be_left_alone(machine: Machine, said: str) -> None:
    done = machine.apply(wish=Wish(choice=Choice(leave=frozenset({said}))))
    assert set(machine.where(10).values()) == {"."}
    assert "left by your --leave" in {one.why for one in done.left if one.tid == 10}


def test_kernel_threads_are_taken_when_asked(machine: Machine) -> None:
    done = machine.apply(wish=Wish(choice=Choice(kernel_threads=True)))
    assert machine.where(2)["cgroup" if machine.kind == "v2" else "cpuset"] == "rlctl-host"
    assert {one.tid for one in done.left} == {3}


def test_real_time_task_stays_in_v1_cpu(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "v1")
    machine.task(30, "watchdog", policy=os.SCHED_FIFO)

    def refuse(_change: int, path: Path, text: str) -> None:
        if path.parent == machine.fake.root / "cpu/rlctl-host" and text == "30":
            raise OSError(errno.EINVAL, "Invalid argument")

    done = machine.apply(kernel=Meddling(machine.fake, refuse))
    assert [(one.tid, one.group.name, one.why) for one in done.left] == [(30, "cpu", REAL_TIME_LEFT)]
    assert (machine.where(30)["cpu"], machine.where(30)["cpuset"]) == (".", "rlctl-host")


def test_exclusive_keeps_others_off(machine: Machine) -> None:
    for root in machine.roots():
        if (root / "db/cpuset.cpus").exists():
            machine.fake.write(root / "db/cpuset.cpus", "0")
    machine.apply(wish=Wish(exclusive=True))
    name, wanted = ("cpuset.cpus.partition", "root") if machine.kind == "v2" else ("cpuset.cpu_exclusive", "1")
    assert machine.read("cpuset", "rlctl-mdev", name) == wanted
    assert machine.undo().ok


def test_exclusive_names_who_is_in_the_way(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "v1")
    machine.task(20, group="db")
    before = machine.snapshot()
    with pytest.raises(CgroupRejected, match=r"cannot be exclusive \(db has some of them\).*EINVAL"):
        machine.apply(wish=Wish(exclusive=True))
    assert machine.snapshot() == before
    assert read_record(machine.state, machine.fake.proc) is None


def test_running_controller_is_in_way_of_both(machine: Machine) -> None:
    machine.state.mkdir()
    serving = StateLock(machine.state)
    before = machine.snapshot()
    with pytest.raises(HostError, match=f"in use by a running rlctl .pid {os.getpid()}.: stop it first"):
        machine.apply()
    assert machine.snapshot() == before
    serving.close()
    machine.apply()
    serving = StateLock(machine.state)  # a partition that stands is no hindrance to serving in it
    with pytest.raises(HostError, match="in use by a running rlctl"):
        machine.undo()
    serving.close()
    assert machine.undo().ok


def test_a_second_one_is_refused(machine: Machine) -> None:
    machine.apply()
    with pytest.raises(CgroupBusy, match="stands already, or was left half built: `rlctl partition undo`"):
        machine.apply()
    with pytest.raises(CgroupBusy, match="exists already, from another --state"):
        apply(TWO, machine.folder / "other", layout=machine.layout, kernel=machine.fake, proc=machine.fake.proc)


def test_absent_group_cannot_be_divided_or_taken(machine: Machine) -> None:
    with pytest.raises(CgroupGone, match="no such group to make the partitions in"):
        machine.apply(Platform(frozenset({0}), frozenset({1}), (HALF,), within="absent"))
    with pytest.raises(CgroupGone, match="--take absent: no such group"):
        machine.apply(wish=Wish(take=("absent",)))
    with pytest.raises(ConfigError, match="names no control group"):
        machine.apply(wish=Wish(take=("../../etc",)))
    assert read_record(machine.state, machine.fake.proc) is None


def test_a_group_of_its_own_can_be_divided(machine: Machine) -> None:
    """As a container or a delegated user has one: nothing outside of it is touched."""
    outside = machine.where(10)
    machine.apply(Platform(frozenset({0}), frozenset({1}), (HALF,), within="db"))
    hierarchy = "cgroup" if machine.kind == "v2" else "cpuset"
    assert (machine.where(20)[hierarchy], machine.where(10)) == ("db/rlctl-host", outside)
    assert machine.undo().ok
    assert set(machine.where(20).values()) == {"db"}


def test_full_disk_before_any_step_leaves_nothing_behind(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    before, real, told = machine.snapshot(), os.fdatasync, set()
    for step in itertools.count(1):
        calls = itertools.count(1)

        def full(file: int, step: int = step, calls: Iterator[int] = calls) -> None:
            if next(calls) == step:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(file)

        monkeypatch.setattr(os, "fdatasync", full)
        try:
            machine.apply()
            break
        except HostError as error:
            told.add("No space left on device" in str(error))
        assert machine.snapshot() == before
        assert read_record(machine.state, machine.fake.proc) is None
    assert step > 5
    assert told == {True}
    monkeypatch.undo()
    assert machine.undo().ok


def test_an_earlier_boots_partition_is_gone_with_it(machine: Machine) -> None:
    machine.apply()
    (machine.fake.proc / "sys/kernel/random/boot_id").write_text("another\n")
    undone = machine.undo()
    assert undone.ok
    assert "of an earlier boot" in undone.note
    assert read_record(machine.state, machine.fake.proc) is None


def test_after_reboot_another_can_be_made_at_once(machine: Machine) -> None:
    machine.apply()
    journal = (machine.state / FOLDER / JOURNAL).read_bytes()
    assert machine.undo().ok  # as the reboot did, but for the journal
    (machine.state / FOLDER / JOURNAL).write_bytes(journal)
    (machine.fake.proc / "sys/kernel/random/boot_id").write_text("another\n")
    machine.apply()
    assert machine.undo().moved


def test_threaded_and_ended_groups_are_passed_over(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.task(40, "vcpu", group="db/threaded")
    machine.task(41, "job", group="db/short")
    read, gone = type(machine.fake).read, set()

    def odd(self: FakeKernel, path: Path) -> str:
        if path.parent.name == "threaded" and path.name in ("cgroup.procs", "tasks"):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        if path.parent.name == "short" and path.name in ("cgroup.procs", "tasks"):
            gone.add(path.parent)
            shutil.rmtree(path.parent, ignore_errors=True)
        return read(self, path)

    monkeypatch.setattr(type(machine.fake), "read", odd)
    done = machine.apply(wish=Wish(take=("db",)))
    assert gone
    assert not any("threaded" in str(group) for group in done.moved)
    assert machine.undo().ok


def test_a_damaged_line_is_told(machine: Machine) -> None:
    machine.apply()
    file = machine.state / "partition/journal.jsonl"
    lines = file.read_text().splitlines()
    place = next(number for number, line in enumerate(lines) if "rlctl-mdev/half" in line)
    lines[place] = lines[place].replace("half", "calf")
    file.write_text("\n".join(lines) + "\n")
    undone = machine.undo()
    assert [problem for problem in undone.failed if "is damaged: a group may be left" in problem]
    assert not list(machine.fake.root.rglob("rlctl-*"))
    assert file.exists()
    assert str(file) in undone.note


def test_a_damaged_plan_touches_nothing(machine: Machine) -> None:
    machine.apply()
    file = machine.state / "partition/journal.jsonl"
    file.write_text(file.read_text().replace("host_cpus", "host_cpux", 1))
    before = machine.snapshot()
    with pytest.raises(HostError, match="its plan is damaged"):
        machine.undo()
    assert machine.snapshot() == before


def test_somebody_elses_group_of_our_name_stays(machine: Machine) -> None:
    machine.apply()
    cpuset = next(mount.path for name, mount in machine.layout.mounts.items() if name == "cpuset")
    for listing in ("cgroup.procs", "tasks"):
        if (cpuset / "rlctl-host" / listing).exists():
            (cpuset / "rlctl-host" / listing).write_text("\n")
    machine.fake.remove_group(cpuset / "rlctl-host")
    machine.fake.make_group(cpuset / "rlctl-host")
    assert machine.undo().ok
    assert (cpuset / "rlctl-host").is_dir()


def test_unemptied_group_is_told_and_tried_again(machine: Machine) -> None:
    before = machine.snapshot()
    machine.apply()

    def refuse(_change: int, path: Path, text: str) -> None:
        if text == "10":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    undone = machine.undo(Meddling(machine.fake, refuse))
    assert not undone.ok
    assert "move 10 back" in undone.failed[0]
    recorded = read_record(machine.state, machine.fake.proc)
    assert recorded is not None
    assert recorded.stage is Stage.UNDOING
    assert machine.undo().ok
    assert machine.snapshot() == before


class Killed(BaseException):
    """Stands for SIGKILL: nobody handles it."""


def killed_at(step: int) -> Callable[[int, Path, str], None]:
    def kill(change: int, _path: Path, _text: str) -> None:
        if change == step:
            raise Killed

    return kill


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_before_any_step_everything_comes_back(machine: Machine, stride: int) -> None:
    before = machine.snapshot()
    for step in itertools.count(1, stride):
        try:
            machine.apply(wish=Wish(take=("db",)), kernel=Meddling(machine.fake, killed_at(step)))
            break
        except Killed:
            recorded = read_record(machine.state, machine.fake.proc)
            assert recorded is not None
            assert recorded.stage is Stage.BUILDING
            assert machine.undo().ok
            assert machine.snapshot() == before, step
    assert step > 18  # killed at as many steps, 49 of v1


@pytest.mark.slow
def test_killed_with_a_torn_line_everything_comes_back(machine: Machine) -> None:
    """The power goes while a line is written: its act has not been begun."""
    before, file, torn = machine.snapshot(), machine.state / "partition/journal.jsonl", 0
    for step in itertools.count(1):
        try:
            machine.apply(kernel=Meddling(machine.fake, killed_at(step)))
            break
        except Killed:
            whole = file.read_bytes()
            end = whole.rfind(b"\n") + 1  # behind it is what the journal has reserved
            last = whole.rfind(b"\n", 0, end - 1) + 1
            line = json.loads(whole[last:end])
            if line.get("original") == "" and line["identity"] != [0, 0]:  # a group is made, and known by now
                file.write_bytes(whole[: (last + end) // 2])
                torn += 1
            assert machine.undo().ok
            assert machine.snapshot() == before, step
    assert torn > 2


@pytest.mark.slow
def test_killed_undo_is_ended_by_a_second(machine: Machine) -> None:
    before = machine.snapshot()
    for step in itertools.count(1):
        machine.apply()
        try:
            machine.undo(Meddling(machine.fake, killed_at(step)))
            break
        except Killed:
            assert machine.undo().ok
            assert machine.snapshot() == before, step
    assert step > 7


def test_an_interrupt_takes_back_what_was_done(machine: Machine) -> None:
    before = machine.snapshot()

    def interrupt(change: int, _path: Path, _text: str) -> None:
        if change == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        machine.apply(kernel=Meddling(machine.fake, interrupt))
    assert machine.snapshot() == before


def test_reader_who_leaves_costs_only_words(machine: Machine) -> None:
    before = machine.snapshot()

    def gone(_: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        apply(TWO, machine.state, layout=machine.layout, kernel=machine.fake, proc=machine.fake.proc, say=gone)
    assert machine.snapshot() == before


def test_signal_amid_taking_back_waits_for_its_end(machine: Machine) -> None:
    before, handler = machine.snapshot(), signal.signal(signal.SIGTERM, signal.default_int_handler)

    def fail(change: int, path: Path, _text: str) -> None:
        if change == 12:
            raise HostError("no more")
        if change > 12 and path.name == "rlctl-host":  # which is about to be removed
            signal.raise_signal(signal.SIGTERM)

    try:
        with pytest.raises(KeyboardInterrupt):
            machine.apply(kernel=Meddling(machine.fake, fail))
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert machine.snapshot() == before
