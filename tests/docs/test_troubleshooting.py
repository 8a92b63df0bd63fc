"""Who searches the troubleshooting page for a message finds it: its headings are what the code still says."""

import re

import pytest
from rlctl_docs.blocks import DOCS, ROOT

PAGE = DOCS / "troubleshooting.md"
FLOORS = ("envs", "safety", "agents", "rlctl")
SEAM = re.compile(r'"\s+f?r?"')
"""Between two halves of a message that Python puts together."""


@pytest.fixture(scope="module")
def source():
    files = (path for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))
    return SEAM.sub("", "\n".join(path.read_text() for path in files)).replace("{{", "{").replace("}}", "}")


def headings():
    return [line.removeprefix("### ") for line in PAGE.read_text().splitlines() if line.startswith("### ")]


@pytest.mark.parametrize("heading", headings())
def test_the_heading_is_still_said(heading, source):
    parts = [re.escape(part.strip()) for part in heading.split("...") if part.strip()]
    assert re.search(".{1,80}?".join(parts), source), f"no message says {heading!r} any more; change the heading"


def test_no_message_has_two_headings():
    assert len(set(headings())) == len(headings())
