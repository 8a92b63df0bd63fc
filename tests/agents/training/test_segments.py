"""Segments: what a learner gets of them is what it would have had from hosts in its own process."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents.training.rollouts.segments import Segment, advantages, choose, steps_for, transitions
from rlctl.agents.training.rollouts.tally import FILE, Tally


def segment(rewards, dones, finals=(), size=2):
    """Observations that count up, so that each says where it is from."""
    rewards, dones = np.array(rewards, np.float32), np.array(dones, bool)
    steps, hosts = rewards.shape
    seen = np.arange((steps + 1) * hosts * size, dtype=np.float32).reshape(steps + 1, hosts, size)
    ended = np.array(finals, np.float32).reshape(-1, size)
    actions = np.arange(steps * hosts).reshape(steps, hosts)
    return Segment(3, seen, actions, np.zeros_like(rewards), rewards, dones, ended)


def test_a_transition_ends_with_what_was_seen_next_or_last_in_its_episode():
    one = segment([[1, 2], [3, 4]], [[False, True], [False, False]], finals=[[-1, -2]])
    got = transitions(one)
    assert one.size == len(got.actions) == 4
    assert got.observations.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert got.next_observations.tolist() == [[4, 5], [-1, -2], [8, 9], [10, 11]]
    assert got.rewards.tolist() == [1, 2, 3, 4]
    assert got.dones.tolist() == [False, True, False, False]


def test_advantages_are_those_of_the_learners_own_buffer():
    pytest.importorskip("stable_baselines3", reason="needs rlctl[train]")
    import torch
    from gymnasium.spaces import Box, Discrete
    from stable_baselines3.common.buffers import RolloutBuffer

    rng, steps, hosts, gamma, gae_lambda = np.random.default_rng(0), 7, 3, 0.9, 0.8
    rewards = rng.normal(size=(steps, hosts)).astype(np.float32)
    values = rng.normal(size=(steps + 1, hosts)).astype(np.float32)
    dones = rng.random((steps, hosts)) < 0.3
    dones[-1, 0] = True
    final_values = rng.normal(size=dones.sum()).astype(np.float32)
    buffer = RolloutBuffer(steps, Box(-1, 1, (1,)), Discrete(2), "cpu", gae_lambda, gamma, hosts)
    whole = rewards.copy()
    whole[dones] += gamma * final_values  # as collect_rollouts does for episodes that were cut off
    starts = np.vstack([np.zeros((1, hosts), bool), dones[:-1]])
    for step in range(steps):
        row = (np.zeros((hosts, 1)), np.zeros(hosts), whole[step], starts[step])
        buffer.add(*row, torch.tensor(values[step]), torch.zeros(hosts))
    buffer.compute_returns_and_advantage(torch.tensor(values[-1]), dones[-1])
    found = advantages(rewards, values, dones, final_values, gamma, gae_lambda)
    np.testing.assert_allclose(found, buffer.advantages, atol=1e-5)


def test_moves_are_drawn_as_the_policy_prefers_them_and_only_allowed_ones():
    logits, allowed = np.log([[0.5, 0.3, 0.2]] * 20_000), np.array([[True, True, False]] * 20_000)
    moves, log_probs = choose(logits, np.random.default_rng(0), allowed)
    assert np.bincount(moves, minlength=3)[:2] / len(moves) == pytest.approx([0.625, 0.375], abs=0.01)
    assert set(moves) == {0, 1}
    assert log_probs[moves == 0] == pytest.approx(math.log(0.625), abs=1e-6)


@pytest.mark.parametrize(("epsilon", "counts"), [(0.0, [0, 900, 0]), (1.0, [450, 450, 0])])
def test_without_a_distribution_it_is_the_best_move_or_any_allowed_one(epsilon, counts):
    logits, allowed = np.array([[1.0, 2.0, 3.0]] * 900), np.array([[True, True, False]] * 900)
    moves, log_probs = choose(logits, np.random.default_rng(0), allowed, epsilon)
    assert np.bincount(moves, minlength=3) == pytest.approx(counts, abs=60)
    assert not log_probs.any()


@given(st.integers(1, 10**6), st.integers(0, 10**4), st.integers(1, 64))
def test_testbeds_share_a_rollout_evenly(wanted, hosts, most):
    steps = steps_for(wanted, hosts, most)
    assert 1 <= steps <= most
    if steps < most and steps > 4:
        shared = max(hosts, 1)  # before the first has come, it is shared as by one
        assert (steps - 1) * shared < wanted <= steps * shared


def test_what_became_of_transitions_is_counted_by_testbed_and_survives_a_session(tmp_path):
    tally = Tally.read(tmp_path)
    for name in ("a", "b"):
        tally.of(name, "simulated")
    tally.came("a", 10, 0, 0.5, stale=False)
    tally.came("a", 10, 2, 1.5, stale=True)
    tally.came("b", 5, 1, 1.0, stale=False)
    tally.lost("b", 7)
    tally.write(tmp_path)
    again = Tally.read(tmp_path)
    assert again == tally
    assert "2 testbeds, 1 losses; 15 transitions learned from, 10 stale and dropped, at most 7 lost" in again.line()
    assert again.rows()[1] == ("a", "simulated", "10", "10", "0", "0", "2", "1.00", "2", "1.00", "1.50")
    assert again.curves()["versions_behind"] == 1.0
    assert sorted(one.name for one in tmp_path.iterdir()) == [FILE]
