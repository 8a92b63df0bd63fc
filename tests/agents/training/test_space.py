"""A search's space: what its file may say, what is drawn from it, and what a trial becomes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents.training.recipe import load_recipe
from rlctl.agents.training.search.space import MARGINS, Draw, load_space
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
        (["recipe:", "  n_epochs: {choice: [1, 2]}"], 1, "n_epochs: 4, as the first trial has it, is outside"),
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
            "'cool_down_seconds' is not a margin of a shield that may be searched",
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


def drawn(space, shares):
    """Values at shares of all ranges."""
    numbers = {}
    for (key, draw), share in zip(space.draws.items(), shares, strict=False):
        low, high = (0, len(draw.choice)) if draw.choice else draw.ends
        numbers[key] = min(low + share * (high - low), high - 1e-9)
    return space.values(numbers)


@given(algorithm=st.sampled_from(["ppo", "dqn"]), shares=st.lists(st.floats(0.0, 1.0), min_size=20, max_size=20))
def test_every_draw_is_a_recipe_and_a_tighter_shield(algorithm, shares):
    recipe = load_recipe(algorithm)
    space = load_space(algorithm, recipe)
    values = drawn(space, shares)
    assert type(space.recipe(recipe, values)) is type(recipe)
    shield, own = space.shield(values) or space.profile, space.profile
    assert shield.slack_hold_ratio >= shield.slack_floor_ratio
    assert all((getattr(shield, name) - getattr(own, name)) * way >= 0.0 for name, way in MARGINS.items())


def test_the_first_trial_is_what_ships():
    values = SPACE.values(SPACE.first)
    assert SPACE.recipe(RECIPE, values) == RECIPE
    assert SPACE.shield(values) is None


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
    for key, domain in SPACE.domains.items():
        SPACE.draws[key].value(domain.sample())
        assert domain.is_valid(SPACE.first[key])


def test_a_threshold_that_is_overtaken_follows_and_is_listed(tmp_path):
    file = tmp_path / "space.yaml"
    file.write_text(
        "algorithm: ppo\nshield: {profile: responsive, margins: {slack_floor_ratio: {uniform: [0.05, 0.4]}}}\n"
    )
    space = load_space("ppo", RECIPE, file)
    for share in (0.0, 0.3, 0.9):
        values = drawn(space, [share])
        shield = space.shield(values) or space.profile
        assert shield.slack_hold_ratio == values["shield.slack_hold_ratio"] >= shield.slack_floor_ratio


def test_the_digest_knows_the_space_and_what_it_is_searched_around(tmp_path):
    file = tmp_path / "space.yaml"
    file.write_text("algorithm: ppo\nrecipe: {gamma: {uniform: [0.8, 0.9]}}\n")
    one = load_space("ppo", RECIPE, file)
    assert one.digest == load_space("ppo", RECIPE, file).digest != SPACE.digest
    assert one.digest != load_space("ppo", RECIPE.model_copy(update={"gamma": 0.85}), file).digest
