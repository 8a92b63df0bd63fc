"""The measured surface: a wrong file is told by its line, and the shipped profiles are as near as they claim to be."""

import math
from pathlib import Path

import pytest

from rlctl.envs.errors import ConfigError
from rlctl.envs.sim.fit import fit
from rlctl.envs.sim.profile import load_profile
from rlctl.envs.sim.residuals import MANY_SEEDS, Regime, agreement, by_regime, residuals
from rlctl.envs.sim.surface import outside, read_surface, region_of, set_aside, write_surface
from tests.doubles.knee_model import held_ratio, knee_rps

SHARED = Path(__file__).parents[2] / "fixtures" / "surface" / "host_surface.csv"
HEADER = "cfg,rate,be,cpuset,quota,period,shares,win,sent,p95,lc_cpu,be_cpu\n"
ROWS = """mc,5000,cpu2,0,25,10000,1024,0,5100,900.0,.18,.24
mc,5000,cpu2,0,25,10000,1024,1,5000,1000.0,.28,.25
mc,5000,cpu2,0,25,10000,1024,2,5200,1200.0,.30,.25
mc,18000,cpu2,0-1,-1,100000,1024,1,18000,50000.0,.65,.72
mc,18000,none,-,0,100000,1024,1,18000,400.0,.76,0
"""


@pytest.fixture(scope="module")
def profiles():
    return {"mc": load_profile("two-core-host"), "nginx": load_profile("two-core-nginx")}


@pytest.fixture
def write(tmp_path):
    def written(text):
        path = tmp_path / "surface.csv"
        path.write_text(text)
        return path

    return written


def test_windows_become_cells_but_the_first(write):
    low, absent, both = read_surface(write(HEADER + ROWS))
    assert (low.tail_latency_seconds, low.sent_rps, len(low.windows)) == (pytest.approx(1.1e-3), 5100.0, 2)
    assert (low.own_cpus, low.shared_cpus, low.quota_cpus, low.period_seconds) == (0.0, 1.0, 0.25, 0.010)
    assert (both.own_cpus, both.shared_cpus, both.quota_cpus) == (1.0, 1.0, math.inf)
    assert absent.frozen
    assert str(low) == "mc 5000 rps, 25 % of 10 ms on 0 own + 1 shared CPU"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEADER.replace("p95,", ""), ":1: has no column p95"),
        (HEADER + ROWS.replace("1000.0", "fast"), ":3: p95 is 'fast', not a number"),
        (HEADER + ROWS.replace("1000.0", "nan"), ":3: p95 is nan"),
        (HEADER + ROWS.replace("1000.0", "0.0"), ":3: p95 is 0.0; it is at least"),
        (HEADER + ROWS.replace("cpu2,0-1", "cpu2,-"), ":5: cpuset is empty"),
        (HEADER + ROWS.replace("cpu2,0-1", "cpu2,a"), ":5: 'a' is no list of CPUs"),
        (HEADER + "mc,5000,cpu2,0,25\n", ":2: "),
        (HEADER, "no settled window"),
    ],
)
def test_wrong_file_is_one_line_with_its_place(write, text, said):
    with pytest.raises(ConfigError, match=r"surface\.csv") as error:
        read_surface(write(text))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_written_can_be_read(tmp_path):
    row = {"cfg": "nginx", "rate": 300, "be": "cpu", "cpuset": "0", "quota": 25, "period": 10000, "shares": 1024,
           "win": 1, "sent": 301, "p95": 5000, "lc_cpu": 0.4, "be_cpu": 0.25, "lc_cpus": 1}  # fmt: skip
    write_surface(tmp_path / "new" / "sweep.csv", [row, {**row, "win": 2}])
    (cell,) = read_surface(tmp_path / "new" / "sweep.csv")
    assert (cell.service, len(cell.windows), cell.lc_cpus) == ("nginx", 2, 1.0)


def test_cell_does_not_depend_on_others(write, profiles):
    cells = read_surface(write(HEADER + ROWS))
    together = residuals(cells, profiles)
    assert [residuals([cell], profiles)[0].tail_latency_seconds for cell in cells] == [
        one.tail_latency_seconds for one in together
    ]


def test_a_service_without_a_profile_is_told(write, profiles):
    with pytest.raises(ConfigError, match="'redis' begins with none of mc, nginx"):
        residuals(read_surface(write(HEADER + ROWS.replace("mc,", "redis,"))), profiles)


