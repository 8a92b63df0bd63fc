"""Tuning is fair and repeatable: one budget for all, training seeds only, never worse than what was published."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents import catalogue
from rlctl.bench.participants import SHIPPED, Budget, Fulfilment, Tuned, TunedManager, ground_of, load_tuned, policy_for
from rlctl.bench.scenarios import load_scenario
from rlctl.bench.sim_plan import SimPlan, run_sim
from rlctl.bench.sim_run import simulate
from rlctl.bench.workforce import workforce
from rlctl.cli import main
from rlctl.commands.bench_verify import plan_of, read_claims
from rlctl.envs.errors import ConfigError
from rlctl.envs.sim.seeds import SeedKind, evaluation, kind_of
from rlctl.safety.profile import load_profile
from scripts.studies.search_space import Range, Space, load_search, spaces
from scripts.studies.tuning import as_yaml, budget_of, plans_of, task_count, tune

SPACES = load_search()
SEARCHED = ("static", "parties", "prm-hybrid-tuned")
UNTUNED = {"none", "weights", "cpu-idle", "frozen", "greedy-shield", "table", "learned-table"}
NOTHING = Fulfilment(shortfall_points=0.0, be_throughput_percent=0.0)


def short(candidates=6, seconds=20.0, scenarios=("noisy", "two-core")):
    budget = budget_of(candidates, 2, seconds)
    return plans_of([load_scenario(name) for name in scenarios], budget, "responsive"), budget


@pytest.fixture(scope="module")
def found():
    plans, budget = short()
    names = []
    return tune(spaces(SEARCHED), plans, budget, "responsive", names.append), names


@pytest.fixture(scope="module")
def hosts():
    """Time scales of 1 and 15, cores of 1 and of 1/36 CPU."""
    scenarios = [load_scenario(name) for name in ("thesis", "two-core")]
    return [(one, one.host().limits()) for one in scenarios]


@pytest.fixture
def mine(tmp_path):
    """A file with tuned constants for `static` only."""
    plans, budget = short(scenarios=("noisy",), seconds=3000.0)
    tuned = Tuned(
        budget=budget,
        shield="responsive",
        scenarios={one.scenario.name: ground_of(one.scenario, one.host, one.profile) for one in plans},
        managers={"static": TunedManager(options={"quota_ratio": 0.05}, published=NOTHING, tuned=NOTHING)},
    )
    path = tmp_path / "mine.yaml"
    path.write_text(as_yaml(tuned))
    return path


def test_every_manager_with_constants_is_searched():
    assert set(SPACES) == set(catalogue.NAMES) - UNTUNED


@pytest.mark.slow
@pytest.mark.parametrize("name", SPACES)
def test_no_candidate_is_refused_by_its_manager(name, hosts):
    space = SPACES[name]
    ends = [space._options([end] * len(space.ranges)) for end in (0.0, 1.0)]
    tried = [space.published, *ends, *space.spread(20)]
    for step in range(4):
        tried += space.near(tried[-1], 10, step)
    for options in tried:
        assert options.keys() == space.ranges.keys()
        for option, value in options.items():
            low, high = space.ranges[option].ends
            assert low <= value <= high or space.ranges[option].at_most, (option, value)
            assert type(value) is type(catalogue.options(name)[option])
        for scenario, limits in hosts:
            policy_for(name, scenario, None, options).start(limits)


@given(st.floats(0.01, 1e3), st.floats(1.01, 1e3), st.booleans(), st.floats(0.0, 1.0))
def test_range_is_kept_and_its_ends_are_reached(low, factor, log, share):
    one = Range(**{"log_uniform" if log else "uniform": (low, low * factor)})
    assert low <= one.at(share) <= low * factor
    assert one.share(one.at(0.0)) == pytest.approx(0.0, abs=0.5)
    assert one.share(low) == 0.0
    assert one.share(low * factor) == pytest.approx(1.0)


def test_hypercube_meets_every_part_of_range_once():
    space = Space(
        "feedforward", {"margin_ratio": Range(uniform=(0.0, 1.0)), "lead_seconds": Range(uniform=(0.0, 10.0))}
    )
    drawn = space.spread(10)
    assert sorted(int(10 * one["margin_ratio"]) for one in drawn) == list(range(10))
    assert sorted(int(one["lead_seconds"]) for one in drawn) == list(range(10))


def test_range_that_cannot_be_is_told_at_once():
    with pytest.raises(ConfigError, match=r"static: quota_ratio is published as 0.25, outside \[0.5, 0.9\]"):
        Space("static", {"quota_ratio": Range(uniform=(0.5, 0.9))})
    with pytest.raises(ConfigError, match="koord-suppress: busy is no option with a number"):
        Space("koord-suppress", {"busy": Range(uniform=(0.0, 1.0))})
    with pytest.raises(ConfigError, match="greedy-shield: no constants to search; there are static"):
        spaces(("greedy-shield",))


@pytest.mark.slow
def test_search_finds_the_same_on_any_processes():
    plans, budget = short(candidates=3)
    alone = as_yaml(tune(spaces(("static",)), plans, budget, "responsive"))
    with workforce(2) as workers:
        assert as_yaml(tune(spaces(("static",)), plans, budget, "responsive", workers=workers)) == alone


@pytest.mark.slow
def test_company_changes_nothing(found):
    plans, budget = short()
    alone = tune(spaces(("parties",)), plans, budget, "responsive")
    assert alone.managers["parties"] == found[0].managers["parties"]


def test_tuned_is_never_worse_where_searched(found):
    for one in found[0].managers.values():
        assert (-one.tuned.shortfall_points, one.tuned.be_throughput_percent) >= (
            -one.published.shortfall_points,
            one.published.be_throughput_percent,
        )


def test_all_get_the_same_budget(monkeypatch):
    runs = {}

    def counted(task):
        one = runs.setdefault((task.manager, task.scenario.name), [])
        one += zip(task.seeds, task.options, strict=True)
        return simulate(task)

    monkeypatch.setattr("scripts.studies.tuning.simulate", counted)
    plans, budget = short(candidates=5, seconds=4.0)
    called = []
    tune(spaces(SEARCHED), plans, budget, "responsive", called.append)
    assert len(called) == task_count(spaces(SEARCHED), budget, plans)
    per_manager = {key: len(tried) for key, tried in runs.items() if key[0] != "frozen"}
    assert set(per_manager.values()) == {5 * 2}
    assert len(per_manager) == len(SEARCHED) * 2
    assert {kind_of(seed) for tried in runs.values() for seed, _ in tried} == {SeedKind.TRAINING}
    published = SPACES["parties"].published
    assert [options for _, options in runs["parties", "noisy"][:2]] == [published, published]


def test_evaluation_seeds_are_refused():
    plans, _ = short()
    judged = Budget(candidates=4, seeds=(1, evaluation(0)), duration_seconds=40.0)
    with pytest.raises(ConfigError, match="evaluation seed; constants are tuned on training seeds only"):
        tune(spaces(("static",)), plans, judged, "responsive")


def test_score_is_what_run_of_candidate_alone_gives():
    plans, budget = short(scenarios=("noisy",))
    one = tune(spaces(("parties",)), plans, budget, "responsive").managers["parties"]
    task = next(iter(SimPlan(plans[0].scenario, plans[0].host, ("parties",), 1, plans[0].profile).tasks(1)))
    alone = type(task)(**{name: getattr(task, name) for name in ("scenario", "host", "manager", "weight")},
                       profile=task.profile, seeds=budget.seeds, options=(one.options,) * 2)  # fmt: skip
    be = simulate(alone).values["be_throughput_percent"].mean()
    assert one.tuned.be_throughput_percent == pytest.approx(be, abs=0.006)


def test_tuned_constants_reach_policy_and_scenarios_win(mine):
    noisy, tuned = load_scenario("noisy"), load_tuned(str(mine))
    assert policy_for("static", noisy, None, tuned.options("static")).quota_ratio == 0.05
    assert policy_for("static", noisy).quota_ratio == 0.25
    sets = noisy.model_copy(update={"managers": {"static": {"quota_ratio": 0.4}}})
    assert policy_for("static", sets, None, tuned.options("static")).quota_ratio == 0.4
    assert tuned.options("parties") == {}
    brief = noisy.model_copy(update={"duration_seconds": 20.0})
    plan = SimPlan(brief, brief.host(), ("static", "frozen"), 2, load_profile("responsive"), tuned=tuned)
    assert run_sim(plan).remarks["static"] == ("quota fixed at 5% of BE's CPUs",)


def test_bench_says_that_it_is_tuned(mine, tmp_path, capsys):
    out = tmp_path / "result.json"
    asked = ["bench", "--scenario", "noisy", "--managers", "static", "--seeds", "2", "--duration", "20", "--jobs", "1"]
    asked += ["--shield", "responsive"]
    assert main([*asked, "--tuned", str(mine), "--json", str(out)]) == 0
    said = capsys.readouterr()
    digest = load_tuned(str(mine)).digest
    assert f"constants tuned on training seeds ({digest})" in said.out
    assert "warning" not in said.err
    result = json.loads(out.read_text())
    assert (result["tuned"], result["tuned_source"], result["tuned_digest"]) == (True, str(mine), digest)
    assert plan_of(read_claims(out)[0]).tuned == load_tuned(str(mine))
    assert main(["bench", "verify", str(out), "--jobs", "1"]) == 0
    mine.write_text(mine.read_text().replace("0.05", "0.06"))
    assert main(["bench", "verify", str(out), "--jobs", "1"]) != 0
    assert "another experiment" in capsys.readouterr().err


def test_published_constants_stay_what_a_bench_runs_with(tmp_path):
    out = tmp_path / "result.json"
    asked = ["bench", "--scenario", "noisy", "--managers", "static", "--seeds", "1", "--duration", "4", "--jobs", "1"]
    assert main([*asked, "--json", str(out)]) == 0
    assert json.loads(out.read_text())["tuned"] is False


def test_other_host_than_tuned_on_is_told(mine, tmp_path, capsys):
    asked = ["bench", "--managers", "static", "--seeds", "1", "--duration", "4", "--tuned", str(mine), "--dry-run"]
    assert main([*asked, "--scenario", "bursty"]) == 0
    assert "warning: bursty: the constants were not tuned on this scenario" in capsys.readouterr().err
    assert main([*asked, "--scenario", "noisy", "--shield", "heracles", "--time-scale", "2"]) == 0
    said = capsys.readouterr().err
    assert "warning: noisy: the constants were tuned with scenario" in said
    assert "warning: noisy: the constants were tuned with shield" in said


def test_a_live_bench_takes_no_tuned_constants(capsys):
    assert main(["bench", "--plant", "host", "--tuned", "--dry-run"]) != 0
    assert "--tuned constants were found in the simulator" in capsys.readouterr().err


def test_slip_in_file_is_told_with_its_name(mine):
    data = yaml.safe_load(mine.read_text())
    data["managers"]["static"]["options"] = {"qouta_ratio": 0.1}
    mine.write_text(yaml.safe_dump(data))
    with pytest.raises(ConfigError, match=r"mine.yaml.*static: no option qouta_ratio"):
        load_tuned(str(mine))


def test_shipped_searches_had_one_budget():
    tuned = load_tuned(SHIPPED)
    assert {kind_of(seed) for seed in tuned.budget.seeds} == {SeedKind.TRAINING}
    assert set(tuned.managers) == set(SPACES)
    for name in tuned.managers:
        for scenario in tuned.scenarios:
            policy_for(name, load_scenario(scenario), None, tuned.options(name))
