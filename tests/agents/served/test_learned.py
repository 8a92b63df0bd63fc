"""A learned policy takes the best allowed move, says so, and fails rather than guess."""

import numpy as np
import pytest

from rlctl.agents.policy import Policy
from rlctl.agents.policy_runner import PolicyRunner
from rlctl.agents.served import bundle
from rlctl.agents.served.learned import LearnedPolicy
from rlctl.envs.actions import MOVES
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import PolicyError
from rlctl.envs.level_counts import add_missed, bin_of
from rlctl.envs.observation import LAGS, Observer
from rlctl.envs.telemetry import Quantile, Telemetry, Value
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield

MOVE = {one.name: place for place, one in enumerate(MOVES)}
TARGETS = [
    (place, one.quota_ratio) for place, one in enumerate(MOVES) if one.quota_ratio is not None and not one.frozen
]
LIMITS = Limits(cpus=4)
HALF = Allocation(2.0, 4)


def told(slack, now=0.0, load=0.5):
    return Telemetry(now, 1.0, Quantile(1.0 - slack, samples=1000), Value(0.0), Value(load))


def seen(slack, current=HALF, mask=None, observer=None):
    return (observer or Observer(LIMITS, 1.0)).observe(told(slack), current, mask)


@pytest.fixture
def loaded(make_bundle, tmp_path):
    return bundle.load(make_bundle(tmp_path / "tiny"))


def nearest(slack):
    """Places of the targets, the one that the test's policy likes best first."""
    return [place for place, _ in sorted(TARGETS, key=lambda target: abs(target[1] - slack))]


def constant(make_bundle, linear, folder, bias):
    """A policy whose logits are the same whatever it sees."""
    size = bundle.ObservationTable.here(LAGS).size
    return make_bundle(folder, policy=linear(np.zeros((len(MOVES), size)), bias))


def test_it_moves_by_what_it_sees(loaded):
    policy: Policy = LearnedPolicy(loaded)
    assert policy.start(LIMITS) == LIMITS.safe
    assert policy.note == "start"
    best, second, *_ = nearest(0.9)
    assert policy.act(seen(0.9)) == best
    assert policy.note == f"{MOVES[best].name}, second choice {MOVES[second].name}"
    assert policy.act(seen(-0.5)) == MOVE["minimum"]
    assert (policy.name, policy.shielded, policy.masked, policy.weight) == ("tiny", True, True, "equal")


def test_mask_rules_out_what_shield_would_stop(loaded):
    policy = LearnedPolicy(loaded)
    policy.start(LIMITS)
    mask = np.ones(len(MOVES), bool)
    mask[nearest(0.9)[0]] = False
    assert policy.act(seen(0.9, HALF, mask)) == nearest(0.9)[1]
    only = np.zeros(len(MOVES), bool)
    only[MOVE["freeze"]] = True
    assert policy.act(seen(0.9, LIMITS.minimum, only)) == MOVE["freeze"]
    assert policy.note == "freeze as the only move allowed"
    with pytest.raises(PolicyError, match="no move is allowed"):
        policy.act(seen(0.9, LIMITS.minimum, np.zeros(len(MOVES), bool)))


def test_what_host_taught_against_is_not_asked(loaded):
    policy, observer = LearnedPolicy(loaded), Observer(LIMITS, 1.0)
    policy.start(LIMITS)
    wanted = nearest(0.9)[0]
    add_missed(observer.experience.rows[0], bin_of(0.5), 15, False, False)
    assert policy.act(seen(0.9, HALF, observer=observer)) != wanted
    assert policy.note.endswith(f"; this host has taught not to take {MOVES[wanted].name}")


def test_bare_it_wants_neither_shield_nor_mask(loaded):
    policy = LearnedPolicy(loaded, shielded=False)
    assert (policy.name, policy.shielded, policy.masked) == ("tiny-bare", False, False)
    only = np.zeros(len(MOVES), bool)
    assert policy.act(seen(0.9, HALF, only)) == nearest(0.9)[0]
    assert "without shield and mask" in policy.remarks


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_answer_that_is_no_number_is_error(bad, loaded, monkeypatch):
    policy = LearnedPolicy(loaded)
    answer = np.zeros(len(MOVES), np.float32)
    answer[3] = bad
    monkeypatch.setattr(type(loaded), "logits", lambda *_: answer)
    with pytest.raises(PolicyError, match="not finite"):
        policy.act(seen(0.5))


def test_policy_without_history_sees_none(make_bundle, tmp_path, monkeypatch):
    policy = LearnedPolicy(bundle.load(make_bundle(tmp_path / "now", lags=(0,))))
    given = []
    whole = bundle.Bundle.logits
    monkeypatch.setattr(bundle.Bundle, "logits", lambda one, vector: given.append(vector) or whole(one, vector))
    long, short = Observer(LIMITS, 1.0), Observer(LIMITS, 1.0, (0,))
    for slack in (0.1, 0.5, -0.3):
        policy.act(seen(slack, observer=long))
        assert np.array_equal(given[-1], seen(slack, observer=short).vector)


def test_policy_with_whole_history_sees_vector(loaded, monkeypatch):
    given = []
    whole = bundle.Bundle.logits
    monkeypatch.setattr(bundle.Bundle, "logits", lambda one, vector: given.append(vector) or whole(one, vector))
    policy, observer = LearnedPolicy(loaded), Observer(LIMITS, 1.0)
    for slack in (0.1, 0.5):
        observation = seen(slack, observer=observer)
        policy.act(observation)
        assert np.array_equal(given[-1], observation.vector)


def test_an_observation_of_another_history_is_refused(loaded):
    with pytest.raises(PolicyError, match="holds 2 ticks, not 6"):
        LearnedPolicy(loaded).act(seen(0.5, observer=Observer(LIMITS, 1.0, (1, 0))))


def test_remarks_name_network_and_another_tick(loaded):
    policy = LearnedPolicy(loaded)
    assert loaded.card.policy_sha256[:12] in policy.remarks[0]
    assert len(policy.remarks) == 1
    policy.act(Observer(LIMITS, 0.5).observe(told(0.5), HALF))
    assert policy.remarks[-1] == "trained at ticks of 1 s, run at 0.5 s"


@pytest.mark.parametrize("limits", [Limits(1), Limits(36, 17), Limits(3, 0.5, 0.2)])
def test_it_serves_hosts_of_any_size_under_shield(limits, loaded):
    runner = PolicyRunner(LearnedPolicy(loaded), Shield(load_profile("responsive"), limits), limits, 1.0)
    current = runner.start()
    for tick in range(60):
        verdict = runner.decide(told(0.8, float(tick)), current).verdict
        current = verdict.allocation
        assert not verdict.overridden, "the mask leaves only moves that pass"
    assert not current.frozen
    assert min(current.quota_cpus, current.cpuset_cpus) / limits.cpus > 0.6


def test_ties_go_to_the_first_move(make_bundle, linear, tmp_path):
    policy = LearnedPolicy(bundle.load(constant(make_bundle, linear, tmp_path / "c", np.zeros(len(MOVES)))))
    assert policy.act(seen(0.5)) == 0
