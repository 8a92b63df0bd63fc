"""Every variant of an ablation differs from the full training in the one thing that its row says."""

import numpy as np
import pytest

from rlctl.agents.training.host_kinds import HostShare, load_hosts
from rlctl.agents.training.recipe import load_recipe
from rlctl.envs.reward import WORK
from rlctl.envs.sim.profile import Constants, load_profile
from scripts.studies.ablation import FULL, SHIPPED, variants


@pytest.fixture(scope="module")
def found():
    return {one.name: one for one in variants(load_recipe(SHIPPED), load_hosts())}


def changed(one, other):
    mine, theirs = one.model_dump(), other.model_dump()
    return {key for key in mine if mine[key] != theirs[key]}


@pytest.mark.parametrize(
    ("name", "in_recipe", "in_kinds"),
    [
        ("no-shield", set(), {"safety"}),
        ("masked", set(), set()),
        ("no-history", {"lags"}, set()),
        ("warm-start", set(), set()),
        ("one-work", set(), {"work"}),
        ("no-memory", set(), {"absent"}),
        ("no-dial", set(), set()),
    ],
)
def test_a_variant_differs_in_one_thing(found, name, in_recipe, in_kinds):
    full, one = found[FULL], found[name]
    assert changed(one.recipe, full.recipe) == in_recipe
    pairs = zip(one.hosts.kinds, full.hosts.kinds, strict=True)
    assert set().union(*(changed(mine, theirs) for mine, theirs in pairs)) == in_kinds
    assert (one.algorithm != full.algorithm) == (name == "masked")
    assert one.warm == (name == "warm-start")


def test_without_shield_there_is_none_on_any_host(found):
    assert {kind.shield() for kind in found["no-shield"].hosts.kinds} == {None}


def test_without_the_dial_no_episode_has_a_price(found):
    assert (found["no-dial"].hosts.priced, found[FULL].hosts.priced) == (False, True)


def test_one_work_is_the_rewards_own(found):
    assert {kind.work for kind in found["one-work"].hosts.kinds} == {WORK}
    assert {kind.work for kind in found[FULL].hosts.kinds} != {WORK}


def test_without_randomisation_all_hosts_are_the_profiles_themselves(found):
    kinds = found["no-randomisation"].hosts.kinds
    own_cpus, shared = (
        ("thesis-host",),
        ("two-core-host", "two-core-nginx", "capped-link", "sendfile-link", "capped-disk"),
    )
    assert {kind.profile for kind in kinds} == {*own_cpus, *shared}
    seeds = np.arange(5, dtype=np.uint64)
    for kind in kinds:
        drawn, plain = Constants.drawn(kind.host(), seeds), load_profile(kind.profile).values()
        assert all(np.array_equal(getattr(drawn, name), np.full(5, value)) for name, value in plain.items()), kind.name
        HostShare.of(kind, 2, found[FULL].hosts).simulated((0,)).close()
    assert len({(kind.profile, kind.safety) for kind in kinds}) == len(kinds)
