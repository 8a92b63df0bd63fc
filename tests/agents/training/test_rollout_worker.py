"""Who acts on a testbed does what the learner's own process would have done, by the network of a bundle."""

import numpy as np
import pytest

from rlctl.agents.served.bundle_writer import as_file
from rlctl.agents.served.card import ObservationTable
from rlctl.agents.served.network import read_network
from rlctl.agents.training.host_groups import HostGroups
from rlctl.agents.training.host_kinds import HostShare, first_seed, load_hosts, present
from rlctl.agents.training.rollouts.worker import Orders, SimWorker
from rlctl.envs.actions import MOVES
from rlctl.envs.errors import BundleError, PolicyError

LAGS, HOSTS, EPISODE_STEPS, SEED = (1, 0), 12, 10, first_seed(3, 12)
SIZE = ObservationTable.here(LAGS).size


def groups():
    hosts = load_hosts().model_copy(update={"episode_steps": EPISODE_STEPS})
    return tuple(HostShare.of(kind, number, hosts) for kind, number in present(hosts, HOSTS))


@pytest.fixture
def policy(linear):
    rng = np.random.default_rng(0)
    return as_file(linear(rng.normal(size=(len(MOVES), SIZE)), rng.normal(size=len(MOVES))))


@pytest.fixture
def worker():
    made = SimWorker(groups(), LAGS, SEED, dice_seed=1)
    assert made.count == HOSTS
    yield made
    made.close()


@pytest.mark.slow
def test_samples_follow_as_steps_of_the_same_hosts(worker, policy):
    parts = [worker.sample(Orders(8), policy) for _ in range(2)]
    hosts = HostGroups(*(one.simulated(LAGS) for one in groups()))
    seen = hosts.reset(range(SEED, SEED + HOSTS))
    for part in parts:
        for step, moves in enumerate(part.actions):
            assert np.array_equal(part.observations[step], seen)
            seen, rewards, done, finals = hosts.step(moves)
            assert np.array_equal(part.rewards[step], rewards)
            assert np.array_equal(part.dones[step], done)
            assert np.array_equal(part.next_observations[step], finals if done.any() else seen)
    assert parts[1].dones.sum() == HOSTS
    assert sum(one.ticks for one in parts[0].counts.happened.values()) == parts[0].size == 8 * HOSTS
    assert (len(parts[0].counts.episode_steps), set(parts[1].counts.episode_steps)) == (0, {EPISODE_STEPS})


def test_masked_moves_are_never_made(worker, policy):
    one = worker.sample(Orders(6, epsilon=0.0, masked=True), policy)
    shown = one.observations.reshape(-1, SIZE)
    logits = np.where(one.masks.reshape(-1, len(MOVES)), read_network(policy).logits(shown), -np.inf)
    assert np.array_equal(one.actions.reshape(-1), logits.argmax(axis=1))
    assert worker.sample(Orders(6), policy).masks is None


def test_a_network_that_diverged_is_refused(worker, linear):
    with pytest.raises(BundleError, match="the learner's network"):
        worker.sample(Orders(1), b"\x80\x04pickle")
    with pytest.raises(PolicyError, match="not finite"):
        worker.sample(Orders(1), as_file(linear(np.full((len(MOVES), SIZE), np.nan), np.zeros(len(MOVES)))))
