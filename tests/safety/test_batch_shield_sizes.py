"""One shield over hosts of different sizes rules as one for each size does."""

import numpy as np
import pytest

from rlctl.agents.training.host_kinds import load_hosts
from rlctl.envs.allocations import VectorLimits, chosen
from rlctl.safety.batch_shield import BatchShield
from rlctl.safety.profile import load_profile
from tests.doubles.many_hosts import ManyHosts
from tests.doubles.shipped import SAFETY_PROFILES

HOSTS = 24


@pytest.mark.slow
@pytest.mark.parametrize("name", SAFETY_PROFILES)
def test_each_host_is_ruled_by_its_own_size(name):
    profile, hosts = load_profile(name), ManyHosts(HOSTS, seed=3)
    limits, rng = hosts.limits, np.random.default_rng(1)
    together = BatchShield(profile, limits, HOSTS)
    alone = [BatchShield(profile, one, HOSTS) for one in dict.fromkeys(limits.each)]
    assert len(alone) > 3
    current, decided = limits.minimum, 0
    for _ in range(200):
        hosts.step(current)
        sensed = hosts.read()
        mask = together.mask(sensed, current)
        moves = rng.choice(mask.shape[1], HOSTS, p=None)
        proposed = chosen(moves, current, limits)
        ruled = together.rule(sensed, current, proposed)
        decided += int(proposed.differ(ruled).sum())
        for shield in alone:
            mine = np.array([one == shield.limits for one in limits.each])
            assert np.array_equal(shield.mask(sensed, current)[mine], mask[mine])
            assert not shield.rule(sensed, current, proposed).differ(ruled)[mine].any()
        assert not ruled.clip_to(limits).differ(ruled).any()  # nobody need clip it again
        current = ruled
    assert decided > HOSTS


def test_limits_of_many_hosts_are_those_of_each():
    each = [kind.host().limits() for kind in load_hosts().kinds]
    limits = VectorLimits(each)
    for host, one in enumerate(each):
        assert limits.safe.host(host) == one.safe
        assert limits.full.host(host) == one.full
        assert limits.minimum.host(host) == one.minimum
        assert (limits.cpus[host], limits.lc_cpus[host]) == (one.cpus, one.lc_cpus)
