"""A node whose live testbed acts for a learner, on this host: what it did reaches us, and nothing of it outlives it."""

import os
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlctl[distributed]'")

import ray

from rlctl.agents.served.bundle_writer import as_file
from rlctl.agents.served.card import ObservationTable
from rlctl.agents.training.cluster.connection import connected
from rlctl.agents.training.host_kinds import load_hosts
from rlctl.agents.training.live.bounded import Bounds
from rlctl.agents.training.rollouts.cluster_env import Rollouts
from rlctl.agents.training.rollouts.live_testbed import LiveTestbed
from rlctl.agents.training.rollouts.worker import Orders
from rlctl.agents.training.training_run import Tally
from rlctl.bench.scenarios import load_scenario
from rlctl.envs.actions import MOVES
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.testbed import leftovers
from rlctl.safety.profile import load_profile
from tests.needs import COMPILER, needs
from tests.waiting import until

pytestmark = [pytest.mark.host, pytest.mark.ray, pytest.mark.slow]

LAGS = (1, 0)


@pytest.fixture
def plan():
    """The nginx testbed without a search for its maximum load."""
    needs(programs=("nginx", "stress-ng", COMPILER))
    one = load_scenario("live-nginx")
    knee = one.knee.model_copy(update={"start_rps": 300.0, "step_rps": 100.0, "top_rps": 300.0})
    safety = load_profile("responsive").scale_time(one.time_scale)
    return LiveTestbed(one.model_copy(update={"knee": knee}), safety, Bounds(), LAGS, seed=0)


def groups():
    mounts = {mount.path for mount in Layout.detect().mounts.values()}
    return {group for mount in mounts for group in mount.glob("rlctl-testbed-*")}


@pytest.fixture
def bed(plan, ray_processes, linear, tmp_path, monkeypatch):
    """A live testbed on a node of its own that acts, once five of its transitions have come; with what runs for it."""
    monkeypatch.chdir(tmp_path)
    node, others = ray_processes.to(0).add(resources={"testbed": 1, "live": 1}), groups()
    said = []
    with connected(ray_processes.address) as cluster:
        beds = Rollouts(cluster, plan, say=said.append).env(load_hosts(), 1, 0, LAGS, 0, Tally())
        size = ObservationTable.here(LAGS).size
        policy = as_file(linear(np.zeros((len(MOVES), size)), np.zeros(len(MOVES))))
        one = beds.sample(policy, Orders(5, epsilon=0.1))
        assert one.counts.happened[plan.scenario.name].ticks == one.size == 5
        ours = groups() - others
        pids = leftovers.members(ours)
        assert ours
        assert pids
        assert beds.sample(policy, Orders(20, epsilon=0.1), going_on=lambda: False) is None, "it goes on acting"
        yield SimpleNamespace(env=beds, node=node, said=said, policy=policy)
        ray.shutdown()  # the learner is gone
    until(lambda: not groups() & ours)
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    if node in ray_processes.nodes:
        ray_processes.kill(node)


def test_nothing_is_left_when_its_node_dies(bed, ray_processes):
    ray_processes.crash(bed.node)
    assert bed.env.sample(bed.policy, Orders(1), going_on=lambda: "is lost" not in bed.said[-1]) is None


def test_nothing_is_left_when_the_learner_goes_away(bed):
    """A worker of Ray whose driver has ended kills its children unless it is told not to, and so the keeper."""


def test_nothing_is_left_when_it_is_closed(bed):
    bed.env.close()
