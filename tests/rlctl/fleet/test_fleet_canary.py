"""`rlctl fleet canary`: a bundle that is no worse goes through, one that is worse goes back, a refused one nowhere."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl.cli import main
from rlctl.envs.actions import MOVES
from rlctl.envs.errors import BundleError, ConfigError
from rlctl.fleet.canary import Look, hosts_of_stage, judge, roll_out
from rlctl.fleet.compare import Effect, compare, least_chance
from rlctl.fleet.config import CanaryPlan, load_fleet
from rlctl.fleet.plan import RolloutPlan
from rlctl.fleet.roster import Roster
from rlctl.safety.profile import load_profile
from rlctl.work.workforce import Workforce, workforce

SHIPPED = load_fleet()
QUICK = CanaryPlan.model_validate(
    {"begin_hours": 19, "baseline_minutes": 2, "soak_minutes": 4, "check_minutes": 2, "after_minutes": 2}
    | {"stages_percent": [10, 50, 100]}
)
FLEET = SHIPPED.model_copy(update={"canary": QUICK})


def plan(new, old="prm-hybrid-tuned", hosts=60, fleet=FLEET, **changes):
    return RolloutPlan(**{"fleet": fleet, "hosts": hosts, "old": old, "new": new} | changes,
                       shield=load_profile("responsive"))  # fmt: skip


@pytest.fixture(scope="module")
def always(make_bundle, onnx_writer, tmp_path_factory):
    """A sealed bundle that asks for one move for ever, wherever it is allowed."""
    pytest.importorskip("onnxruntime")
    from rlctl.agents.served.card import ObservationTable
    from rlctl.envs.observation import LAGS

    def make(name, value=1.0):
        wish = np.array([value * (move.name == name) for move in MOVES])
        weight = np.zeros((len(MOVES), ObservationTable.here(LAGS).size))
        folder = tmp_path_factory.mktemp("bundles") / name.replace("%", "")
        return str(make_bundle(folder, policy=onnx_writer.linear(weight, wish), name=f"always-{name}".strip("%")))

    return make


@given(st.integers(0, 2**60), st.floats(0.1, 99.0), st.floats(0.1, 99.0))
@settings(max_examples=20)
def test_stages_hold_one_another_and_have_a_host_of_each_kind(seed, one, other):
    roster = Roster.drawn(SHIPPED, seed, range(120))
    small, large = sorted((one, other))
    first, then = hosts_of_stage(roster, small), hosts_of_stage(roster, large)
    assert not (first & ~then).any()
    assert set(roster.kinds[first]) == set(roster.kinds)
    assert hosts_of_stage(roster, 100.0).all()
    for kind in set(roster.kinds):
        here = roster.kinds == kind
        assert first[here].sum() in (1, np.ceil(here.sum() * small / 100.0 - 1e-9))


def test_a_difference_is_told_from_chance():
    rng = np.random.default_rng(5)
    kinds = np.repeat(np.arange(5), 40)
    treated = np.tile(np.arange(40) < 4, 5)
    noise = rng.exponential(0.5, 200) + 3.0 * kinds  # kinds differ by far more than the bundles do
    nothing = compare(noise, treated, kinds, 0.01, 0.0, 0)
    assert nothing.low < 0.0 < nothing.high
    assert nothing.chance > 0.01
    worse = compare(noise + 2.0 * treated, treated, kinds, 0.01, 0.0, 0)
    assert worse.chance <= 0.001
    assert worse.points == pytest.approx(nothing.points + 2.0)
    assert worse.low > 0.0
    assert compare(noise + 2.0 * treated, treated, kinds, 0.01, 2.5, 0).chance > 0.1


def test_false_alarms_are_as_rare_as_promised():
    """No bundle differs here; misses are rare and come in heaps, as they do."""
    rng = np.random.default_rng(6)
    kinds = np.repeat(np.arange(4), 15)
    treated = np.tile(np.arange(15) < 2, 4)
    heaps = (rng.random((300, 60)) < 0.1) * rng.exponential(5.0, (300, 60))
    alarms = sum(compare(one, treated, kinds, 0.05, 0.0, seed).chance <= 0.05 for seed, one in enumerate(heaps))
    assert alarms <= 25  # 15 are expected of 300, 25 once in 100


def test_kinds_without_hosts_on_both_sides_say_nothing():
    kinds, treated = np.array([0, 0, 0, 1]), np.array([True, False, False, True])
    assert compare(np.array([1.0, 0.0, 0.0, 99.0]), treated, kinds, 0.1, 0.0, 0).points == 1.0
    assert least_chance(treated, kinds) == pytest.approx(1.0 / 3.0)
    with pytest.raises(ValueError, match="with and without"):
        compare(np.zeros(4), np.ones(4, bool), kinds, 0.1, 0.0, 0)


FINE = Look(0.0, 1, 5, Effect(0.5, -0.5, 1.5, 0.2), Effect(3.0, -1.0, 6.0, 0.2), 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"misses": None, "be": None}, ""),
        ({"misses": Effect(0.5, 0.1, 1.5, 0.0005)}, "more missed windows"),
        ({"be": Effect(3.0, 2.1, 6.0, 0.0005)}, "less BE throughput"),
        ({"be": Effect(1.0, 0.5, 2.0, 0.0005)}, ""),
        ({"misses": Effect(-0.5, -1.0, -0.1, 0.0005)}, ""),
        ({"failed_ratio": 0.02}, "without a usable answer"),
        ({"override_ratio": 0.6}, "overridden"),
        ({"drift_ratio": 0.6}, "unlike its training"),
    ],
)
def test_what_speaks_against_going_on(changes, said):
    stop = judge(replace(FINE, **changes), CanaryPlan.model_validate({}), 0.001)
    assert said in stop
    assert bool(said) == bool(stop)


def test_a_bundle_that_starves_be_goes_back_from_the_first_hosts(always):
    """Of many: where BE has the least weight, its experience asks for more than such a bundle does."""
    told = []
    found = roll_out(plan(always("freeze"), hosts=200), say=told.append)
    assert "less BE throughput" in found.stopped
    assert found.looks[-1].stage == 1
    assert found.ever.sum() == hosts_of_stage(Roster.drawn(FLEET, 0, range(200)), 10.0).sum()
    assert found.host_minutes == found.ever.sum() * 2.0 * len(found.looks)
    assert found.be_hours < 0.0
    assert any("rolled back on" in line for line in told)


def test_a_bundle_without_answers_goes_back_at_the_first_look(make_bundle, onnx_writer, tmp_path):
    pytest.importorskip("onnxruntime")
    from rlctl.agents.served.card import ObservationTable
    from rlctl.envs.observation import LAGS

    weight = np.zeros((len(MOVES), ObservationTable.here(LAGS).size))
    weight[:, -5], weight[:, -6] = 3e38, -3e38  # flags of what is told of the experience
    bundle = str(make_bundle(tmp_path / "nan", policy=onnx_writer.linear(weight, np.zeros(len(MOVES)))))
    found = roll_out(plan(bundle, hosts=20))
    assert "without a usable answer" in found.stopped
    assert len(found.looks) == 1


def test_the_same_again_goes_through_and_costs_nothing():
    told = []
    found = roll_out(plan("greedy-shield", old="greedy-shield", hosts=30, fleet=patient()), say=told.append)
    assert found.stopped == ""
    assert found.ever.all()
    assert found.missed_windows == found.missed_without
    assert found.be_hours == pytest.approx(0.0, abs=1e-9)
    assert [look.stage for look in found.looks] == [1, 1, 2, 2, 3, 3]
    assert found.looks[-1].misses is None
    assert told[-1].endswith("promoted: all 30 hosts have it")


def patient():
    """Overrides are put up with: greedy-shield is all overrides."""
    return FLEET.model_copy(update={"canary": QUICK.model_copy(update={"most_override_ratio": 1.0})})


@pytest.mark.slow
def test_no_number_depends_on_the_pieces_or_on_who_does_them(always):
    asked = plan(always("freeze"), hosts=20)
    expected = roll_out(asked).as_json()
    assert roll_out(asked, Workforce(3, lambda function, items: enumerate(map(function, items)))).as_json() == expected
    with workforce(2) as workers:
        assert roll_out(asked, workers).as_json() == expected


@pytest.mark.ray
def test_ray_comes_to_the_same(always, ray_cluster):
    asked = plan(always("freeze"), hosts=24)
    with workforce(ray=ray_cluster.address) as workers:
        assert roll_out(asked, workers).as_json() == roll_out(asked).as_json()


def test_a_fleet_without_hosts_to_compare_with_is_refused(capsys):
    assert main(["fleet", "canary", "--from", "frozen", "--to", "static", "--hosts", "4"]) == 78
    assert "give more hosts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "hosts"), [({"false_alarm_ratio": 0.0001}, 60), ({"check_minutes": 0.5, "soak_minutes": 600}, 60)]
)
def test_a_fleet_that_could_never_tell_a_regression_is_refused(changes, hosts):
    never = FLEET.model_copy(update={"canary": QUICK.model_copy(update=changes)})
    with pytest.raises(ConfigError, match="no stage could tell a regression"):
        roll_out(plan("static", old="frozen", hosts=hosts, fleet=never))


@pytest.mark.parametrize("name", ["weights", "none", "prm-eris"])
def test_who_is_more_than_a_policy_is_not_rolled_out(name, capsys):
    assert main(["fleet", "canary", "--from", name, "--to", "static", "--hosts", "60"]) == 78
    assert f"{name}: of no bundle's kind" in capsys.readouterr().err


def test_a_bundle_that_is_refused_runs_nowhere(always, tmp_path):
    folder = tmp_path / "damaged"
    folder.mkdir()
    for name in ("card.json", "policy.onnx"):
        data = (tmp_path.__class__(always("thaw")) / name).read_bytes()
        (folder / name).write_bytes(data if name == "card.json" else data[:-1] + b"x")

    def never(function, items):
        raise AssertionError("it ran")

    with pytest.raises(BundleError, match="damaged or replaced"):
        roll_out(plan(str(folder)), Workforce(1, never))
    assert main(["fleet", "canary", "--from", "frozen", "--to", str(folder)]) == 78


@pytest.mark.parametrize(("new", "code"), [("static", 0), ("frozen", 1)])
def test_the_exit_code_says_what_became_of_it(new, code, tmp_path, capsys):
    text = """\
name: quick
regions: {here: {share: 1}}
kinds:
  - {name: one, like: large, share: 1, load: {low_ratio: [0.2, 0.3], high_ratio: [0.5, 0.6]}}
canary: {begin_hours: 1, baseline_minutes: 1, soak_minutes: 1, check_minutes: 1, after_minutes: 1,
         stages_percent: [10, 50, 100]}
"""
    (tmp_path / "fleet.yaml").write_text(text)
    asked = ["fleet", "canary", "--fleet", str(tmp_path / "fleet.yaml"), "--from", "static", "--to", new]
    assert main([*asked, "--hosts", "40", "--workers", "1", "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert found["promoted"] == (code == 0)
    assert found["hosts_ever_on_new"] == (40 if code == 0 else 4)
