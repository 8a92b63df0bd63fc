"""Every variant of an ablation differs from the full training in the one thing that its row says."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import yaml

from rlctl.agents.training.evaluations import METRICS
from rlctl.agents.training.host_kinds import HostShare, load_hosts
from rlctl.agents.training.recipe import load_recipe
from rlctl.bench.scenarios import sim_scenario
from rlctl.bench.sim_plan import SimPlan, run_sim
from rlctl.envs.reward import WORK
from rlctl.envs.sim.profile import Constants, load_profile
from rlctl.safety.profile import DEFAULT
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


@pytest.mark.parametrize(("shield", "suffix"), [(DEFAULT, ""), (None, "-bare")])
def test_a_bundle_scores_as_in_the_benchmark(make_bundle, tmp_path, shield, suffix):
    program = runpy.run_path(str(Path(__file__).parents[2] / "scripts/ablate-policy"), run_name="ablate-policy")
    short, folder = tmp_path / "short.yaml", make_bundle(tmp_path / "bundle")
    scenario = sim_scenario("two-core").model_copy(update={"name": "short", "duration_seconds": 40.0})
    short.write_text(yaml.safe_dump(scenario.model_dump(mode="json", exclude_none=True)))
    ours = program["scores_of"](folder, shield, (str(short),), 3)["short"]
    theirs = run_sim(SimPlan.of(scenario, (f"{folder}{suffix}",), 3, DEFAULT, "short")).managers
    (values,) = theirs.values()
    names = ("qos_guarantee_percent", "be_throughput_percent", "shield_override_percent")
    for metric, name in zip(METRICS, names, strict=True):
        assert np.allclose(getattr(ours, metric), values[name], rtol=0, atol=1e-9)
