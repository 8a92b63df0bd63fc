"""The study's warm start: a model that does what a manager would do, for `rlctl train --init`."""

import pytest

pytest.importorskip("sb3_contrib", reason="needs rlctl[train]")

from rlctl.agents.training.algorithms import make, take_weights
from rlctl.agents.training.host_kinds import build, load_hosts
from rlctl.agents.training.recipe import load_recipe
from scripts.studies import warm_start

pytestmark = pytest.mark.train

HOSTS = load_hosts()


@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "qrdqn"])
def test_a_model_agrees_with_its_teacher(algorithm, tmp_path, monkeypatch):
    for name, value in {"HOSTS": 6, "TICKS": 150, "SAMPLES": 1, "EPOCHS": 30}.items():
        monkeypatch.setattr(warm_start, name, value)
    recipe, _ = load_recipe(algorithm).fitted(512, None)
    one_kind = HOSTS.model_copy(update={"kinds": HOSTS.kinds[:1]})
    agreed = warm_start.save_like("feedforward", algorithm, recipe, one_kind, 0, tmp_path / "init.zip")
    assert agreed > 0.6
    model = make(algorithm, recipe, build(HOSTS, 8, 0, recipe.lags), lambda: 1.0)
    take_weights(model, tmp_path / "init.zip", policy_only=True)
