"""One controller for each BE group, whatever the state directories: two of them would fight over its knobs."""

import os

import pytest

from rlctl.envs.errors import HostError
from rlctl.envs.host.cgroup.claim import Claims


def test_a_second_controller_of_a_group_is_refused_and_the_first_one_named(bench):
    group = bench.group()
    with Claims() as first, Claims() as second:
        first.take(group)
        first.take(group)  # as at every look
        with pytest.raises(HostError, match=rf"{group.name} is controlled by a running rlctl \(pid {os.getpid()}\)"):
            second.take(group)


def test_a_group_that_is_let_go_is_free_and_the_others_stay_claimed(bench):
    gone, kept = bench.group(), bench.group()
    with Claims() as first, Claims() as second:
        first.take(gone)
        first.take(kept)
        first.keep([kept])
        second.take(gone)
        with pytest.raises(HostError):
            second.take(kept)
        first.close()
        second.take(kept)


def test_a_group_that_was_made_anew_is_another_one(bench):
    group = bench.group()
    with Claims() as first, Claims() as second:
        first.take(group)
        group.remove()
        second.take(bench.group(group.name))
