"""Logging to stderr, for a terminal and for journald."""

from __future__ import annotations

import logging
import os
import select
import sys
from collections.abc import Mapping
from typing import TextIO

from rlctl.envs.errors import printable

# sd-daemon(3): a line that begins with <n> has the syslog priority n.
_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.DEBUG, 7))


class _OneLine(logging.Formatter):
    """Whatever a message quotes (names of processes and groups, keys of a file) neither begins a line nor steers."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return printable(super().formatMessage(record))


class _Journald(_OneLine):
    """Priority prefix; journald adds the time itself."""

    def format(self, record: logging.LogRecord) -> str:
        priority = next((n for level, n in _PRIORITIES if record.levelno >= level), 7)
        return f"<{priority}>{super().format(record)}"


class NeverWaits(logging.StreamHandler[TextIO]):
    """Leaves a line out rather than wait for its reader: a terminal at Ctrl-S must not hold up the control loop."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, if it is taken at once."""
        if takes(self.stream):
            super().emit(record)


def takes(stream: TextIO) -> bool:
    """True when a line is taken without waiting, as far as can be told: up to 4 kB into a pipe."""
    try:
        return bool(select.select([], [stream], [], 0.0)[1])
    except (OSError, ValueError):  # no file at all, or a number beyond what select takes
        return True


def log_to_stderr(level: int = logging.WARNING, environ: Mapping[str, str] = os.environ) -> None:
    """Send the log of rlctl to stderr; a later call only changes the level.

    `JOURNAL_STREAM` in the environment means that systemd reads stderr.
    """
    logger = logging.getLogger("rlctl")
    logger.setLevel(min(level, logger.level or level))
    if logger.handlers:
        return
    handler = NeverWaits(sys.stderr)
    journald = "JOURNAL_STREAM" in environ
    handler.setFormatter(_Journald("%(message)s") if journald else _OneLine("%(asctime)s %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
