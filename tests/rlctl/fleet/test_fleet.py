"""`rlctl fleet run`: host k is host k, and no number depends on who simulated what beside whom."""

import json
import subprocess
import sys
from dataclasses import fields

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents import catalogue
from rlctl.cli import main
from rlctl.envs.errors import ConfigError
from rlctl.envs.sim.seeds import Kind, kind_of
from rlctl.fleet.config import load_fleet
from rlctl.fleet.fleet_score import as_json, figures_of, groups_of, over_hosts, score
from rlctl.fleet.plan import STRETCH_SECONDS, FleetPlan
from rlctl.fleet.roster import FleetHosts, Roster
from rlctl.fleet.simulation import Controlled, Tally, pieces_of, run_fleet
from rlctl.fleet.table import tables
from rlctl.safety.profile import load_profile
from rlctl.work.workforce import workforce
from tests.waiting import PATIENCE_SECONDS

FLEET = load_fleet()
NEEDED = [name for name in ("prm-hybrid-tuned", "greedy-shield", "ppo") if not catalogue.lacking(name)]


def plan(hosts=12, managers=tuple(NEEDED), **changes):
    return FleetPlan(**({"fleet": FLEET, "hosts": hosts, "hours": 0.25, "managers": managers} | changes),
                     shield=load_profile("responsive"))  # fmt: skip


@pytest.fixture(scope="module")
def outcome():
    return run_fleet(plan())


def same(one, other):
    return all(np.array_equal(getattr(one, part.name), getattr(other, part.name)) for part in fields(Tally))


@given(st.integers(0, 2**60), st.lists(st.integers(0, 5000), min_size=1, max_size=8, unique=True))
def test_who_host_k_is_follows_from_the_seed_and_k(seed, places):
    among, each = Roster.drawn(FLEET, seed, range(5001)), Roster.drawn(FLEET, seed, places)
    for name in ("keys", "kinds", "ahead_hours"):
        assert np.array_equal(getattr(each, name), getattr(among, name)[places])
    assert {kind_of(int(key)) for key in each.keys} == {Kind.EVALUATION}


@pytest.mark.parametrize("hosts", [50, 137, 500])
def test_any_number_of_first_hosts_has_the_kinds_by_their_shares(hosts):
    kinds = np.bincount(Roster.drawn(FLEET, 4, range(hosts)).kinds, minlength=len(FLEET.kinds))
    shares = np.array([kind.share for kind in FLEET.kinds])
    assert np.abs(kinds - hosts * shares / shares.sum()).max() < 3.0


def test_another_seed_is_another_fleet():
    one, other = (Roster.drawn(FLEET, seed, range(100)) for seed in (0, 1))
    assert not set(one.keys.tolist()) & set(other.keys.tolist())


@pytest.mark.parametrize("name", NEEDED)
@pytest.mark.parametrize("sizes", [[1] * 8, [3, 5]])
def test_no_number_depends_on_how_many_hosts_are_simulated_together(name, sizes):
    def tally(first, count):
        roster = Roster.drawn(FLEET, 2, range(first, first + count))
        hosts = FleetHosts(FLEET, roster, begin_seconds=20.0 * 3600)
        return Controlled(hosts, (name,), load_profile("responsive")).run(150)

    begins = np.cumsum([0, *sizes[:-1]]).tolist()
    each = [tally(first, count) for first, count in zip(begins, sizes, strict=True)]
    assert same(Tally.beside(each), tally(0, 8))


def test_more_hosts_change_nothing_about_the_first(outcome):
    found = run_fleet(plan(hosts=20, managers=("prm-hybrid-tuned",))).results["prm-hybrid-tuned"].tally
    first = Tally(*(getattr(found, part.name)[:, :12] for part in fields(Tally)))
    assert same(first, outcome.results["prm-hybrid-tuned"].tally)


@pytest.mark.slow
def test_processes_come_to_the_same(outcome):
    with workforce(2) as workers:
        found = run_fleet(plan(), workers, most=6)
    for name in NEEDED:
        assert same(found.results[name].tally, outcome.results[name].tally), name


