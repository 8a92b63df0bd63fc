"""What another program writes: noticed, named, never obeyed where it frees BE, not fought over where it restricts."""

from __future__ import annotations

import errno
import logging
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.ownership import Foreign, Ownership, Witness, suspect
from rlctl.envs.host.cgroup.settings import tighter
from rlctl.envs.host.cgroup.values import Quota
from rlctl.envs.workload import Weight

Bench = Any
LIMITS = Limits(cpus=2)
HALF = Allocation(0.5, 2)


class Contest:
    """A BE group, its actuator, and another program that writes the same files."""

    def __init__(
        self, bench: Bench, foreign: Foreign, most_backoff_ticks: int = 8, knobs: Knobs | None = None, **more: Any
    ) -> None:
        self.ownership = Ownership(foreign, most_backoff_ticks, **more)
        self.group = bench.group()
        knobs = knobs or bench.knobs()
        self.be = BeActuator([self.group], (1, 0), LIMITS, knobs, ownership=self.ownership, settle_seconds=5.0)
        self.other = Group.open(bench.layout, self.group.name, Knobs(None, bench.kernel))

    def events(self) -> tuple[str, ...]:
        return self.ownership.events.drain()

    def foreign_writes(self) -> int:
        return sum(event.startswith("foreign-write: ") for event in self.events())

    def ticks(self, allocation: Allocation, number: int) -> list[Allocation]:
        return [self.be.apply(allocation) for _ in range(number)]


@pytest.mark.parametrize("foreign", Foreign)
def test_freer_value_is_corrected_at_once(bench: Bench, foreign: Foreign) -> None:
    contest = Contest(bench, foreign)
    frozen = HALF.but(cpuset_cpus=1, frozen=True)
    contest.be.apply(frozen)
    for _ in range(12):
        contest.other.cpu.set_quota(Quota(None))
        contest.other.cpuset.set_cpus({0, 1})
        contest.other.freezer.order(False)
        assert contest.be.apply(frozen) == frozen
    assert contest.foreign_writes() == 36


def test_allowed_burst_is_ended_at_once(bench: Bench) -> None:
    contest = Contest(bench, Foreign.YIELD)
    if not (names := [file for file in contest.group.cpu.quota_files if "burst" in file.name]):
        pytest.skip("this kernel has no burst")
    contest.be.apply(HALF)
    for _ in range(3):
        bench.kernel.write(names[0], "1000")
        assert contest.be.apply(HALF) == HALF
        assert contest.other.cpu.burst_us() == 0
    events = contest.events()
    assert len(events) == 3
    assert "quota 0.5 CPU -> 0.5 CPU and a burst of 1000 us" in events[0]


def test_tighter_values_are_overwritten_ever_more_seldom(fake: Bench) -> None:
    contest = Contest(fake, Foreign.REASSERT)
    contest.be.apply(HALF)
    respected = []
    for _ in range(6):
        contest.other.cpu.set_quota(Quota(1_000, 10_000))
        ticks = 0
        while contest.be.apply(HALF) != HALF:
            assert contest.be.read().quota_cpus == pytest.approx(0.1)
            ticks += 1
        respected.append(ticks)
    assert respected == [0, 2, 4, 8, 8, 8]
    contest.ticks(HALF, 17)  # twice the longest back-off, and quiet
    contest.other.cpu.set_quota(Quota(1_000, 10_000))
    assert contest.be.apply(HALF) == HALF


@pytest.mark.parametrize("foreign", [Foreign.YIELD, Foreign.ALARM])
def test_yielding_takes_meet_until_other_program_lets_go(bench: Bench, foreign: Foreign) -> None:
    contest = Contest(bench, foreign)
    contest.be.apply(HALF)
    contest.other.cpu.set_quota(Quota(2_000, 10_000))
    contest.other.freezer.order(True)
    contest.other.freezer.settle(True, 5.0)
    held = HALF.but(quota_cpus=0.2, frozen=True)
    assert contest.ticks(HALF, 40) == [held] * 40
    least = Allocation(0.1, 1)
    assert contest.be.apply(least) == least.but(frozen=True), "our verdict is tighter than theirs"
    assert contest.be.apply(HALF) == held, "and grows no further than their bound"
    contest.other.cpu.set_quota(Quota(None))
    contest.other.freezer.order(False)
    contest.other.freezer.settle(False, 5.0)
    assert contest.be.apply(HALF) == HALF


