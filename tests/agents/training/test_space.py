"""A search's space: what its file may say, what is drawn from it, and what a trial becomes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents.training.recipe import load_recipe
from rlctl.agents.training.search.draw import Draw
from rlctl.agents.training.search.space import MARGINS, load_space
from rlctl.envs.errors import ConfigError
from rlctl.safety.profile import load_profile

RECIPE = load_recipe("ppo")
SPACE = load_space("ppo", RECIPE)


@pytest.mark.parametrize(
    ("lines", "line", "said"),
    [
        (["recipe:", "  gama: {uniform: [0.8, 0.9]}"], 3, "unknown hyperparameter 'gama'; did you mean 'gamma'?"),
        (["recipe:", "  gamma: {uniform: [0.8, 1.9]}"], 3, "gamma is 1.9"),
        (["recipe:", "  gamma: {uniform: [0.9, 0.8]}"], 3, "[0.9, 0.8] is no range"),
        (["recipe:", "  ent_coef: {log_uniform: [0.0, 1.0]}"], 3, "needs a range above 0"),
        (["recipe:", "  gamma: {uniform: [0.8, 0.9], choice: [0.9]}"], 3, "give one of"),
        (["recipe:", "  gamma: {unform: [0.8, 0.9]}"], 3, "did you mean 'uniform'?"),
        (["recipe:", "  n_epochs: {choice: [4, 0]}"], 3, "n_epochs is 0"),
        (["recipe:", "  n_timesteps: {choice: [4]}"], 3, "follows from the budget"),
        (["shield:", "  profile: nobody"], 1, "no safety profile 'nobody'"),
        (["shield:", "  profile: responsive"], 1, "searches nothing"),
        (
            ["shield:", "  profile: responsive", "  margins:", "    slack_hold_ratio: {uniform: [0.05, 0.2]}"],
            5,
            "0.05 is looser than responsive's 0.1; a search only tightens the shield: give 0.1 or more",
        ),
        (
            ["shield:", "  profile: responsive", "  margins:", "    load_suspend_ratio: {uniform: [0.9, 1.0]}"],
            5,
            "1 is looser than responsive's 0.95",
        ),
        (
            ["shield:", "  profile: responsive", "  margins:", "    cool_down_seconds: {uniform: [30, 60]}"],
            5,
            "'cool_down_seconds' is no margin of a shield that may be searched",
        ),
        (
            ["shield:", "  profile: responsive", "  margins:", "    slack_hold_ratio: {choice: [high]}"],
            5,
            "needs plain numbers",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(lines, line, said, tmp_path):
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


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_every_candidate_of_the_shipped_spaces_is_a_recipe_and_a_tighter_shield(algorithm):
    recipe = load_recipe(algorithm)
    space = load_space(algorithm, recipe)
    for one in space.candidates(40, seed=5):
        made = space.recipe(recipe, one.values)
        assert type(made) is type(recipe)
        shield, own = space.shield(one.values) or space.profile, space.profile
        assert all((getattr(shield, name) - getattr(own, name)) * way >= 0.0 for name, way in MARGINS.items())


def test_the_first_candidate_is_what_ships_and_names_and_seeds_are_numbers_in_a_row():
    found = SPACE.candidates(5, seed=7)
    assert SPACE.recipe(RECIPE, found[0].values) == RECIPE
    assert SPACE.shield(found[0].values) is None
    assert [(one.name, one.seed) for one in found] == [(f"t00{number}", 7 + number) for number in range(5)]


def test_the_same_seed_draws_the_same_and_another_one_others():
    assert SPACE.candidates(8, 3) == SPACE.candidates(8, 3)
    assert SPACE.candidates(8, 3)[1:] != SPACE.candidates(8, 4)[1:]


def test_each_value_meets_each_part_of_its_range_once():
    drawn = [one.values["gamma"] for one in SPACE.candidates(9, 0)][1:]
    low, high = 0.8, 0.97
    parts = np.floor((np.array(drawn) - low) / (high - low) * 8)
    assert sorted(parts) == list(range(8))
    steps = [one.values["n_steps"] for one in SPACE.candidates(10, 0)][1:]
    assert sorted(steps) == [8] * 3 + [16] * 3 + [32] * 3


def test_a_number_that_falls_with_the_budget_is_written_so_and_read_again():
    draw = Draw(log_uniform=(1e-4, 1e-2), linear=True)
    assert draw.at(0.5) == "lin_0.001"
    assert draw.share("lin_0.001") == pytest.approx(0.5)


def test_whole_numbers_stay_whole():
    recipe = load_recipe("dqn")
    space = load_space("dqn", recipe)
    assert all(isinstance(one.values["target_update_interval"], int) for one in space.candidates(9, 0))


@given(seed=st.integers(0, 2**31), steps=st.integers(1, 30))
def test_what_population_based_training_changes_never_leaves_the_space(seed, steps):
    random, values = np.random.default_rng(seed), SPACE.candidates(2, 0)[1].values
    for _ in range(steps):
        values = SPACE.near(values, random, frozenset({"gamma"}))
    assert values.keys() == SPACE.base.keys()
    assert values["gamma"] == SPACE.candidates(2, 0)[1].values["gamma"]
    assert all(0.0 <= draw.share(values[name]) <= 1.0 for name, draw in SPACE.draws.items())
    assert values["n_steps"] in (8, 16, 32)
    SPACE.recipe(RECIPE, values)
    shield, own = SPACE.shield(values), load_profile("responsive")
    assert shield is not None
    assert shield.slack_hold_ratio >= max(own.slack_hold_ratio, shield.slack_floor_ratio)
    assert shield.growth_ratio_per_second <= own.growth_ratio_per_second


def test_a_threshold_that_is_overtaken_follows_and_is_listed(tmp_path):
    file = tmp_path / "space.yaml"
    file.write_text(
        "algorithm: ppo\nshield: {profile: responsive, margins: {slack_floor_ratio: {uniform: [0.05, 0.4]}}}\n"
    )
    space = load_space("ppo", RECIPE, file)
    for one in space.candidates(9, 0):
        shield = space.shield(one.values) or space.profile
        assert shield.slack_hold_ratio == one.values["shield.slack_hold_ratio"] >= shield.slack_floor_ratio


def test_the_digest_knows_the_space_and_what_it_is_searched_around(tmp_path):
    file = tmp_path / "space.yaml"
    file.write_text("algorithm: ppo\nrecipe: {gamma: {uniform: [0.8, 0.9]}}\n")
    one = load_space("ppo", RECIPE, file)
    assert one.digest == load_space("ppo", RECIPE, file).digest != SPACE.digest
    assert one.digest != load_space("ppo", RECIPE.model_copy(update={"gamma": 0.85}), file).digest