def test_killed_it_leaves_no_process_behind():
    """Those of a pool wait for work forever, and hold each other's pipes open."""
    code = "import time; from rlctl.work.workforce import workforce\nwith workforce(2) as workers: "
    code += "print(workers.map(time.sleep, [0.0] * 2), flush=True); time.sleep(600)"
    killed = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    with killed:
        assert killed.stdout.readline()
        workers = [one for one in psutil.Process(killed.pid).children() if "spawn_main" in " ".join(one.cmdline())]
        killed.kill()
    assert len(workers) == 2
    assert psutil.wait_procs(workers, timeout=PATIENCE_SECONDS)[1] == []


@pytest.mark.ray
def test_ray_comes_to_the_same(outcome, ray_cluster):
    with workforce(ray=ray_cluster.address) as workers:
        found = run_fleet(plan(), workers, most=6)
    for name in NEEDED:
        assert same(found.results[name].tally, outcome.results[name].tally), name


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 50))
def test_pieces_hold_every_host_once(hosts, workers, most):
    asked = plan(hosts=hosts, managers=("frozen", "none"))
    pieces = list(pieces_of(asked, workers, most))
    for name in asked.managers:
        places = [k for piece in pieces if piece.manager == name for k in range(piece.first, piece.first + piece.count)]
        assert places == list(range(hosts))
    assert max(piece.count for piece in pieces) <= most
    assert len(pieces) >= min(workers, hosts)


def test_the_kinds_that_learning_is_on_are_told_from_the_others():
    untrained = {kind.name: kind.untrained for kind in FLEET.kinds}
    assert [name for name, leaves in untrained.items() if not leaves] == [
        "cache-large", "cache-medium", "cache-shared", "web-shared", "memory"
    ]  # fmt: skip
    assert untrained["cache-strict"] == ("target_seconds",)
    assert set(untrained["late-sensors"]) == {"delay_ticks", "missing_ratio"}
    assert {"lc_cpus", "host_cpus", "threads"} <= set(untrained["cache-huge"])


def test_hosts_of_a_fleet_have_the_sizes_and_constants_of_their_kind():
    roster = Roster.drawn(FLEET, 0, range(60))
    hosts = FleetHosts(FLEET, roster)
    for place, kind in enumerate(FLEET.kinds):
        mine = roster.kinds == place
        assert {one.cpus for one in np.array(hosts.limits.each, object)[mine]} == {round(kind.drawn_from.be.host_cpus)}
        for name, (low, high) in kind.drawn_from.ranges.items():
            values = getattr(hosts.constants, name)[mine]
            assert (values >= low).all()
            assert (values <= high).all()


def test_figures_are_those_of_the_tally():
    ones = {part.name: np.zeros((2, 3)) for part in fields(Tally)}
    windows = 2 * STRETCH_SECONDS
    ones |= {
        "missed": np.array([[9.0, 0.0, 0.0], [9.0, 0.0, 18.0]]),
        "worst_ratio": np.array([[3.0, 0.5, 0.7], [2.0, 0.5, 4.0]]),
        "be_work": np.full((2, 3), 450.0),
        "load": np.full((2, 3), 90.0),
    }
    figures = figures_of(Tally(**ones), np.array([36.0, 36.0, 1.0]), 36.0)
    assert figures.qos_percent == pytest.approx(100.0 - 100.0 * np.array([18.0, 0.0, 18.0]) / windows)
    found = score(figures, np.ones(3, bool))
    assert found.qos.mean == pytest.approx(100.0 - 100.0 * 36.0 / (3 * windows))
    assert found.be.mean == pytest.approx(50.0)
    assert found.emu.mean == pytest.approx(60.0)
    assert found.machines.mean == pytest.approx(0.5 + 0.5 + 0.5 / 36.0)
    assert (found.worst_host_percent, found.worst_ratio) == (pytest.approx(99.0), 4.0)
    assert found.below_percent == 0.0
    assert found.qos.low < found.qos.mean < found.qos.high <= 100.0


def test_nothing_missed_is_not_without_doubt():
    nothing = Tally.stacked([Tally.none(4)])
    found = score(figures_of(nothing, np.ones(4), 1.0), np.ones(4, bool))
    assert found.qos.mean == found.qos.high == 100.0
    assert 99.0 < found.qos.low < 100.0


def test_one_host_says_nothing_of_the_others():
    assert over_hosts(np.array([3.0])) == (3.0, -np.inf, np.inf)


