"""`scripts/soak`: a short one passes, and what it is there to find it finds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.judging import Judgement, Sample, finish, log_bytes
from tests.waiting import PATIENCE_SECONDS

SCRIPT = Path(__file__).parents[2] / "scripts/soak"
STEADY = [Sample(70 << 20, 50, 5)] * 30


@pytest.mark.slow
def test_fifteen_hundred_bad_ticks_leave_serve_small(tmp_path):
    output = tmp_path / "soak.json"
    words = [sys.executable, str(SCRIPT), "fake", "--ticks", "1500", "--json", str(output)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(output.read_text())
    assert found["complaints"] == []
    assert sum(found["acting"].values()) >= 1499
    assert {"ppo", "prm-hybrid-tuned"} <= set(found["acting"]), "both the policy and what it falls back to were there"
    assert {"disk full", "group comes", "group goes", "policy hangs"} <= set(found["happened"])


def complaints(samples):
    return list(Judgement.over(samples).complaints("controller"))


def test_what_stays_as_it_was_is_no_complaint():
    assert complaints(STEADY) == []


def test_scrapes_and_groups_are_no_leak():
    assert complaints([*STEADY, Sample(70 << 20, 90, 9), *STEADY, Sample(74 << 20, 90, 9)]) == []


def test_memory_that_was_given_back_was_taken_nevertheless():
    assert complaints([*STEADY, Sample(76 << 20, 50, 5), *STEADY]) == ["controller grew by 6.0 MB"]


@pytest.mark.parametrize(
    ("leaked", "what"), [(Sample(70 << 20, 51, 5), "descriptors"), (Sample(70 << 20, 50, 6), "threads")]
)
def test_one_that_never_comes_back_is_a_leak(leaked, what):
    (complaint,) = complaints([*STEADY, *[leaked] * 30])
    assert what in complaint


def test_a_log_beyond_its_bound_fails(tmp_path, capsys):
    for number in range(6):
        (tmp_path / f"ticks.jsonl.{number}").write_bytes(bytes(1 << 16))
    output = tmp_path / "soak.json"
    assert finish({}, {"controller": Judgement.over(STEADY)}, log_bytes(tmp_path), output) == 1
    assert "FAILED: the tick log exceeded its bound" in capsys.readouterr().out
    assert json.loads(output.read_text())["complaints"] == ["the tick log exceeded its bound"]
