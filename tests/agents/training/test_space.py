"""A search's space: what its file may say, what is drawn from it, and what a trial becomes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents.training.recipe import load_recipe
from rlctl.agents.training.search.space import Draw, load_space, recipe_with
from rlctl.envs.errors import ConfigError

RECIPE = load_recipe("ppo")
SPACE = load_space("ppo", RECIPE)


@pytest.mark.parametrize(
    ("lines", "line", "said"),
    [
        (["recipe:", "  gama: {uniform: [0.8, 0.9]}"], 3, "unknown hyperparameter 'gama'; did you mean 'gamma'?"),
        (["recipe:", "  gamma: {uniform: [0.8, 1.9]}"], 3, "gamma is 1.9"),
        (["recipe:", "  gamma: {uniform: [0.9, 0.8]}"], 3, "[0.9, 0.8] is not a valid range"),
        (["recipe:", "  ent_coef: {log_uniform: [0.0, 1.0]}"], 3, "needs a range above 0"),
        (["recipe:", "  gamma: {uniform: [0.8, 0.9], choice: [0.9]}"], 3, "give one of"),
        (["recipe:", "  gamma: {unform: [0.8, 0.9]}"], 3, "did you mean 'uniform'?"),
        (["recipe:", "  n_epochs: {choice: [4, 0]}"], 3, "n_epochs is 0"),
        (["recipe:", "  n_epochs: {choice: [1, 4]}"], 1, "n_epochs: 2, as the first trial has it, is outside"),
        (["recipe:", "  n_timesteps: {choice: [4]}"], 3, "follows from the budget"),
        (["shield:", "  profile: responsive"], 2, "'shield' was removed: compare profiles of your own"),
    ],
)
def test_wrong_file_is_said_with_its_line(lines, line, said, tmp_path):
    file = tmp_path / "space.yaml"
    file.write_text("\n".join(["algorithm: ppo", *lines]) + "\n")
    with pytest.raises(ConfigError) as error:
        load_space("ppo", RECIPE, file)
    assert said in str(error.value)
    if line > 1:
        assert f"space.yaml:{line}" in str(error.value)


def test_a_space_of_another_algorithm_is_refused(tmp_path):
    file = tmp_path / "space.yaml"
    file.write_text("algorithm: dqn\nrecipe: {gamma: {uniform: [0.8, 0.9]}}\n")
    with pytest.raises(ConfigError, match=r"space\.yaml:1: is for dqn, and --algo is ppo"):
        load_space("ppo", RECIPE, file)


def drawn(space, shares):
    """Values at shares of all ranges."""
    numbers = {}
    for (key, draw), share in zip(space.draws.items(), shares, strict=False):
        low, high = (0, len(draw.choice)) if draw.choice else draw.ends
        numbers[key] = min(low + share * (high - low), high - 1e-9)
    return space.values(numbers)


@given(algorithm=st.sampled_from(["ppo", "dqn"]), shares=st.lists(st.floats(0.0, 1.0), min_size=20, max_size=20))
def test_every_draw_is_a_recipe(algorithm, shares):
    recipe = load_recipe(algorithm)
    space = load_space(algorithm, recipe)
    values = drawn(space, shares)
    assert type(recipe_with(recipe, values)) is type(recipe)


def test_the_first_trial_is_what_ships():
    values = SPACE.values(SPACE.first)
    assert recipe_with(RECIPE, values) == RECIPE


def test_a_linear_number_is_written_and_read_again():
    draw = Draw(log_uniform=(1e-4, 1e-2), linear=True)
    assert draw.value(0.0010001) == "lin_0.001"
    assert draw.number("lin_0.001") == pytest.approx(0.001)


def test_whole_numbers_stay_whole():
    space = load_space("dqn", load_recipe("dqn"))
    assert isinstance(drawn(space, [0.3] * 20)["target_update_interval"], int)


@pytest.mark.ray
def test_ray_draws_from_the_ranges():
    pytest.importorskip("pyarrow")
    for key, draw in SPACE.draws.items():
        draw.value((domain := draw.domain).sample())
        assert domain.is_valid(SPACE.first[key])


def test_digest_knows_the_space_and_its_centre(tmp_path):
    file = tmp_path / "space.yaml"
    file.write_text("algorithm: ppo\nrecipe: {gamma: {uniform: [0.8, 0.9]}}\n")
    one = load_space("ppo", RECIPE, file)
    assert one.digest == load_space("ppo", RECIPE, file).digest != SPACE.digest
    assert one.digest != load_space("ppo", RECIPE.model_copy(update={"gamma": 0.85}), file).digest
