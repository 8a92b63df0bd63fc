"""Scripts begin with `from in_venv import ROOT`: they go on with the Python of `.venv`, and with this checkout.

They end with `run_main(main)`.
"""

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
"""The checkout."""

_VENV = ROOT / ".venv"

_runs = Path(sys.argv[0]).resolve().parent == ROOT / "scripts"  # else it is a test that reads a script
if _runs and Path(sys.prefix) != _VENV:
    if (_VENV / "bin/python").exists():
        os.execv(_VENV / "bin/python", [str(_VENV / "bin/python"), *sys.argv])
    if find_spec("pydantic") is None:
        print(f"{Path(sys.argv[0]).name}: no .venv here: `scripts/install dev,train` makes it", file=sys.stderr)
        sys.exit(os.EX_CONFIG)
sys.path.insert(0, str(ROOT))


def run_main(main: Callable[[], int | None], ended: str = "ended") -> NoReturn:
    """Exit with what `main` returns; an error of rlctl's, or a file's, is one line, and Ctrl-C is `ended` and 130."""
    from rlctl.envs.errors import RlctlError

    name = Path(sys.argv[0]).name
    try:
        sys.exit(main())
    except (RlctlError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 1))
    except KeyboardInterrupt:
        print(f"{name}: {ended}", file=sys.stderr)
        sys.exit(130)
