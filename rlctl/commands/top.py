"""`rlctl top`: what the running controller sees and does, live in the terminal."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec

from rlctl.commands.arguments import positive
from rlctl.commands.outputs import print_json
from rlctl.commands.why import add_log_arguments, log_path
from rlctl.log.tail import LogTail
from rlctl.log.top import BLOCKS, PLAIN_BLOCKS, WORD_COLUMNS, Mood, Row, as_json, rows
from rlctl.loop.stopping import Request, stop_on_signals

EXAMPLES = """examples:
  rlctl top                                   # of the log in /var/log/rlctl, until Ctrl-C
  rlctl top --config /etc/rlctl/serve.yaml
  rlctl top --log /tmp/rlctl-log --once       # one look, as plain text
  rlctl top --json --interval 5               # one JSON object per look and line

It reads the tick log only, so that it takes nothing from the controller. Colours need rlctl[cli] and a terminal;
NO_COLOR turns them off.
"""

STYLES = {"plain": "", "good": "green", "warn": "yellow", "bad": "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_log_arguments(parser)
    parser.add_argument("--once", action="store_true", help="one look, then leave")
    parser.add_argument("--interval", type=positive, default=1.0, metavar="SECONDS", help="between looks; default: 1")
    parser.add_argument("--json", action="store_true", help="a JSON object per look, one to a line")


def run(args: argparse.Namespace) -> int:
    """Run the command, until a signal comes."""
    with contextlib.closing(LogTail(log_path(args))) as tail, contextlib.ExitStack() as leaving:
        stop = Request() if args.once else leaving.enter_context(stop_on_signals())
        show = leaving.enter_context(_screen(once=args.once, as_json=args.json))
        show(tail)
        while not (args.once or stop.wait(args.interval)):
            tail.poll()
            show(tail)
    return 0


def _screen(*, once: bool, as_json: bool) -> contextlib.AbstractContextManager[Callable[[LogTail], None]]:
    """The best way to show it here."""
    if as_json:
        return contextlib.nullcontext(_print_json)
    terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    if once or not terminal or find_spec("rich") is None:
        return contextlib.nullcontext(_print_text)
    return _live()


def _print_json(tail: LogTail) -> None:
    print_json(as_json(tail.ticks, time.time(), tail.damaged))


def _print_text(tail: LogTail) -> None:
    columns = shutil.get_terminal_size().columns
    print("\n".join(row.plain() for row in _rows(tail, columns)), "", sep="\n", flush=True)


@contextlib.contextmanager
def _live() -> Iterator[Callable[[LogTail], None]]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console()

    def line(row: Row) -> Text:
        word = (f"{row.word:<{WORD_COLUMNS}}", "bold")
        return Text.assemble(word, (row.text, STYLES[row.mood]), no_wrap=True, overflow="ellipsis")

    with Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        yield lambda tail: live.update(Group(*map(line, _rows(tail, console.width))), refresh=True)


def _rows(tail: LogTail, columns: int) -> list[Row]:
    damaged = [Row("damaged", f"{tail.damaged} lines of the log", Mood.BAD)] if tail.damaged else []
    blocks = BLOCKS if _can_show(BLOCKS) else PLAIN_BLOCKS
    whole = [Row("log", str(tail.path)), *rows(tail.ticks, time.time(), columns, blocks), *damaged]
    return [line for row in whole for line in row.wrapped(columns)]


def _can_show(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
