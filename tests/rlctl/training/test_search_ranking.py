"""Who wins a search: QoS by what the seeds cannot exclude, then BE."""

import numpy as np
import pytest

from rlctl.agents.training.trial import Trial
from rlctl.training.search_ranking import ranked

SEEDS, TICKS = 16, {"thesis": 600, "noisy": 600}


def trial(qos, be):
    seeds = np.zeros(SEEDS)
    return Trial(seeds + qos, seeds + be, seeds + 1.0, seeds)


def scores(qos, be):
    """The same on both courses."""
    return {name: trial(qos, be) for name in TICKS}


FROZEN = scores(99.9, 0.0)
WOBBLE = np.resize([-0.5, 0.5], SEEDS)


def places(**trials):
    return [one.name for one in ranked(trials, FROZEN, TICKS)]


def test_a_bold_trial_loses_to_one_that_holds_qos():
    assert places(bold=scores(99.0, 90.0), safe=scores(99.9, 20.0)) == ["safe", "bold"]


def test_among_those_that_hold_it_more_be_wins():
    assert places(less=scores(99.9, 20.0), more=scores(99.85, 30.0)) == ["more", "less"]


def test_qos_within_the_allowance_below_frozen_is_held_and_more_is_worth_nothing():
    found = ranked({"a": scores(99.81, 30.0), "b": scores(99.9, 29.0)}, FROZEN, TICKS)
    assert [(one.name, one.shortfall_points) for one in found] == [("a", 0.0), ("b", 0.0)]


def test_one_course_that_fails_is_not_made_up_for_by_the_other():
    failing = {"thesis": trial(100.0, 50.0), "noisy": trial(99.5, 50.0)}
    assert places(failing=failing, holding=scores(99.85, 10.0)) == ["holding", "failing"]


def test_what_the_seeds_cannot_exclude_counts_against_a_trial():
    unsure = {name: trial(99.85 + WOBBLE, 60.0) for name in TICKS}
    assert places(unsure=unsure, sure=scores(99.85, 10.0)) == ["sure", "unsure"]


def test_noise_that_frozen_has_on_the_same_seeds_does_not():
    frozen = {name: trial(99.5 + WOBBLE, 0.0) for name in TICKS}
    noisy = {name: trial(99.45 + WOBBLE, 60.0) for name in TICKS}
    (one,) = ranked({"noisy": noisy}, frozen, TICKS)
    assert one.shortfall_points == 0.0


def test_equal_trials_are_ranked_by_name_and_said_to_be_level():
    found = ranked({"t001": scores(99.9, 30.0), "t000": scores(99.9, 30.0)}, FROZEN, TICKS)
    assert [one.name for one in found] == ["t000", "t001"]
    lead = found[0].lead_over(found[1])
    assert (lead["by"], lead["clear"]) == ("nothing", False)


def test_the_lead_is_of_paired_seeds_and_says_when_it_may_be_chance():
    wide = {name: trial(99.9, 30.0 + 20 * WOBBLE) for name in TICKS}
    clear = {name: trial(99.9, 29.0 + 20 * WOBBLE) for name in TICKS}
    first, second = ranked({"wide": wide, "clear": clear}, FROZEN, TICKS)
    lead = first.lead_over(second)
    assert (lead["by"], lead["clear"]) == ("BE", True)  # seed by seed it is one point, however far seeds are apart
    assert lead["be_percent"]["mean"] == pytest.approx(1.0)
    chance = ranked({"wide": wide, "other": scores(99.9, 29.0)}, FROZEN, TICKS)
    assert not chance[0].lead_over(chance[1])["clear"]


def test_more_qos_below_the_bar_is_a_lead_in_qos():
    first, second = ranked({"a": scores(99.0, 50.0), "b": scores(98.0, 90.0)}, FROZEN, TICKS)
    assert first.lead_over(second)["by"] == "QoS"


def test_a_winner_that_is_behind_in_mean_qos_is_not_clearly_ahead():
    """A little too little everywhere is allowed, much in one course is not: the first is ranked first."""
    worst, *others = TICKS
    failing = {worst: trial(99.55, 50.0), **{name: trial(99.9, 50.0) for name in others}}
    first, second = ranked({"timid": scores(99.7, 50.0), "failing": failing}, FROZEN, TICKS)
    lead = first.lead_over(second)
    assert (first.name, lead["by"]) == ("timid", "QoS")
    assert lead["qos_percent"]["mean"] < 0.0
    assert not lead["clear"]
