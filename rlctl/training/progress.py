"""How far a training run has come, on stderr: a bar on a terminal that has rich, plain lines everywhere else."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rlctl.agents.training.evaluations import METRICS
from rlctl.work.progress import say

if TYPE_CHECKING:
    from rlctl.agents.training.training_run import TrainingStatus

LINE_SECONDS = 30.0
"""Between two plain lines when there is no new evaluation."""


@contextlib.contextmanager
def training_progress() -> Iterator[Callable[[TrainingStatus], None]]:
    """Show a run's progress.

    Yields:
        A function to call with each status.
    """
    fancy = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and "NO_COLOR" not in os.environ
    if not (fancy and find_spec("rich")):
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task("", total=1.0)
        yield lambda status: bars.update(task, completed=status.done_ratio, description=described(status))


def described(status: TrainingStatus) -> str:
    """A status in a few words: timesteps, and QoS and BE of the last evaluation."""
    words = [f"{status.timesteps:,} timesteps"]
    if (one := status.evaluation) is not None:
        qos, be, override = map(one.mean, METRICS)
        words.append(f"QoS {qos:.2f} %, BE {be:.1f} %, override {override:.1f} %")
    return ", ".join([*words, status.activity] if status.activity else words)


def left_seconds(first: TrainingStatus, now: TrainingStatus) -> float | None:
    """Time left at the pace since the first status; None while there is none."""
    done = now.done_ratio - first.done_ratio
    return (now.seconds - first.seconds) * (1.0 - now.done_ratio) / done if done > 0.0 else None


def _lines() -> Callable[[TrainingStatus], None]:
    first: TrainingStatus | None = None
    shown_at, shown = -LINE_SECONDS, None

    def show(status: TrainingStatus) -> None:
        nonlocal first, shown_at, shown
        first, now = first or status, time.monotonic()
        if status.evaluation is shown and now - shown_at < LINE_SECONDS:
            return
        shown_at, shown = now, status.evaluation
        left = left_seconds(first, status)
        remaining = "" if left is None else f", {timedelta(seconds=round(left))} left"
        say(f"{status.done_ratio:.0%}{remaining}: {described(status)}")

    return show
