"""`rlctl why`, `top`, `learn-load` and `replay`: what a tick log tells."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlctl.commands import Command
from rlctl.commands.arguments import positive
from rlctl.commands.outputs import Damages, print_json
from rlctl.config.serve import LogSection, load_config
from rlctl.envs.errors import CheckFailed, ConfigError, printable
from rlctl.envs.log_lines import log_files
from rlctl.log import top, why
from rlctl.log.reader import ONLY, LoggedLoad, read_log
from rlctl.log.record import allocation_as_json
from rlctl.log.replay import Recheck, VerdictDifference, replay
from rlctl.log.tail import LogTail
from rlctl.log.why import find, parse_moment
from rlctl.loop.narrator import Event, Narrator
from rlctl.loop.stopping import Request, stop_on_signals
from rlctl.safety.profile import Profile, load_shield
from rlctl.safety.verdict import Verdict

WHY_EXAMPLES = """examples:
  rlctl why                        # the last decision
  rlctl why 14:03:22               # the nearest one to the last time that it was 14:03:22 here
  rlctl why 2026-01-31T14:03:22
  rlctl why -90s                   # 90 seconds ago; m, h and d are known too
  rlctl why tick 1234              # or '#1234', in quotes
  rlctl why -5m --config /etc/rlctl/serve.yaml --json

A directory's log is read with its rotated files, a file alone.
"""

TOP_EXAMPLES = """examples:
  rlctl top                                   # of the log in /var/log/rlctl, until Ctrl-C
  rlctl top --config /etc/rlctl/serve.yaml
  rlctl top --log /tmp/rlctl-log --once       # one look, as plain text
  rlctl top --json --interval 5               # one JSON object per look and line

It reads the tick log only, so that it takes nothing from the controller. Colours need rlctl[cli] and a terminal;
NO_COLOR turns them off.
"""

LEARN_LOAD_EXAMPLES = """examples:
  rlctl learn-load /var/log/rlctl
  rlctl learn-load --config /etc/rlctl/serve.yaml --json

Estimated at: extrapolated from the CPU time of requests, at .9 of the CPUs that it can use; no load has confirmed it
yet (`borne_out`). At least: the LC met its target there, or nearly. At most: the LC missed its target there with BE at
its minimum, or all its CPUs would be busy. In a log of several LCs each is judged as if it had all their CPUs.
"""

REPLAY_EXAMPLES = """examples:
  rlctl replay /var/log/rlctl                           # does the shield still rule as it did?
  rlctl replay ticks.jsonl.2 --shield heracles          # what another shield would have changed
  rlctl replay /var/log/rlctl --json

The recorded proposals are judged again. Under the shield that ruled then the verdicts must be the same: one that
differs is a finding, and the exit code 1. A replay is open loop: each tick has the readings and the allocation that
were recorded. `rlctl shadow report LOG --policy A,B` asks policies about a log.
"""

MOST_CHANGES = 3
"""Lines of the service's log that `rlctl top` shows."""

MOST_SHOWN = 20
"""Differences told in words; --json has all."""

STYLES = {top.Mood.PLAIN: "", top.Mood.GOOD: "green", top.Mood.WARN: "yellow", top.Mood.BAD: "bold red"}


def add_log_arguments(parser: argparse.ArgumentParser, *, name: str = "--log") -> None:
    """Which log: `--log`, or the argument of that name, or `--config`."""
    which = parser.add_mutually_exclusive_group()
    nargs = None if name.startswith("-") else "?"
    which.add_argument(name, nargs=nargs, type=Path, metavar="FILE|DIR", help="a tick log; default: /var/log/rlctl")
    which.add_argument("--config", type=Path, metavar="FILE", help="the serve configuration that names the log")


def log_path(args: argparse.Namespace) -> Path:
    """The log that the arguments name; ConfigError where none is named and there is none in the default place."""
    if args.log is not None:
        return Path(args.log)
    if args.config:
        return load_config(args.config).log.directory
    default = LogSection().directory
    if not default.exists():
        raise ConfigError("there is no log: has `rlctl serve` run? Else give --config FILE or --log DIR", default)
    return default


