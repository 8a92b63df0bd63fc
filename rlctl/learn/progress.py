"""How far a training run has come, on stderr: a bar or plain lines; what runs came to, as a table; what ends one."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING

import numpy as np

from rlctl.agents.training.evaluations import METRICS
from rlctl.envs.terminal import leave_terminal
from rlctl.log.progress import say, takes_bars
from rlctl.loop.stopping import handle_signals

if TYPE_CHECKING:
    from rlctl.agents.training.training_run import TrainingResult, TrainingStatus

LINE_SECONDS = 30.0
"""Between two plain lines when there is no new evaluation."""

DIGITS = (2, 1, 1)
"""Behind the point, of each of METRICS."""


@contextlib.contextmanager
def training_progress() -> Iterator[Callable[[TrainingStatus], None]]:
    """Show a run's progress; yields a function to call with each status."""
    if not takes_bars():
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


def _lines() -> Callable[[TrainingStatus], None]:
    first: TrainingStatus | None = None
    shown_at, shown = -LINE_SECONDS, None

    def show(status: TrainingStatus) -> None:
        nonlocal first, shown_at, shown
        first, now = first or status, time.monotonic()
        if status.evaluation is shown and now - shown_at < LINE_SECONDS:
            return
        shown_at, shown = now, status.evaluation
        remaining = ""
        if (done := status.done_ratio - first.done_ratio) > 0.0:  # at the pace since the first status
            left = (status.seconds - first.seconds) * (1.0 - status.done_ratio) / done
            remaining = f", {timedelta(seconds=round(left))} left"
        say(f"{status.done_ratio:.0%}{remaining}: {described(status)}")

    return show


def result_rows(results: Sequence[TrainingResult]) -> list[tuple[str, ...]]:
    """QoS %, BE % and overrides % on each course: a row per run, header first, then their mean and spread."""
    best = [one.best for one in results]
    names = list(best[0].trials)
    table: list[tuple[str, ...]] = [("run", *names, "mean", "merit")]
    for run, one in zip(results, best, strict=True):
        cells = [_cell(getattr(trial, name).mean() for name in METRICS) for trial in one.trials.values()]
        table.append((run.run.folder.name, *cells, _cell(map(one.mean, METRICS)), f"{one.merit:.1f}"))
    if len(best) > 1:
        spread = [[[getattr(one.trials[name], metric).mean() for one in best] for metric in METRICS] for name in names]
        spread.append([[one.mean(metric) for one in best] for metric in METRICS])
        table.append(("mean ± sd", *map(_spread, spread), _spread([[one.merit for one in best]], (1,))))
    return table


def _cell(values: Iterable[float]) -> str:
    return " / ".join(f"{value:.{digits}f}" for value, digits in zip(values, DIGITS, strict=True))


def _spread(values: Sequence[Sequence[float]], digits: Sequence[int] = DIGITS[:2]) -> str:
    """QoS and BE over runs; of overrides the runs' own cells say enough."""
    each = zip(values, digits, strict=False)
    return " / ".join(f"{np.mean(one):.{digit}f} ±{np.std(one, ddof=1):.{digit}f}" for one, digit in each)


@contextlib.contextmanager
def signals_noted(message: str) -> Iterator[list[int]]:
    """The first signal that ends is noted in the list, with a message on stderr; a second does what it always does."""
    caught: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        caught.append(number)
        restore()
        # A shell passes SIGHUP on, and the kernel sends it again.
        if number == signal.SIGHUP:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            leave_terminal()
        say(message)

    ends = [signal.SIGINT, signal.SIGTERM]
    # SIGHUP says that a terminal was closed; under `nohup` it is ignored.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        ends.append(signal.SIGHUP)
    with handle_signals(note, *ends) as restore:
        yield caught
