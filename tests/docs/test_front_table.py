"""The README's front says what the stored results say."""

from rlctl_docs.blocks import ROOT
from studies.front_table import with_table


def test_table_shows_the_stored_results():
    text = (ROOT / "README.md").read_text()
    assert with_table(text) == text, "run scripts/studies/front_table.py"
