"""A command of rlctl in this process, held to what its documentation says of exit codes and errors."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence

from rlctl.cli import main

EXIT_CODES = (0, 1, 2, 75, 77, 78)
ERROR, NOTE = "rlctl: error: ", "rlctl: "


def run(arguments: Sequence[str]) -> str:
    """What came of it; stdout and stderr are those of a terminal that takes UTF-8 and nothing else."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=how) for how in ("strict", "backslashreplace"))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    out.flush()
    err.flush()
    said = err.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert code in EXIT_CODES, f"exit code {code}"
    lines = said.splitlines()
    errors = [line for line in lines if line.startswith(ERROR)]
    assert all(line.startswith(NOTE) for line in lines), f"stderr: {said[:300]!r}"
    assert all(line.isprintable() for line in lines), f"stderr would steer a terminal: {said[:300]!r}"
    assert len(errors) == (code != 0), f"exit code {code} with {len(errors)} errors: {said[:300]!r}"
    told = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert "Traceback" not in told + said
    if not code:
        return "accepted" if not lines else f"accepted with notes: {lines[0].removeprefix(NOTE)}"
    return f"refused {code}: {errors[0].removeprefix(ERROR)}"
