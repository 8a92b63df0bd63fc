"""Learned policies by name: those that ship, and any bundle by its folder."""

import pytest

from rlctl.agents import catalogue
from rlctl.agents.served.learned import LearnedPolicy
from rlctl.envs.errors import BundleError, PolicyError


@pytest.fixture
def shipped(make_bundle, tmp_path, monkeypatch):
    """A checkout with a ppo bundle and no dqn bundle."""
    root = tmp_path / "package"
    make_bundle(root / "configs" / "bundles" / "ppo", name="ppo")
    monkeypatch.setattr(catalogue, "files", lambda package: root)
    return root


def test_learned_policies_are_listed_apart_from_managers():
    ends = ("", "-bare", "-bold", "-careful")
    assert list(catalogue.LEARNED) == [name + end for end in ends for name in ("ppo", "dqn")]
    assert not set(catalogue.LEARNED) & set(catalogue.NAMES)
    assert catalogue.options("dqn") == {}


def test_shipped_bundle_is_built_by_its_name(shipped):
    assert catalogue.lacking("ppo") == ""
    assert [(one.name, one.shielded) for one in map(catalogue.build, ("ppo", "ppo-bare"))] == [
        ("ppo", True),
        ("ppo-bare", False),
    ]


def test_bundle_that_did_not_ship_is_told(shipped):
    with pytest.raises(BundleError, match=r"dqn-bare: this checkout has no bundle .*/dqn; make one with `rlctl train"):
        catalogue.build("dqn-bare")


def test_damaged_shipped_bundle_is_wrong_not_lacking(shipped):
    (shipped / "configs/bundles/ppo/weights.npz").write_bytes(b"")
    assert catalogue.lacking("ppo") == ""
    with pytest.raises(BundleError, match="damaged or replaced"):
        catalogue.build("ppo")


def test_any_bundle_is_named_by_its_folder(make_bundle, tmp_path, monkeypatch):
    folder = make_bundle(tmp_path / "mine")
    for name, shielded in ((str(folder), True), (f"{folder}/", True), (f"{folder}-bare", False)):
        policy = catalogue.build(name, time_scale=10.0)
        assert isinstance(policy, LearnedPolicy)
        assert (policy.name, policy.shielded) == (name, shielded)
    make_bundle(tmp_path / "odd-bare")
    assert catalogue.build(str(tmp_path / "odd-bare")).shielded
    monkeypatch.chdir(tmp_path)
    named = [catalogue.label(name) for name in ("./mine", "mine/", "./mine-bare", "ppo")]
    assert named == ["mine", "mine", "mine-bare", "ppo"]
    assert [catalogue.label(f"out/run-3/bundle{bare}") for bare in ("", "-bare")] == ["run-3", "run-3-bare"]
    of_runs = ("runs/ppo/1/bundle", "runs/dqn/1/bundle", "runs/ppo/1/bundle-bare", "runs/ppo/mine/bundle")
    assert [catalogue.label(name) for name in of_runs] == ["ppo-1", "dqn-1", "ppo-1-bare", "mine"]
    with pytest.raises(PolicyError, match=r"no manager 'mine'; a bundle's folder has a slash in it: ./mine"):
        catalogue.build("mine")


def test_a_learned_policy_takes_no_options(make_bundle, tmp_path):
    with pytest.raises(PolicyError, match="takes no option 'margin_ratio'"):
        catalogue.build(str(make_bundle(tmp_path / "mine")), margin_ratio=0.1)


def test_misspelt_learned_policy_gets_the_closest():
    with pytest.raises(PolicyError, match=r"no manager 'pp0'; did you mean 'ppo'\?"):
        catalogue.build("pp0")
