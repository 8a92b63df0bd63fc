"""The documentation's own code, which is beside the pages and not installed."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

if (ROOT / "docs" / "rlctl_docs").is_dir():
    sys.path.insert(0, str(ROOT / "docs"))
else:
    pytest.skip("no docs beside the tests (a guest, a wheel)", allow_module_level=True)
