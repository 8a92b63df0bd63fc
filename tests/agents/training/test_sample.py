"""What hosts send is what a learner would have had from hosts in its own process."""

import numpy as np
import pytest

from rlctl.agents.training.host_groups import Counts, Happened
from rlctl.agents.training.rollouts.worker import RolloutSample, choose, join_samples
from rlctl.agents.training.training_run import ROLLOUTS, Tally


def test_moves_are_drawn_by_the_policys_preference():
    logits, allowed = np.log([[0.5, 0.3, 0.2]] * 20_000), np.array([[True, True, False]] * 20_000)
    moves = choose(logits, np.random.default_rng(0), allowed)
    assert np.bincount(moves, minlength=3)[:2] / len(moves) == pytest.approx([0.625, 0.375], abs=0.01)
    assert set(moves) == {0, 1}


@pytest.mark.parametrize(("epsilon", "counts"), [(0.0, [0, 900, 0]), (1.0, [450, 450, 0])])
def test_epsilon_mixes_best_and_random_moves(epsilon, counts):
    logits, allowed = np.array([[1.0, 2.0, 3.0]] * 900), np.array([[True, True, False]] * 900)
    moves = choose(logits, np.random.default_rng(0), allowed, epsilon)
    assert np.bincount(moves, minlength=3) == pytest.approx(counts, abs=60)


def test_joined_samples_keep_hosts_apart():
    def part(first, hosts):
        numbers = first + np.arange(2 * hosts, dtype=np.float32).reshape(2, hosts)
        seen = np.stack([numbers, numbers], axis=2)
        counts = Counts({"a": Happened(ticks=2.0 * hosts)}, (1.0,))
        return RolloutSample(seen, seen + 1, numbers.astype(int), numbers, numbers > 1e9, counts=counts)

    both = join_samples([part(0, 2), part(10, 1)])
    assert both.actions.tolist() == [[0, 1, 10], [2, 3, 11]]
    assert both.next_observations[1, :, 0].tolist() == [3, 4, 12]
    assert both.counts.happened["a"].ticks == both.size == 6
    assert both.counts.episode_rewards == (1.0, 1.0)
    assert both.masks is None


def test_the_tally_survives_a_session(tmp_path):
    tally = Tally.read(tmp_path)
    tally.of("a", "simulated").learned += 15
    one = tally.of("b", "live-nginx")
    one.losses, one.lost = 1, 7
    tally.write(tmp_path)
    again = Tally.read(tmp_path)
    assert again == tally
    assert "2 testbeds, 1 losses; 15 transitions learned from, at most 7 lost" in again.line()
    assert again.rows() == [
        ("testbed", "kind", "learned", "lost", "losses"),
        ("a", "simulated", "15", "0", "0"),
        ("b", "live-nginx", "0", "7", "1"),
    ]
    (tmp_path / ROLLOUTS).write_text('{"a": {"kind": "simulated", "learned": 3, "stale": 9, "segments": 2}}')
    assert Tally.read(tmp_path).total("learned") == 3, "of an rlctl that counted more"