def test_the_shipped_profiles_match_the_measured_surface(profiles):
    """What issue 3 asks for: 68, 90 and 90 %."""
    found = residuals(read_surface(SHARED), profiles, MANY_SEEDS)
    every = agreement(found)
    assert every.cells == 88
    assert every.within_percent >= 68.0
    assert every.side_percent >= 90.0
    assert every.be_percent >= 90.0
    assert 0.8 < every.median_ratio < 1.25
    assert set(by_regime(found)) == set(Regime) - {Regime.LINK, Regime.LINK_FULL}


def test_cells_kept_aside_are_met_nearly_as_well(profiles):
    """A fit that only knew its own cells would fall apart on the others."""
    kept, aside = set_aside(read_surface(SHARED))
    assert (len(kept), len(aside)) == (60, 28)
    assert not set(map(str, kept)) & set(map(str, aside))
    found = agreement(residuals(aside, profiles, MANY_SEEDS))
    assert found.within_percent >= 65.0
    assert found.side_percent >= 80.0


def test_both_profiles_share_a_cpu_in_one_way(profiles):
    """One kernel: no service has a sharing constant of its own."""
    assert profiles["mc"].sharing == profiles["nginx"].sharing


@pytest.mark.slow
@pytest.mark.parametrize("service", ["mc", "nginx"])
def test_maximum_load_is_held_by_its_model(profiles, service):
    """It is the measured one; the models' own knees are somewhat higher."""
    profile = profiles[service]
    knee = knee_rps(profile)
    assert profile.lc.max_load_rps <= knee
    assert held_ratio(profile, 0.9 * knee) >= 0.99 > held_ratio(profile, 1.1 * knee)


def test_a_target_that_no_load_meets_is_told(profiles):
    with pytest.raises(ConfigError, match=r"misses 0\.001 ms at every load"):
        knee_rps(profiles["mc"].but(target_seconds=1e-6))


@pytest.mark.slow
def test_a_fit_finds_constants_that_it_is_shown(write, profiles):
    """Cells made by a known host: the fit moves a wrong start most of the way back, and the same way each time."""
    truth = profiles["mc"]
    cells = read_surface(SHARED)[:40:4]
    shown = residuals(cells, {"mc": truth})
    text = HEADER + "".join(
        f"{cell.service},{cell.sent_rps},{'none' if cell.frozen else 'cpu2'},0,"
        f"{-1 if math.isinf(cell.quota_cpus) else 100 * cell.quota_cpus},{1e6 * cell.period_seconds},1024,1,"
        f"{cell.sent_rps},{1e6 * one.tail_latency_seconds},{one.lc_cpus},{one.be_cpus}\n"
        for cell, one in zip(cells, shown, strict=True)
        if cell.shared_cpus == 1.0 and not cell.own_cpus and cell.weight_ratio == 1.0
    )
    made = read_surface(write(text))
    wrong = {"mc": truth.but(slice_seconds=2.0 * truth.sharing.slice_seconds, service_seconds=27e-6)}
    found, again = (fit(made, wrong, shared=("slice_seconds",), own=("service_seconds",), calls=60) for _ in range(2))
    assert found == again
    assert found.ended < 0.2 * found.begun
    assert found.profiles["mc"].lc.service_seconds == pytest.approx(truth.lc.service_seconds, rel=0.05)


def test_a_run_outside_the_fitted_region_is_told(profiles):
    profile = profiles["mc"].model_copy(update={"fitted": {"load_rps": (5000.0, 20000.0)}}).but(max_load_rps=20000.0)
    assert outside(profile, 0.25, 1.0) == []
    low, high = outside(profile, 0.1, 1.2)
    assert "falls to 2000 rps" in low
    assert "rises to 24000 rps" in high
    assert outside(profile.model_copy(update={"fitted": {}}), 0.0, 9.0) == []


def test_shipped_region_is_that_of_fitted_cells(profiles):
    kept, _ = set_aside(read_surface(SHARED))
    for beginning, profile in profiles.items():
        region = region_of([cell for cell in kept if cell.service.startswith(beginning)])
        assert {name: list(bounds) for name, bounds in profile.fitted.items()} == {
            name: list(bounds) for name, bounds in region.items()
        }
