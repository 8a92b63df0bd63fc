"""How tests wait: until they see what they need, and never so short that a busy machine is too slow for them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import TypeVar

from rlctl.envs.host.sensors.sensor import Sensor
from rlctl.envs.telemetry import Reading

Seen = TypeVar("Seen")
Kind = TypeVar("Kind", bound=Reading)

PATIENCE_SECONDS = 300.0
"""Only ends a hang: `rlctl serve` took two minutes to start in the guest of a host with a load of 50."""

PAUSE_SECONDS = 0.02


def until(condition: Callable[[], Seen], process: subprocess.Popen[str] | None = None) -> Seen:
    """The first true answer of a condition on what another process or thread does.

    Args:
        condition: Asked again and again.
        process: Who is to make it true. If it ends before that or takes too long, the failure has its standard error,
            and in the second case where each of its threads stood (a Python started with `-X faulthandler`).

    Raises:
        AssertionError: It did not become true in time, or the process has ended.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (seen := condition()):
        assert process is None or process.poll() is None, last_words(process)
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen in {PATIENCE_SECONDS:g} s. {process and aborted(process)}")
        time.sleep(PAUSE_SECONDS)
    return seen


def reading(source: Sensor, name: str, kind: type[Kind]) -> Kind:
    """The first reading of a kind that a source gives by that name."""

    def seen() -> list[Kind]:
        found = source.read(time.monotonic())[name]
        return [found] if isinstance(found, kind) else []

    return until(seen)[0]


def last_words(process: subprocess.Popen[str]) -> str:
    """What an ended process left in its standard error; another one may have it too, whose end nobody waits for."""
    if process.stderr is None:
        return ""
    os.set_blocking(process.stderr.fileno(), False)
    return (process.stderr.buffer.read() or b"").decode(errors="replace")


def aborted(process: subprocess.Popen[str]) -> str:
    """The last words of a process that is ended here by SIGABRT."""
    process.send_signal(signal.SIGABRT)
    process.wait()
    return last_words(process)
