"""A tour says what it takes before it installs anything."""

import subprocess
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_SECONDS

TOUR = Path(__file__).resolve().parents[2] / "scripts" / "tour"

pytestmark = pytest.mark.skipif(not TOUR.exists(), reason="no scripts beside the tests (a guest, a wheel)")


def tour(*words):
    return subprocess.run(
        [TOUR, *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_help_says_what_each_does():
    done = tour("--help")
    assert done.returncode == 0
    assert "scripts/tour train" in done.stdout


@pytest.mark.parametrize("words", [("fly",), (), ("train", "--seeds", "1"), ("research", "--timesteps", "5")])
def test_what_it_does_not_know_is_one_line(words):
    done = tour(*words)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
