"""A write as data: what would be written can be listed and printed, is put in order, and is then what is written."""

from __future__ import annotations

from typing import Any

import pytest

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.errors import CgroupError
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.settings import Turn, WriteStep, carry_out
from rlctl.envs.host.cgroup.values import Quota

Bench = Any
LIMITS = Limits(cpus=2)


def files(bench: Bench) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in bench.fake.root.rglob("*") if path.is_file()}


def test_plan_lists_writes_and_writes_nothing(fake: Bench) -> None:
    group = fake.group("batch")
    be = BeActuator([group], (1, 0), LIMITS, fake.knobs())
    before = files(fake)
    plan = be.plan(Allocation(0.5, 1, frozen=True))
    assert files(fake) == before
    assert [(step.knob, step.value) for step in plan] == [
        ("frozen", True), ("frozen", True), ("quota", Quota.of_cpus(0.5)), ("cpus", {1}), ("frozen", True)
    ]  # fmt: skip
    assert [str(step) for step in plan] == [
        "freeze batch",
        "wait up to 0.025 s for batch to stand still",
        "set quota of batch to 0.5 CPU",
        "set cpus of batch to 1",
        "wait up to 0.295 s for batch to stand still",
    ]
    be.apply(Allocation(0.5, 1, frozen=True))
    assert be.plan(Allocation(0.5, 1, frozen=True)) == []
    assert [str(step) for step in be.plan(Allocation(UNLIMITED, 2))] == [
        "set cpus of batch to 0-1",
        "set quota of batch to unlimited",
        "thaw batch",
    ]


def test_steps_of_all_groups_take_turns(fake: Bench) -> None:
    be = BeActuator([fake.group("one"), fake.group("two")], (1, 0), LIMITS, fake.knobs())
    turns = [step.turn for step in be.plan(Allocation(0.5, 1, frozen=True))]
    assert turns == sorted(turns)
    assert turns.count(Turn.FREEZE) == turns.count(Turn.TIGHTEN_QUOTA) == 2


def test_failed_step_is_named_and_stops_group(fake: Bench) -> None:
    one, two = fake.group("one"), fake.group("two")
    assert one.cpu is not None
    assert two.cpu is not None
    fake.fake.ignored = {"cpuset.cpus"}
    wide = Quota.of_cpus(1.5)
    refused = WriteStep(Turn.TIGHTEN_CPUS, one, "cpus", frozenset({1}))
    outcome = carry_out([refused, *(WriteStep(Turn.WIDEN_QUOTA, group, "quota", wide) for group in (one, two))])
    ((failed, error),) = outcome.failed
    assert failed is refused
    assert isinstance(error, CgroupError)
    assert one.cpu.quota().quota_us is None, "it was not written"
    assert two.cpu.quota() == wide


def test_group_that_vanishes_amid_steps_is_left_alone(fake: Bench) -> None:
    one, two = fake.group("one"), fake.group("two")
    assert two.cpu is not None
    one.remove()
    quota = Quota.of_cpus(0.5)
    outcome = carry_out([WriteStep(Turn.TIGHTEN_QUOTA, group, "quota", quota) for group in (one, one, two)])
    assert list(outcome.gone) == [one]
    assert outcome.failed == []
    assert two.cpu.quota() == quota


@pytest.mark.parametrize("turn", list(Turn))
def test_only_what_gives_more_is_held_back(turn: Turn) -> None:
    assert turn.growing == (turn.name.startswith("WIDEN") or turn is Turn.THAW)
