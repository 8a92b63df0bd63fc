"""What `scripts/mutants` breaks is in the code: else nobody would notice that it breaks nothing any more."""

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def test_each_mutant_names_code_that_is_there():
    mutants = yaml.safe_load((ROOT / "tests/mutants.yaml").read_text())
    assert [one for one in mutants if one["was"] not in (ROOT / one["file"]).read_text()] == []
    assert [one for one in mutants if not (ROOT / one["tests"]).exists()] == []
