"""The tour through the operating role says what is missing to those who cannot take it; whole, it takes root."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_SECONDS

TOUR = Path(__file__).resolve().parents[2] / "scripts" / "tour-operate"


@pytest.fixture(autouse=True)
def _in_a_checkout():
    if not TOUR.exists():
        pytest.skip("no scripts beside the tests (a guest, a wheel)")


def test_its_help_needs_nothing_and_says_what_it_needs():
    done = subprocess.run(
        [sys.executable, TOUR, "--help"], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert "Needs root" in done.stdout
    assert "nginx" in done.stdout


def test_without_root_it_says_so_before_it_installs_anything(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(TOUR)])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(TOUR))
    assert left.value.code == os.EX_NOPERM
    assert "sudo scripts/tour-operate" in capsys.readouterr().err
