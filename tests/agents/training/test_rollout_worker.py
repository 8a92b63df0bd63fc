"""Who acts on a testbed does what the learner's own process would have done, by the network of a bundle."""

from functools import partial

import numpy as np
import pytest

from rlctl.agents.served.card import ObservationTable
from rlctl.agents.served.network import as_file, read_network
from rlctl.agents.training.host_groups import HostGroups
from rlctl.agents.training.host_kinds import Group, first_seed, load_hosts, present
from rlctl.agents.training.rollouts.segments import Orders, transitions
from rlctl.agents.training.rollouts.worker import SimRunning, Worker
from rlctl.envs.actions import MOVES
from rlctl.envs.errors import BundleError, PolicyError

LAGS, HOSTS, EPISODE_STEPS, SEED = (1, 0), 12, 10, first_seed(3, 12)
SIZE = ObservationTable.here(LAGS).size


def groups():
    hosts = load_hosts().model_copy(update={"episode_steps": EPISODE_STEPS})
    return tuple(Group.of(kind, number, hosts) for kind, number in present(hosts, HOSTS))


@pytest.fixture
def policy(linear):
    rng = np.random.default_rng(0)
    return as_file(linear(rng.normal(size=(len(MOVES), SIZE)), rng.normal(size=len(MOVES))))


@pytest.fixture
def worker():
    made = Worker(partial(SimRunning, groups(), LAGS, SEED), seed=1)
    assert made.begin().count == HOSTS
    yield made
    made.close()


@pytest.mark.slow
def test_segments_follow_one_another_as_steps_of_the_same_hosts_do(worker, policy):
    parts = [worker.segment(Orders(version, 8), policy) for version in (1, 2)]
    assert [one.version for one in parts] == [1, 2]
    hosts = HostGroups(*(one.simulated(LAGS) for one in groups()))
    seen = hosts.reset(range(SEED, SEED + HOSTS))
    for part in parts:
        for step, moves in enumerate(part.actions):
            assert np.array_equal(part.observations[step], seen)
            seen, rewards, done, _ = hosts.step(moves)
            assert np.array_equal(part.rewards[step], rewards)
            assert np.array_equal(part.dones[step], done)
    assert np.array_equal(parts[1].observations[-1], seen)
    assert parts[1].finals.shape == (HOSTS, SIZE)
    ended = transitions(parts[1]).dones
    assert not np.array_equal(transitions(parts[1]).next_observations[ended], parts[1].observations[2])
    assert sum(one.ticks for one in parts[0].happened.values()) == parts[0].size == 8 * HOSTS
    assert (len(parts[0].episode_steps), set(parts[1].episode_steps)) == (0, {EPISODE_STEPS})


def test_moves_are_the_policys_and_masked_ones_are_never_made(worker, policy):
    one = worker.segment(Orders(1, 6, epsilon=0.0, masked=True), policy)
    shown = transitions(one)
    logits = np.where(one.masks.reshape(-1, len(MOVES)), read_network(policy).logits(shown.observations), -np.inf)
    assert np.array_equal(shown.actions, logits.argmax(axis=1))
    assert worker.segment(Orders(1, 6), policy).masks is None


def test_a_network_that_is_none_or_has_diverged_is_refused(worker, linear):
    with pytest.raises(BundleError, match="the learner's network"):
        worker.segment(Orders(1, 1), b"\x80\x04pickle")
    with pytest.raises(PolicyError, match="not finite"):
        worker.segment(Orders(1, 1), as_file(linear(np.full((len(MOVES), SIZE), np.nan), np.zeros(len(MOVES)))))
