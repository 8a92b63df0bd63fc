"""Scripts begin with `from in_venv import ROOT`: they go on with the Python of `.venv`, and with this checkout."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The checkout."""

_VENV = ROOT / ".venv"

_runs = Path(sys.argv[0]).resolve().parent == ROOT / "scripts"  # else it is a test that reads a script
if _runs and (_VENV / "bin/python").exists() and Path(sys.prefix) != _VENV:
    os.execv(_VENV / "bin/python", [str(_VENV / "bin/python"), *sys.argv])
sys.path.insert(0, str(ROOT))
