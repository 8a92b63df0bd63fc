"""How tests wait: until they see what they need, and never so short that a busy machine is too slow for them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import TypeVar

Seen = TypeVar("Seen")

PATIENCE_SECONDS = 300.0
"""Only ends a hang: `rlctl serve` took two minutes to start in the guest of a host with a load of 50."""

PAUSE_SECONDS = 0.02


def until(condition: Callable[[], Seen], process: subprocess.Popen[str] | None = None) -> Seen:
    """The first true answer of a condition on what another process or thread does.

    Args:
        condition: Asked again and again.
        process: Who is to make it true; its end before that is the failure, told with its standard error.

    Raises:
        AssertionError: It did not become true in time, or the process has ended.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (seen := condition()):
        assert process is None or process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline, f"did not happen in {PATIENCE_SECONDS:g} s"
        time.sleep(PAUSE_SECONDS)
    return seen
