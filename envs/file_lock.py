"""A file that one process at a time has."""

from __future__ import annotations

import fcntl
from typing import IO, Any


def is_ours(file: IO[Any]) -> bool:
    """Whether no other process has this open file, and none gets it until it is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    return True