def test_tables_tell_hosts_that_were_never_trained_on_apart(outcome):
    text = tables(outcome)
    assert "| trained on " in text
    assert "| never trained on " in text
    assert "target_seconds" in text
    groups = groups_of(FLEET, outcome.roster)
    assert sum(int(groups[name].sum()) for name in ("trained on", "never trained on")) == 12
    data = json.loads(json.dumps(as_json(outcome)))
    assert data["managers"]["greedy-shield"]["groups"]["never trained on"]["hosts"] > 0


def test_the_command_prints_tables_and_writes_what_it_is_asked_for(tmp_path, capsys):
    asked = ["--hosts", "3", "--hours", "0.25", "--managers", "frozen,none", "--workers", "1"]
    assert main(["fleet", "run", *asked, "--json", str(tmp_path / "f.json"), "--report", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr()
    assert "machines saved" in shown.out
    assert "MB" in shown.err
    found = json.loads((tmp_path / "f.json").read_text())
    assert (found["hosts"], found["hours"]) == (3, 0.25)
    assert found["managers"]["frozen"]["be"]["mean"] == 0.0
    assert {one.name for one in (tmp_path / "out").iterdir()} == {"fleet.json", "tables.md", "day.png"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--managers", "oracle"], "'oracle' is a bound"),
        (["run", "--managers", "frozen,frozen"], "twice; a bundle goes by"),
        (["run", "--managers", "prm-thesis"], "threshold model"),
        (["run", "--managers", ","], "names none"),
        (["run", "--fleet", "nowhere"], "no fleet 'nowhere'; there are default"),
        (["run", "--shield", "nowhere"], "no safety profile"),
        (["canary", "--from", "frozen", "--to", "./no/bundle"], "policy.onnx"),
        pytest.param(
            ["canary", "--from", "frozen", "--to", "./no/bundle", "--ray", "auto"],
            "give the path at which every node",
            marks=pytest.mark.ray,
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(arguments, said, capsys):
    assert main(["fleet", *arguments]) == 78
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("action", [["run"], ["canary", "--from", "frozen", "--to", "static"]])
def test_without_ray_it_is_said_what_to_install(action, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["fleet", *action, "--ray", "local"]) == 78
    assert "pip install 'rlctl[distributed]'" in capsys.readouterr().err


SMALL = """\
name: small
regions:
  here: {share: 1}
kinds:
  - name: one
    like: large
    share: 1
    load: {low_ratio: [0.2, 0.2], high_ratio: [0.5, 0.5]}
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("share: 1}", "shares: 1}", ":3: unknown key 'regions.here.shares'; did you mean 'share'?"),
        ("like: large", "like: larger", "no kind before it, nor one of training"),
        ("[0.5, 0.5]", "[0.5, 1.5]", ":8: kinds.0.load"),
        ("share: 1\n", "share: 1\n    constants: [3]\n", ":8: kinds.0.constants"),
        ("share: 1\n", "share: 1\n    constants: {cpu: 3}\n", "there is no constant 'cpu'"),
        ("share: 1\n", "share: 1\n    constants: {quantile_ratio: 0.99}\n", "quantile_ratio is 0.99"),
        ("kinds:\n", "canary: {soak_minutes: 15}\nkinds:\n", "soak_minutes: is no multiple"),
        ("kinds:\n", "canary: {stages_percent: [5, 1, 100]}\nkinds:\n", "do not rise"),
        ("kinds:\n", "canary: {begin_hours: 0.5}\nkinds:\n", "begin later"),
    ],
)
def test_a_slip_in_a_fleet_is_told_with_its_place(old, new, said, tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(SMALL.replace(old, new, 1))
    with pytest.raises(ConfigError) as error:
        load_fleet(str(path))
    assert said in str(error.value)
    assert str(path) in str(error.value)


def test_a_profile_of_ones_own_stands_beside_the_fleet(tmp_path):
    from importlib.resources import files

    shipped = files("rlctl") / "configs" / "plants" / "two-core-nginx.yaml"
    (tmp_path / "mine.yaml").write_text(shipped.read_text())
    path = tmp_path / "fleet.yaml"
    path.write_text(SMALL.replace("like: large", "profile: mine.yaml\n    weight: equal"))
    assert load_fleet(str(path)).kinds[0].drawn_from.lc.max_load_rps == 550
