"""Numbers and lists as the kernel takes and prints them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.allocation import UNLIMITED
from rlctl.envs.host.cgroup.knobs import kind_of
from rlctl.envs.host.cgroup.values import MAX_PERIOD_US, MIN_QUOTA_US, PERIOD_US, Quota


@given(st.floats(0.001, 4096.0))
def test_quotas_are_legal_and_never_more(cpus: float) -> None:
    quota = Quota.of_cpus(cpus)
    assert quota.quota_us is not None
    assert quota.quota_us >= MIN_QUOTA_US
    assert PERIOD_US <= quota.period_us <= MAX_PERIOD_US
    assert cpus * 0.998 <= quota.cpus <= cpus * (1 + 1e-6)


@pytest.mark.parametrize(
    ("cpus", "quota"),
    [
        (0.01, Quota(1000, 100_000)),
        (0.05, Quota(1000, 20_000)),
        (0.29, Quota(2900, 10_000)),  # 0.29 * 10000 is 2899.9999999999995
        (0.33339, Quota(3333, 10_000)),  # never up: the parts of a budget would add up to more than it
        (1.5, Quota(15_000, 10_000)),
        (1e-9, Quota(1000, 1_000_000)),
        (UNLIMITED, Quota(None)),
    ],
)
def test_quotas_that_people_ask_for(cpus: float, quota: Quota) -> None:
    assert Quota.of_cpus(cpus) == quota


def test_lifted_quotas_are_the_same_in_any_period() -> None:
    assert Quota(None, 100_000).same(Quota(None, 10_000))
    assert not Quota(None).same(Quota(10_000))
    assert not Quota(1000, 100_000).same(Quota(1000, 10_000))


@pytest.mark.parametrize(
    ("name", "wanted", "got", "same"),
    [
        ("cpuset.cpus", "0,1", "0-1\n", True),
        ("cpuset.cpus", "0", "0-1\n", False),
        ("cpuset.cpus", "0", "garbage\n", False),
        ("cpu.max", "max", "max 10000\n", True),
        ("cpu.max", "5000 10000", "5000 100000\n", False),
        ("cpu.shares", "2", "2\n", True),
        ("cpu.shares", "1", "2\n", False),
        ("cgroup.subtree_control", "+cpu -io", "cpuset cpu\n", True),
        ("cgroup.subtree_control", "+cpu", "io\n", False),
        ("cgroup.subtree_control", "cpu io", "io cpu\n", True),
    ],
)
def test_read_back_compares_meanings(name: str, wanted: str, got: str, same: bool) -> None:
    assert kind_of(Path("/g") / name).same(wanted, got) is same


def test_controllers_are_switched_back_one_by_one() -> None:
    assert kind_of(Path("cgroup.subtree_control")).to_write("cpu io\n", "cpu cpuset\n") == "-cpuset +io"


def test_only_controllers_that_are_on_are_switched() -> None:
    assert kind_of(Path("cgroup.subtree_control")).to_write("-cpu -cpuset -memory", "cpu cpuset io\n") == "-cpu -cpuset"
