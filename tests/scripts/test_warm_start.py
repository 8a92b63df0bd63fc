"""The study's warm start: a model that does what an upper bound would do, for `rlctl train --init`."""

import numpy as np
import pytest

pytest.importorskip("sb3_contrib", reason="needs rlctl[train]")

from rlctl.agents.training.algorithms import make, take_weights
from rlctl.agents.training.host_kinds import build, load_hosts
from rlctl.agents.training.nearest_move import nearest_move
from rlctl.agents.training.recipe import load_recipe
from rlctl.envs.actions import MOVES
from rlctl.envs.allocation import Allocation
from rlctl.envs.allocations import Allocations
from rlctl.envs.sim.profile import load_profile
from rlctl.envs.workload import Weight
from scripts.studies import warm_start

pytestmark = pytest.mark.train

HOSTS = load_hosts()


@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "qrdqn"])
def test_a_model_agrees_with_its_teacher(algorithm, tmp_path, monkeypatch):
    for name, value in {"HOSTS": 8, "ROUNDS": 2, "TICKS": 120, "EPOCHS": 20}.items():
        monkeypatch.setattr(warm_start, name, value)
    recipe, _ = load_recipe(algorithm).fitted(512, None)
    one_kind = HOSTS.model_copy(update={"kinds": HOSTS.kinds[:1]})
    agreed = warm_start.save_like_oracle(algorithm, recipe, one_kind, 0, tmp_path / "init.zip")
    assert agreed > 0.6
    model = make(algorithm, recipe, build(HOSTS, 8, 0, recipe.lags), lambda: 1.0)
    take_weights(model, tmp_path / "init.zip", policy_only=True)


def test_nearest_moves_are_those_of_one_host():
    rng, limits, count = np.random.default_rng(0), load_profile("two-core-host").limits(Weight.EQUAL), 60

    def allocations():
        quotas, cpusets = (
            rng.uniform(limits.min_quota_cpus, limits.cpus, count),
            rng.integers(1, limits.cpus + 1, count),
        )
        return Allocations(quotas, cpusets, rng.random(count) < 0.3)

    wanted, current, masks = allocations(), allocations(), rng.random((count, len(MOVES))) < 0.7
    found = warm_start.nearest_moves(wanted, current, limits, masks)
    for host, move in enumerate(found):
        best = nearest_move(wanted.host(host), current.host(host), limits, masks[host])
        done = [MOVES[index].of(current.host(host), limits) for index in (move, best)]
        assert masks[host][move]
        assert done[0].frozen == done[1].frozen
        assert _apart(done[0], wanted.host(host)) == pytest.approx(_apart(done[1], wanted.host(host)), abs=2e-4)


def _apart(done: Allocation, wanted: Allocation) -> float:
    return abs(done.usable_cpus - wanted.usable_cpus)
