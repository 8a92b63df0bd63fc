"""`scripts/compare-surface` judges the shipped profiles by the sweeps of this repository."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "scripts/compare-surface"), run_name="compare_surface")


def test_profile_that_does_not_fit_fails(script, monkeypatch, capsys):
    asked = [str(ROOT / "tests/fixtures/surface/network-rein.csv")]
    assert script["main"](asked) == 0
    monkeypatch.setitem(script["main"].__globals__, "PROFILES", ("memcached=two-core-host",))
    assert script["main"](asked) == 1
    said = capsys.readouterr()
    assert "median x" in said.out
    assert "the simulator is not near enough" in said.err


@pytest.mark.slow
def test_thrice_swept_link_is_fitted_as_said(script, capsys):
    assert script["main"]([str(ROOT / "tests/fixtures/surface/network-three.csv"), "--fit"]) == 0
    table = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    agreed = {row[1].strip(): (float(row[3]), float(row[4])) for row in table[1:]}
    for cells in ("all", "fitted", "kept aside"):
        within, side = agreed[cells]
        assert within >= 85.0
        assert side >= 93.0
