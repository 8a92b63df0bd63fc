"""Progress on stderr: a bar on a terminal that has rich, plain lines everywhere else."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec


def say(text: str) -> None:
    """Print a line for the person at the terminal: to stderr, at once; stdout is the result's."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress(total: int, unit: str = "steps") -> Iterator[Callable[[str], None]]:
    """Show how far a number of steps, of a unit in the plural, has come: gives what to call after each."""
    with (_bar if takes_bars() else _lines)(total, unit) as advance:
        yield advance


def takes_bars() -> bool:
    """Whether stderr is a terminal that moves, and rich is there to draw on it."""
    moves = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and "NO_COLOR" not in os.environ
    return moves and find_spec("rich") is not None


@contextlib.contextmanager
def _lines(total: int, unit: str) -> Iterator[Callable[[str], None]]:
    done = 0

    def advance(name: str) -> None:
        nonlocal done
        done += 1
        print(f"{done}/{total} {unit}: {name}", file=sys.stderr, flush=True)

    yield advance


@contextlib.contextmanager
def _bar(total: int, unit: str) -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        MofNCompleteColumn(),
        TextColumn(unit),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task("", total=total)
        yield lambda name: bars.update(task, advance=1, description=name)
