"""Logging to stderr, for a terminal and for journald."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

__all__ = ["log_to_stderr"]

# sd-daemon(3): a line that begins with <n> has the syslog priority n.
_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.DEBUG, 7))


class _Journald(logging.Formatter):
    """Priority prefix; journald adds the time itself."""

    def format(self, record: logging.LogRecord) -> str:
        priority = next((n for level, n in _PRIORITIES if record.levelno >= level), 7)
        return f"<{priority}>{super().format(record)}"


def log_to_stderr(level: int = logging.WARNING, environ: Mapping[str, str] = os.environ) -> None:
    """Send the log of rlctl to stderr; a later call only changes the level.

    Args:
        level: Least level shown.
        environ: `JOURNAL_STREAM` in it means that systemd reads stderr.
    """
    logger = logging.getLogger("rlctl")
    logger.setLevel(min(level, logger.level or level))
    if logger.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    journald = "JOURNAL_STREAM" in environ
    handler.setFormatter(
        _Journald("%(message)s") if journald else logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S")
    )
    logger.addHandler(handler)
