"""A header has what it takes to run a log again, and takes no nonsense back."""

import json
import math

import pytest

from rlctl.agents import catalogue
from rlctl.agents.served.fallback import FallbackPolicy
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import BundleError
from rlctl.envs.telemetry import Telemetry
from rlctl.log.reader import limits_in, profile_in, run_in
from rlctl.log.record import Tick, header_of
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield
from rlctl.safety.verdict import Verdict
from tests.doubles.plant import FakePlant


@pytest.fixture
def header():
    plant = FakePlant(Limits(cpus=4, lc_cpus=1.5))
    shield = Shield(load_profile("knee"), plant.limits)
    safe = plant.limits.safe

    def said(target_seconds=0.01):
        telemetry = Telemetry(1.0, target_seconds)
        tick = Tick(0, 1e9, telemetry, safe, safe, Verdict(safe, safe), safe, "heracles")
        return header_of(plant, catalogue.build("heracles"), shield)(tick)

    return said


def test_limits_and_shield_come_back_as_they_were(header):
    said = json.loads(json.dumps(header(), allow_nan=False))
    assert limits_in(said) == Limits(cpus=4, lc_cpus=1.5)
    assert profile_in(said) == load_profile("knee")
    assert profile_in(said).digest == said["shield"]["digest"]
    assert said["target_seconds"] == 0.01
    assert run_in(said) != run_in(header()), "another run, of the same process"


def test_target_that_is_no_number_is_said(header):
    assert json.dumps(header(math.nan), allow_nan=False)


@pytest.mark.parametrize("limits", [None, [], {}, {"cpus": 0}, {"cpus": 2, "lc_cpus": "all"}])
def test_limits_that_cannot_be_are_none(header, limits):
    assert limits_in({**header(), "limits": limits}) is None


@pytest.mark.parametrize("shield", [None, {}, {"profile": {"name": "knee"}}])
def test_a_shield_that_cannot_be_is_none(header, shield):
    assert profile_in({**header(), "shield": shield}) is None


def test_hash_tells_constants_apart_and_looks_behind_fallback():
    static, same = catalogue.build("static"), catalogue.build("static")
    assert static.digest == same.digest
    option = next(iter(catalogue.options("static")))
    assert catalogue.build("static", **{option: 0.5}).digest != static.digest
    assert FallbackPolicy(static, catalogue.build("heracles"), 1.0).digest == static.digest
    assert len(static.digest) == 12


def test_a_learned_policy_is_known_by_its_network():
    try:
        ppo = catalogue.build("ppo")
    except BundleError as error:  # not shipped, or made for another rlctl
        pytest.skip(str(error))
    assert ppo.digest == FallbackPolicy(ppo, catalogue.build("heracles"), 1.0).digest
    assert ppo.digest == ppo.bundle.card.policy_sha256[:12]