def add_why_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `rlctl why`."""
    parser._negative_number_matcher = re.compile(r"-\d")  # -90s is a time and no option; Python 3.14 knows by itself
    parser.add_argument("time", nargs="*", metavar="TIME", help="default: the last decision")
    add_log_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the tick as it is recorded, and the one after it")


def explain_tick(args: argparse.Namespace) -> int:
    """`rlctl why`: exit code 2 where TIME cannot be parsed; CheckFailed: the log holds no tick."""
    try:
        moment = parse_moment(" ".join(args.time))
    except ValueError as error:
        print(f"rlctl: error: {error}", file=sys.stderr)
        return 2
    path = log_path(args)
    with Damages() as damaged:
        nearest = find(log_files(path), moment, damaged)
    if nearest is None:
        raise CheckFailed(f"{path}: no tick is recorded here")
    if args.json:
        print_json(why.as_json(nearest))
    else:
        print("\n".join(why.in_plain_words(nearest, moment)))
    return 0


def add_top_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `rlctl top`."""
    add_log_arguments(parser)
    parser.add_argument("--once", action="store_true", help="one look, then leave")
    parser.add_argument("--interval", type=positive, default=1.0, metavar="SECONDS", help="between looks; default: 1")
    parser.add_argument("--json", action="store_true", help="a JSON object per look, one to a line")


def follow_log(args: argparse.Namespace) -> int:
    """`rlctl top`, until a signal comes."""
    with contextlib.closing(LogTail(log_path(args))) as tail, contextlib.ExitStack() as leaving:
        stop = Request() if args.once else leaving.enter_context(stop_on_signals())
        show = leaving.enter_context(_screen(once=args.once, as_json=args.json))
        show(tail)
        while not (args.once or stop.wait(args.interval)):
            tail.poll()
            show(tail)
    return 0


def _screen(*, once: bool, as_json: bool) -> contextlib.AbstractContextManager[Callable[[LogTail], None]]:
    """JSON where it is asked for, a live screen on a terminal with rich, plain text everywhere else."""
    if as_json:
        return contextlib.nullcontext(_print_json)
    terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    if once or not terminal or find_spec("rich") is None:
        return contextlib.nullcontext(_print_text)
    return _live_screen()


def _print_json(tail: LogTail) -> None:
    print_json(top.as_json(tail.ticks, time.time(), tail.damaged))


def _print_text(tail: LogTail) -> None:
    columns = shutil.get_terminal_size().columns
    print("\n".join(row.plain() for row in _rows(tail, columns)), "", sep="\n", flush=True)


@contextlib.contextmanager
def _live_screen() -> Iterator[Callable[[LogTail], None]]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console()

    def line(row: top.ScreenRow) -> Text:
        word = (f"{row.word:<{top.WORD_COLUMNS}}", "bold")
        return Text.assemble(word, (row.text, STYLES[row.mood]), no_wrap=True, overflow="ellipsis")

    with Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        yield lambda tail: live.update(Group(*map(line, _rows(tail, console.width))), refresh=True)


def _rows(tail: LogTail, columns: int) -> list[top.ScreenRow]:
    blocks = top.BLOCKS if _can_show(top.BLOCKS) else top.PLAIN_BLOCKS
    told: list[Event] = []
    # Limits are in the log's header, which the end of a log need not have; CPUs stand in summaries only.
    narrator = Narrator(told.append, cpus=1)
    for tick in tail.ticks:
        narrator.write(tick)
    changes = [(event.ts, event.text) for event in told if event.event != "summary"][-MOST_CHANGES:]
    whole = [top.ScreenRow("log", str(tail.path)), *top.rows(tail.ticks, time.time(), columns, blocks, changes)]
    if tail.damaged:
        whole.append(top.ScreenRow("damaged", f"{tail.damaged} lines of the log", top.Mood.BAD))
    return [line for row in whole for line in row.wrap(columns)]


