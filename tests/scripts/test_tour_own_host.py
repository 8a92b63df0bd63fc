"""The way to a policy for one's own host says what it cannot do before it begins; whole, it takes root."""

import os
import runpy
import sys
from pathlib import Path

import pytest

from rlctl.envs.errors import ConfigError

TOUR = Path(__file__).resolve().parents[2] / "scripts" / "tour-own-host"


@pytest.fixture
def tour(monkeypatch):
    if not TOUR.exists():
        pytest.skip("no scripts beside the tests (a guest, a wheel)")
    monkeypatch.syspath_prepend(str(TOUR.parent))
    monkeypatch.setattr(sys, "argv", [str(TOUR), "--scenario", "thesis"])
    return runpy.run_path(str(TOUR))["main"]


def test_without_root_it_says_so(tour, monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert tour() == os.EX_NOPERM
    assert "sudo scripts/tour-own-host" in capsys.readouterr().err


def test_a_simulated_host_is_nobodys_own(tour, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ConfigError, match="runs in the simulator"):
        tour()
