"""Scores of an ablation are those of `rlctl bench`, and its table compares seed by seed."""

import numpy as np
import pytest

from rlctl.agents.training.evaluations import METRICS
from rlctl.bench.scenarios import load_scenario
from rlctl.bench.sim_plan import SimPlan, run_sim
from rlctl.safety.profile import DEFAULT, load_profile
from scripts.studies.ablation_scores import (
    CONDITIONS,
    Condition,
    Scores,
    as_json,
    of_outcomes,
    scores_of,
    table,
)

SEEDS = 3


@pytest.fixture(scope="module")
def scenario():
    return load_scenario("two-core").model_copy(update={"duration_seconds": 40.0})


@pytest.fixture(scope="module")
def folder(make_bundle, tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.mark.parametrize(("condition", "suffix"), [(CONDITIONS[0], ""), (CONDITIONS[-1], "-bare")])
def test_a_bundle_scores_as_in_the_benchmark(folder, scenario, condition, suffix):
    name = f"{folder}{suffix}"
    profile = load_profile(DEFAULT).scale_time(scenario.time_scale)
    outcome = run_sim(SimPlan(scenario, scenario.host(), (name,), SEEDS, profile))
    ours, theirs = scores_of(folder, condition, [scenario], SEEDS), of_outcomes([outcome], name)
    for metric in METRICS:
        assert np.allclose(ours.values["two-core"][metric], theirs.values["two-core"][metric], rtol=0, atol=1e-9)
    assert ours.windows == theirs.windows == {"two-core": 40}


def test_without_the_mask_the_shield_is_leant_on(folder, scenario):
    scores = {masked: scores_of(folder, Condition("", DEFAULT, masked), [scenario], SEEDS) for masked in (1, 0)}
    assert scores[0].mean("override_percent").mean() > scores[1].mean("override_percent").mean()


def made(qos, be):
    values = {"qos_percent": np.array(qos), "be_percent": np.array(be), "override_percent": np.zeros(len(qos))}
    return Scores({"thesis": 3000, "diurnal": 3000}, {"thesis": values, "diurnal": values})


def test_kept_scores_come_back_as_they_were():
    scores = made([99.9, 100.0], [40.0, 50.0])
    back = Scores.from_plain(scores.plain())
    assert back.plain() == scores.plain()
    assert back.estimate("be_percent", "thesis") == scores.estimate("be_percent", "thesis")


def test_differences_are_by_seed():
    full, other = made([100.0] * 4, [40.0, 50.0, 60.0, 70.0]), made([100.0] * 4, [39.0, 49.1, 59.0, 68.9])
    text = table({"full": full, "other": other}, "full")
    assert "-1.00 (-1.1" in text  # the seeds differ by 30 points, the pairs by one
    assert "100.00 (99.9" in text
    assert "-100.0" in text
    assert "two-core" not in text
    assert "+0.00 (+0.00 to +0.00)" in text
    data = as_json({"full": full, "other": other}, "full")
    assert data["other"]["less_base"]["be_percent"]["mean"] == pytest.approx(-1.0)
    assert data["other"]["per_seed"]["thesis"]["be_percent"] == [39.0, 49.1, 59.0, 68.9]
