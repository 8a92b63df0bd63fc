"""The price of a missed window follows the limit: up above it, down below it; a run keeps it, and its policy serves."""

import json
from dataclasses import replace

import numpy as np
import pytest

from rlctl.agents.training.lagrangian import Multiplier
from rlctl.cli import main


@pytest.mark.parametrize(("missed", "rises"), [(0.05, True), (0.001, False)])
def test_multiplier_follows_the_limit(missed, rises):
    multiplier = Multiplier(limit=0.01, gain=0.1)
    costs = np.zeros(1000)
    costs[: int(1000 * missed)] = 1.0
    before = multiplier.value
    for _ in range(20):
        multiplier.rewards(np.zeros(1000), costs)
        multiplier.update()
    assert (multiplier.value > before) is rises
    assert multiplier.value > 0.0


def test_no_window_leaves_the_multiplier():
    multiplier = Multiplier(limit=0.01, gain=0.1, value=3.0)
    multiplier.update()
    assert multiplier.value == 3.0


def test_a_miss_costs_the_multiplier():
    held, missed = Multiplier(limit=0.01, gain=0.1, value=3.0).rewards(np.array([0.1, 0.0]), np.array([0.0, 1.0]))
    assert (held, missed) == (0.1 / 4, -3.0 / 4)


@pytest.mark.train
def test_run_keeps_its_multiplier_and_serves(tmp_path):
    pytest.importorskip("sb3_contrib", reason="needs rlctl[train]")
    from rlctl.agents.served.bundle import load
    from rlctl.agents.training.host_kinds import load_hosts
    from rlctl.agents.training.learn import learn
    from rlctl.agents.training.recipe import load_recipe
    from rlctl.agents.training.training_run import TrainingRun
    from rlctl.agents.training.trial import Course
    from rlctl.bench.scenarios import load_scenario

    def multiplier():
        (folder,) = (tmp_path / "checkpoints").iterdir()
        return json.loads((folder / "state.json").read_text())["multiplier"]

    recipe, _ = load_recipe("ppo-lagrangian").fitted(256, None)
    recipe = recipe.model_copy(update={"batch_size": 64, "cost_limit": 1.0})  # no policy misses more
    scenario = load_scenario("two-core")
    course = Course("two-core", scenario.host(), scenario.load_model, scenario.be.weight, 10)
    run = TrainingRun("ppo-lagrangian", recipe, load_hosts(), (course,), tmp_path, validation_seeds=2)
    assert load(learn(run).bundle).card.name == "ppo-lagrangian"
    assert (first := multiplier()) < 1.0
    longer = recipe.model_copy(update={"n_timesteps": 512})
    learn(replace(run, recipe=longer, resume=True))
    assert multiplier() < first


def test_other_machines_cannot_count_misses(capsys):
    assert main(["train", "--algo", "ppo-lagrangian", "--ray", "local", "--dry-run"]) == 78
    assert "leave out --ray" in capsys.readouterr().err
