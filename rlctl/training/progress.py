"""How far a training run has come, on stderr: a bar on a terminal that has rich, plain lines everywhere else."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlctl.agents.training.run import Status

__all__ = ["left_seconds", "told", "training_progress"]

LINE_SECONDS = 30.0
"""Between two plain lines when there is no new evaluation."""


@contextlib.contextmanager
def training_progress() -> Iterator[Callable[[Status], None]]:
    """Show a run's progress.

    Yields:
        A function to call with each status.
    """
    fancy = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and "NO_COLOR" not in os.environ
    with (_bar if fancy and find_spec("rich") else _lines)() as show:
        yield show


def told(status: Status) -> str:
    """A status in a few words: timesteps, and QoS and BE of the last evaluation."""
    words = [f"{status.timesteps:,} timesteps"]
    if status.evaluation is not None:
        one = status.evaluation
        words.append(f"QoS {one.qos_percent:.2f} %, BE {one.be_percent:.1f} %, override {one.override_percent:.1f} %")
    return ", ".join([*words, status.doing] if status.doing else words)


def left_seconds(first: Status, now: Status) -> float | None:
    """Time left at the pace since the first status; None while there is none."""
    done = now.done_ratio - first.done_ratio
    if done <= 0.0:
        return None
    return (now.seconds - first.seconds) * (1.0 - now.done_ratio) / done


@contextlib.contextmanager
def _lines() -> Iterator[Callable[[Status], None]]:
    first: Status | None = None
    shown_at, shown = -LINE_SECONDS, None

    def show(status: Status) -> None:
        nonlocal first, shown_at, shown
        first, now = first or status, time.monotonic()
        if status.evaluation is shown and now - shown_at < LINE_SECONDS:
            return
        shown_at, shown = now, status.evaluation
        left = left_seconds(first, status)
        remaining = "" if left is None else f", {_clock(left)} left"
        print(f"{status.done_ratio:.0%}{remaining}: {told(status)}", file=sys.stderr, flush=True)

    yield show


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[Status], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task("", total=1.0)
        yield lambda status: bars.update(task, completed=status.done_ratio, description=told(status))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
