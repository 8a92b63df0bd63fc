"""The emergency plan: whatever a group holds, its steps alone bring what the actuator would have brought."""

import contextlib

import pytest

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.emergency import emergency_plan
from rlctl.envs.host.cgroup.values import Quota

LIMITS = Limits(2, min_quota_cpus=0.02)
ORDER = (1, 0)


def carry_out(bench, plan, rounds=4):
    """As the watchdog does: write what does not read as wanted, and go round."""
    for _ in range(rounds):
        for stage in plan.stages:
            for step in stage:
                probe = step.path.with_name(step.probe)
                if step.wanted not in bench.kernel.read(probe).splitlines():
                    with contextlib.suppress(OSError):
                        bench.kernel.write(step.path, step.text)
    return [
        step
        for stage in plan.stages
        for step in stage
        if step.wanted not in bench.kernel.read(step.path.with_name(step.probe)).splitlines()
    ]


def plan_and_actuator(bench, groups, limits=LIMITS):
    knobs = bench.knobs()
    return emergency_plan(groups, ORDER, limits, knobs), BeActuator(groups, ORDER, limits, knobs)


@pytest.mark.parametrize(
    "before",
    [
        Allocation(UNLIMITED, 2),
        Allocation(1.5, 2),
        Allocation(0.02, 1),
        Allocation(0.5, 1, frozen=True),
        Allocation(UNLIMITED, 2, frozen=True),
    ],
)
@pytest.mark.parametrize("count", [1, 3])
def test_from_any_allocation_plan_arrives_where_actuator_would(bench, before, count):
    plan, actuator = plan_and_actuator(bench, [bench.group() for _ in range(count)])
    with contextlib.suppress(Exception):
        actuator.apply(before)
    assert carry_out(bench, plan) == []
    assert actuator.read() == LIMITS.safe


def test_it_freezes_every_group_first(bench):
    plan, _ = plan_and_actuator(bench, [bench.group(), bench.group()])
    freeze, rest = plan.stages
    assert {step.path.name for step in freeze} <= {"freezer.state", "cgroup.freeze"}
    assert len({step.path for step in freeze}) == 2
    assert not {step.path for step in freeze} & {step.path for step in rest}


def test_burst_allowance_does_not_stop_the_quota(bench):
    group = bench.group()
    plan, actuator = plan_and_actuator(bench, [group])
    group.cpu.set_quota(Quota(100_000, 100_000))
    burst = next(path for path in plan.paths if "burst" in path.name)
    bench.kernel.write(burst, "50000")
    assert carry_out(bench, plan) == []
    assert actuator.read() == LIMITS.safe


def test_limited_children_do_not_keep_parent_up(bench):
    group = bench.group()
    child = bench.group(f"{group.name}/pod")
    if child.cpu is None or child.cpuset is None:
        pytest.skip("this hierarchy gives children no controllers")
    child.cpu.set_quota(Quota(150_000, 100_000))
    child.cpuset.set_cpus({0, 1})
    plan, actuator = plan_and_actuator(bench, [group])
    assert carry_out(bench, plan) == []
    assert actuator.read() == LIMITS.safe


def test_restore_puts_back_all_that_the_plan_wrote(bench):
    group = bench.group()
    group.cpu.set_quota(Quota(90_000, 100_000))
    plan, _ = plan_and_actuator(bench, [group])
    bench.kernel.write(next(path for path in plan.paths if "burst" in path.name), "0")
    before = {path: bench.kernel.read(path) for path in plan.paths}
    carry_out(bench, plan)
    assert {path: bench.kernel.read(path) for path in plan.paths} != before
    assert bench.restore().ok
    assert {path: bench.kernel.read(path) for path in plan.paths} == before


def test_making_a_plan_writes_nothing(bench):
    group = bench.group()
    knobs = bench.knobs()
    written = len(bench.fake.writes) if bench.fake else 0
    plan = emergency_plan([group], ORDER, LIMITS, knobs)
    assert plan.paths
    assert not bench.fake or len(bench.fake.writes) == written
    assert not group.freezer.is_ordered()


def test_a_group_that_vanished_is_left_out(bench):
    gone, there = bench.group(), bench.group()
    gone.remove()
    plan, folders = emergency_plan([gone, there], ORDER, LIMITS, bench.knobs()), set(gone.directories)
    assert plan.paths
    assert not any(path.parent in folders for path in plan.paths)


def test_no_groups_no_steps(bench):
    plan = emergency_plan([], ORDER, LIMITS, bench.knobs())
    assert plan.paths == ()
    assert plan.to_bytes() == b""


def test_hold_by_quota_plans_no_freeze(bench):
    limits = Limits(2, min_quota_cpus=0.02, can_freeze=False)
    plan, actuator = plan_and_actuator(bench, [bench.group()], limits)
    actuator.apply(Allocation(UNLIMITED, 2))
    assert carry_out(bench, plan) == []
    assert actuator.read() == limits.minimum
    assert actuator.apply(Allocation(0.5, 1, frozen=True)) == limits.minimum