def test_own_watchdogs_writes_are_no_claim(bench: Bench) -> None:
    contest = Contest(bench, Foreign.YIELD)
    contest.be.apply(HALF)
    watchdog = BeActuator([contest.group], (1, 0), LIMITS, bench.knobs(), settle_seconds=5.0)
    watchdog.apply(LIMITS.safe)
    assert contest.be.apply(HALF) == HALF
    assert contest.events() == ()


def test_weight_set_anew_is_no_foreign_write(bench: Bench) -> None:
    contest = Contest(bench, Foreign.REASSERT)
    for weight in (Weight.EQUAL, Weight.MINIMUM, Weight.EQUAL):
        contest.be.set_weight(weight)
        contest.be.apply(HALF)
    assert contest.events() == ()


def test_other_cpus_are_no_restriction(fake: Bench) -> None:
    contest = Contest(fake, Foreign.YIELD)
    contest.be.apply(Allocation(0.5, 1))
    contest.other.cpuset.set_cpus({0})
    assert contest.be.apply(Allocation(0.5, 1)) == Allocation(0.5, 1)
    assert contest.other.cpuset.cpus() == {1}
    contest.be.apply(HALF)
    assert contest.other.cpuset.cpus() == {0}, "within a wider verdict their wish counts"


def test_weights_that_we_set_are_ours(bench: Bench) -> None:
    contest = Contest(bench, Foreign.REASSERT)
    least = contest.group.cpu.weights[Weight.MINIMUM]
    contest.other.cpu.set_weight(500)
    contest.be.apply(HALF)
    assert contest.other.cpu.weight() == 500, "not ours yet"
    contest.be.set_weight(Weight.MINIMUM)
    for _ in range(3):
        contest.other.cpu.set_weight(500)
        contest.be.apply(HALF)
        assert contest.other.cpu.weight() == least
    if contest.other.cpu.idle() is not None:
        contest.other.cpu.set_idle(True)
        contest.be.apply(HALF)
        assert contest.other.cpu.idle(), "tighter than the minimum, and the fourth time"
    assert contest.foreign_writes() >= 3


def test_events_say_what_when_and_who(fake: Bench, caplog: pytest.LogCaptureFixture) -> None:
    contest = Contest(fake, Foreign.ALARM)
    contest.be.apply(Allocation(0.25, 1))
    for _ in range(9):
        contest.other.cpu.set_quota(Quota(None))
        contest.be.apply(Allocation(0.25, 1))
    events = contest.events()
    assert len(events) == 9
    assert events[0] == f"foreign-write: {contest.group.name}: quota 0.25 CPU -> unlimited, by unknown"
    assert events[8].endswith(", 9 times now")
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 4, "the 1st, 2nd, 4th and 8th"
    assert contest.events() == ()


@pytest.mark.parametrize(
    ("group", "who"),
    [
        ("kubepods/besteffort/pod1/0123", "probably kubelet"),
        ("kubepods.slice/kubepods-besteffort.slice/x.slice", "probably kubelet"),
        ("system.slice/docker-0123.scope", "probably the container runtime"),
        ("docker/0123456789ab", "probably the container runtime"),
        ("system.slice/batch.service", "probably systemd"),
        ("batch", "unknown"),
    ],
)
def test_suspects_by_place(group: str, who: str) -> None:
    assert suspect(group) == who


@pytest.mark.host
def test_the_kernel_tells_of_a_foreign_write(real: Bench) -> None:
    knobs = real.knobs()
    witness = Witness(knobs.holds)
    contest = Contest(real, Foreign.REASSERT, witness=witness, knobs=knobs)
    contest.be.apply(HALF)
    assert witness.watches
    assert not witness.anybody(), "what reads as we left it is our own"
    file = contest.group.cpu.quota_files[0]
    file.write_text("-1" if file.name == "cpu.cfs_quota_us" else "max")
    assert witness.anybody()
    assert not witness.anybody(), "told once"
    contest.be.apply(HALF)
    assert not witness.anybody()
    witness.forget(contest.group.directories)
    assert not witness.watches
    witness.close()


