"""Hyperparameters are data: what is misspelt is told with its line, and nothing in a file is ever run."""

import pytest
import yaml

from rlctl.agents.training.recipe import ALGORITHMS, as_document, linear, load_recipe
from rlctl.envs.errors import ConfigError

PPO = """rlctl/SimHost-v0:
  n_envs: 16
  n_timesteps: !!float 1e6
  learning_rate: lin_2e-3
  gamma: 0.95
  n_steps: 8
  batch_size: 64
  n_epochs: 2
"""


def written(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_shipped_hyperparameters_come_back_from_run_folder(algorithm, tmp_path):
    recipe = load_recipe(algorithm)
    assert load_recipe(algorithm, written(tmp_path, yaml.safe_dump(as_document(recipe)))) == recipe


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_kept_model_does_not_hang_on_busyness(algorithm):
    recipe = load_recipe(algorithm)
    assert recipe.eval_every_seconds is None
    assert recipe.eval_every_timesteps


def test_numbers_may_be_written_as_the_zoo(tmp_path):
    recipe = load_recipe("ppo", written(tmp_path, PPO))
    assert recipe.n_timesteps == 1_000_000
    assert linear(recipe.learning_rate) == (2e-3, True)
    assert linear(3e-4) == (3e-4, False)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("n_steps", "n_stepz", "mine.yaml:6: unknown key 'rlctl/SimHost-v0.n_stepz'; did you mean 'n_steps'?"),
        ("lin_2e-3", "lin_fast", "mine.yaml:4: "),
        ("lin_2e-3", "'lambda p: 1'", "lin_ and a number"),
        ("lin_2e-3", "__import__('os').getcwd()", "lin_ and a number"),
        ("gamma: 0.95", "gamma: 95", "mine.yaml:5: "),
        ("n_envs: 16", "n_envs: 16\n  lags: [3, 0]", "observers do not show lag 3"),
        ("n_envs: 16", "n_envs: 16\n  lags: [1, 2]", "oldest first"),
        ("n_envs: 16", "n_envs: 16\n  policy_kwargs: {activation_fn: nn.Tanh}", "mine.yaml:3: "),
        ("n_envs: 16", "n_envs: 16\n  policy_kwargs: {net_arch: 'dict(pi=[64])'}", "mine.yaml:3: "),
        ("n_envs: 16", "n_envs: 16\n  warm_start: null", "warm_start' was removed: clone a manager"),
        ("n_envs: 16", "n_envs: 16\n  normalize: true", "unknown key 'rlctl/SimHost-v0.normalize'"),
        ("rlctl/SimHost-v0", "rlctl/SimHost", "did you mean 'rlctl/SimHost-v0'?"),
    ],
)
def test_forbidden_in_a_file_is_one_line(old, new, said, tmp_path):
    with pytest.raises(ConfigError) as refused:
        load_recipe("ppo", written(tmp_path, PPO.replace(old, new)))
    assert said in str(refused.value)


def test_a_recurrent_learner_is_refused():
    with pytest.raises(ConfigError, match="recurrent-ppo was removed"):
        load_recipe("recurrent-ppo")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_try_out_gets_few_hosts(algorithm):
    recipe = load_recipe(algorithm)
    small, why = recipe.fitted(2000, None)
    assert small.n_envs < recipe.n_envs
    assert "try-out" in why["n_envs"]
    assert recipe.fitted(2000, None, n_envs=50)[0].n_envs == 50
    assert recipe.fitted(recipe.n_timesteps, None) == (recipe, {})


def test_minibatches_are_of_one_size():
    fitted, _ = load_recipe("ppo").fitted(10_000_000, None, n_envs=100)
    assert 100 * fitted.n_steps % fitted.batch_size == 0
