"""The documentation's own code, which is beside the pages and not installed."""

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"

if (DOCS / "rlctl_docs").is_dir():
    sys.path.insert(0, str(DOCS))
else:  # a guest, a wheel
    collect_ignore_glob = ["test_*.py"]
