"""The log on stderr: whatever is quoted in a message, it stays one line and steers no terminal."""

from __future__ import annotations

import io
import logging

import pytest

from rlctl.log.stderr import log_to_stderr


@pytest.mark.parametrize("environ", [{}, {"JOURNAL_STREAM": "8:1"}])
def test_name_with_line_feed_forges_no_line(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    logger, stream = logging.getLogger("rlctl"), io.StringIO()
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr("sys.stderr", stream)
    log_to_stderr(logging.INFO, environ)
    logger.warning("process %d (%s) is here", 7, "sh\n<3>BE is free\x1b[2J")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("process 7 (sh?<3>BE is free?[2J) is here")
