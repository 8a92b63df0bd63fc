"""The command `rlctl` when it is given a mistake."""

from __future__ import annotations

import pytest

from rlctl.cli import main


def refused(capsys: pytest.CaptureFixture[str], code: int, words: list[str], *parts: str) -> str:
    """Assert that a command ends with a code and one line of error that has these parts; gives what is on stdout."""
    assert main(words) == code
    out, err = capsys.readouterr()
    assert err.startswith("rlctl: error: ")
    assert err.count("\n") == 1
    assert all(part in err for part in parts), err
    return out