def _can_show(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def add_learn_load_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `rlctl learn-load`."""
    add_log_arguments(parser, name="log")
    parser.add_argument("--json", action="store_true", help="as JSON")


def learn_load(args: argparse.Namespace) -> int:
    """`rlctl learn-load`; CheckFailed: no tick of the log has both a number of requests and their latency."""
    load = LoggedLoad()
    with Damages() as damaged:
        for logged in read_log(log_files(log_path(args)), damaged):
            load.observe(logged)
    learned = {name: one for name, one in load.loads.items() if one.cautious_rps is not None}
    if not learned:
        raise CheckFailed(f"{log_path(args)}: no tick here says how many requests came, beside their latency")
    if not args.json:
        print("\n".join(f"{one}; {load.ticks} ticks" for one in learned.values()))
        return 0
    plain = {
        name: {
            "at_least_rps": one.cautious_rps,
            "borne_out": one.borne_out,
            "at_most_rps": one.highest_rps,
            "cpu_seconds_per_request": one.cpu_seconds_per_request,
            "lc_cpus": one.lc_cpus,
            "held_rps": one.held_rps,
            "missed_rps": one.missed_rps,
        }
        for name, one in learned.items()
    }
    told: dict[str, object] = dict(plain[ONLY]) if plain.keys() == {ONLY} else {"lcs": plain}
    print_json({"schema": 1, "ticks": load.ticks, **told})
    return 0


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `rlctl replay`."""
    parser.add_argument("log", type=Path, metavar="LOG", help="a file, or a directory with all files of a log")
    parser.add_argument("--shield", metavar="NAME|FILE[+GUARD]", help="default: the one the log was recorded under")
    parser.add_argument("--json", action="store_true", help="all differences")


def replay_log(args: argparse.Namespace) -> int:
    """`rlctl replay`; CheckFailed means that a verdict differs under the same shield, or that no tick is recorded."""
    profile = load_shield(args.shield) if args.shield else None
    with Damages() as damaged:
        found = replay(read_log(log_files(args.log), damaged), profile)
    if not found.ticks:
        raise CheckFailed(f"{args.log}: no tick is recorded here")
    if args.json:
        print_json(_recheck_as_json(args.log, found, profile, damaged.count))
    else:
        print("\n".join(_recheck_lines(args.log, found)))
    if wrong := [one for one in found.differences if one.same_shield]:
        first = wrong[0].logged
        raise CheckFailed(
            f"{len(wrong)} of {found.ticks} verdicts are not the shield's, the first at tick "
            f"{first.tick.index} ({first.where})"
        )
    return 0


def _recheck_lines(log: Path, found: Recheck) -> Iterator[str]:
    others = f", {found.other_runs} of them under another shield than the one that ruled then"
    shield = others if found.other_runs else " under the shield that ruled then"
    yield f"{log}: {found.ticks} ticks of {found.runs} run{'s' if found.runs > 1 else ''}{shield}"
    yield f"{found.ticks - found.unknown} verdicts judged again, {len(found.differences)} differ"
    if found.unknown:
        yield f"{found.unknown} not judged: after damage, or without a beginning, what the guards remembered is unknown"
    findings_first = sorted(found.differences, key=lambda one: not one.same_shield)
    yield from map(_difference_in_words, findings_first[:MOST_SHOWN])
    if len(found.differences) > MOST_SHOWN:
        yield f"... and {len(found.differences) - MOST_SHOWN} more; --json has all"


def _difference_in_words(difference: VerdictDifference) -> str:
    tick, now = difference.logged.tick, difference.verdict
    guards = _guards(now) or "no guard objects"
    then = _guards(tick.verdict) or "no guard objected"
    return (
        f"tick {tick.index} ({difference.logged.where}): asked {tick.proposed}; "
        f"then {tick.verdict.allocation} ({printable(then)}), now {now.allocation} ({guards})"
    )


def _guards(verdict: Verdict) -> str:
    return ", ".join(f"{bound.guard}: {bound.reason}" for bound in verdict.decisive)


def _recheck_as_json(log: Path, found: Recheck, profile: Profile | None, damaged: int) -> dict[str, Any]:
    return {
        "schema": 1,
        "log": str(log),
        "open_loop": True,
        "shield": profile and {"name": profile.name, "digest": profile.digest},
        "same_shield": not found.other_runs,
        "runs": found.runs,
        "ticks": found.ticks,
        "damaged": damaged,
        "not_judged": found.unknown,
        "differences": [_difference_as_json(one) for one in found.differences],
    }


def _difference_as_json(difference: VerdictDifference) -> dict[str, Any]:
    decision, now = difference.logged, difference.verdict
    tick = decision.tick
    return {
        "tick": tick.index,
        "file": str(decision.path),
        "line": decision.number,
        "same_shield": difference.same_shield,
        "proposed": allocation_as_json(tick.proposed),
        "then": allocation_as_json(tick.verdict.allocation),
        "now": allocation_as_json(now.allocation),
        "guards_then": [[bound.guard, bound.reason] for bound in tick.verdict.decisive],
        "guards_now": [[bound.guard, bound.reason] for bound in now.decisive],
    }


FAMILY = {
    "why": Command(
        add_why_arguments,
        explain_tick,
        WHY_EXAMPLES,
        "What was seen, asked for, allowed, written and read back at a time, and what came of it.",
    ),
    "top": Command(add_top_arguments, follow_log, TOP_EXAMPLES),
    "learn-load": Command(
        add_learn_load_arguments,
        learn_load,
        LEARN_LOAD_EXAMPLES,
        "What `slo.max_load_rps: auto` would have learned from the ticks of a log.",
    ),
    "replay": Command(add_replay_arguments, replay_log, REPLAY_EXAMPLES),
}