def test_a_half_done_freeze_is_the_watchdogs(fake: Bench) -> None:
    """It read as `frozen thawed -> frozen, by python3 (pid 1372)`."""
    contest = Contest(fake, Foreign.REASSERT)
    contest.be.apply(HALF)
    contest.other.freezer.order(True)
    contest.be.apply(HALF)
    (event,) = contest.events()
    assert event.endswith("frozen thawed -> frozen, by rlctl's watchdog, or as it would")


def test_tighter_parent_is_told_once_and_binds(bench: Bench) -> None:
    outer = bench.group()
    if outer.cpu is None:
        pytest.skip("the outer group has no cpu controller")
    outer.cpu.set_quota(Quota(20_000, 100_000))
    groups = [bench.group(f"{outer.name}/{name}") for name in "ab"]
    ownership = Ownership()
    be = BeActuator(groups, (1, 0), LIMITS, bench.knobs(), ownership=ownership)
    for _ in range(3):
        assert be.apply(Allocation(1.0, 2)).quota_cpus == pytest.approx(0.4)
    (event,) = ownership.events.drain()
    assert event.startswith(f"tighter-parent: {groups[0].name}: quota 0.2 CPU is in force")
    assert be.apply(Allocation(0.1, 2)).quota_cpus == 0.1


def test_group_made_anew_is_another_one(bench: Bench) -> None:
    contest = Contest(bench, Foreign.YIELD)
    contest.be.apply(Allocation(0.25, 1))
    contest.group.remove()
    again = bench.group(contest.group.name)
    again.cpu.set_quota(Quota(30_000, 100_000))
    before = {path: bench.kernel.read(path) for path in again.knob_files("quota", "cpus")}
    assert contest.be.apply(Allocation(0.25, 1)) == Allocation(0.25, 1)
    assert [event.partition(":")[0] for event in contest.events()] == ["group-replaced"]
    assert bench.restore().ok
    assert {path: bench.kernel.read(path) for path in before} == before


values = {
    "quota": st.builds(Quota, st.none() | st.integers(1_000, 50_000), st.just(10_000)),
    "cpus": st.frozensets(st.integers(0, 3)),
    "frozen": st.booleans(),
    "weight": st.integers(0, 1024),
}


@given(st.sampled_from(sorted(values)).flatmap(lambda knob: st.tuples(values[knob], values[knob])))
def test_a_claim_never_frees(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    meet = tighter(ours, theirs)
    match ours:
        case Quota():
            assert meet.cpus <= ours.cpus <= UNLIMITED
        case frozenset():
            assert meet <= ours
            assert bool(meet) == bool(ours)
        case bool():
            assert meet >= ours
        case _:
            assert meet <= ours


@pytest.mark.parametrize("fake", ["v2"], indirect=True)  # v1 refuses a parent without its children's CPUs
def test_group_without_its_cpus_is_frozen(fake: Bench) -> None:
    outer = fake.group()
    inner = fake.group(f"{outer.name}/inner")
    ownership = Ownership()
    be = BeActuator([inner], (1, 0), LIMITS, fake.knobs(), ownership=ownership)
    outer.cpuset.set_cpus({0, 1})
    assert be.apply(Allocation(0.5, 1)) == Allocation(0.5, 1)
    outer.cpuset.set_cpus({0})
    assert be.apply(Allocation(0.5, 1)) == Allocation(0.5, 2, frozen=True), "it could run on the LC's CPU only"
    (event,) = ownership.events.drain()
    assert event.startswith(f"tighter-parent: {inner.name}: cpus 0 is in force, set above it in ")
    outer.cpuset.set_cpus({0, 1})
    assert not be.apply(Allocation(0.5, 1)).frozen


def test_remade_group_is_restricted_without_journal_too(fake: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    contest, lasting = Contest(fake, Foreign.REASSERT), fake.group()
    contest.be.adopt([lasting])
    contest.be.apply(HALF)
    contest.group.remove()
    again = fake.group(contest.group.name)

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("rlctl.envs.host.cgroup.journal.os.pwrite", broken)
    assert contest.be.apply(HALF) == HALF
    assert again.cpu is not None
    assert again.cpu.quota().cpus == HALF.quota_cpus / 2
    assert {entry.path.parent.name for entry in fake.open_journal().unstored} == {again.name}
    assert [event.partition(":")[0] for event in contest.events()] == ["group-replaced"]
