"""A tour says what it needs before it installs anything; whole, the live ones take root."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_SECONDS

TOUR = Path(__file__).resolve().parents[2] / "scripts" / "tour"

pytestmark = pytest.mark.skipif(not TOUR.exists(), reason="no scripts beside the tests (a guest, a wheel)")


def tour(*words, **environment):
    return subprocess.run(
        [TOUR, *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_help_says_what_each_needs():
    done = tour("--help")
    assert done.returncode == 0
    assert "Needs root, nginx" in done.stdout


@pytest.mark.parametrize("name", ["operate", "own-host"])
def test_without_root_it_installs_nothing(tmp_path, name):
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    done = tour(name, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == os.EX_NOPERM
    assert f"sudo scripts/tour {name}" in done.stderr


@pytest.mark.parametrize("words", [("fly",), (), ("train", "--seeds", "1"), ("research", "--timesteps", "5")])
def test_what_it_does_not_know_is_one_line(words):
    done = tour(*words)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
