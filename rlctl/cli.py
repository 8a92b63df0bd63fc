"""The command line: finds the command, runs it, and turns every error into one line and an exit code.

Exit codes: 0 success, 1 a check came out negative, 2 usage, 75 the host could not do it now, 77 a permission is
missing, 78 bad configuration, 128 + n ended by signal n.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import io
import os
import sys
from collections.abc import Collection, Sequence
from types import ModuleType
from typing import Any, NoReturn

import rlctl.commands.one_thread  # noqa: F401 - before numpy
from rlctl import __version__
from rlctl.commands import command_of, declare
from rlctl.envs.errors import on_one_line

COMMANDS = {
    "doctor": "check what this host offers and lacks, and what each lack disables",
    "serve": "run the control loop on this host",
    "init": "write the configuration for two names and a target",
    "app": "launch, adopt or list best-effort applications with working modes",
    "bench": "run several managers on the same scenario and compare them",
    "train": "train a policy in the simulator, evaluate it and export a bundle",
    "dataset": "make a Minari dataset of logs or simulated hosts, for `rlctl train --offline`",
    "tune": "search hyperparameters with Ray, QoS first",
    "evaluate": "score a bundle on the evaluation suite",
    "export": "turn a trained model into a bundle: weights and a card, no pickle",
    "merge": "make one bundle that answers the mean of several",
    "sign": "sign a bundle with an Ed25519 key",
    "inspect": "show a bundle's card, and what its policy does over load and slack",
    "pause": "hold BE at the safe allocation, until a time or until resumed",
    "resume": "end a pause",
    "limit": "limit BE to a number of CPUs, until a time or until released",
    "release": "end a limit",
    "why": "explain one decision of the controller in plain words",
    "advise": "estimate from a log what this host could have carried, and under which manager",
    "learn-load": "estimate the LC's maximum load from a tick log",
    "replay": "run a tick log through the shield again",
    "shadow": "watch what other policies would have done, and whether one may act",
    "top": "show live in the terminal what the running controller sees and does",
    "partition": "divide the host into a general part and a managed part with clusters",
    "restore": "put back every setting that a controller changed",
    "managers": "list who can decide: heuristic managers, references, learned policies",
    "scenarios": "list the scenarios that ship",
    "config": "show, check or describe a serve configuration",
    "fit-prm": "fit PRM's thresholds to records of the LC running alone",
    "calibrate": "sweep a testbed host, fit the simulator to it and print the residuals",
    "completion": "print the completion script of bash, zsh or fish",
}
"""Commands and their one-line help, in the order of `rlctl --help`. Each lives in the module of its name under
rlctl.commands, or in that of its family, and is imported only when it is called."""

FAMILIES: dict[str, str] = {
    "pause": "operator",
    "resume": "operator",
    "limit": "operator",
    "release": "operator",
    "export": "bundle",
    "merge": "bundle",
    "sign": "bundle",
    "inspect": "bundle",
    "why": "log",
    "top": "log",
    "learn-load": "log",
    "replay": "log",
    "scenarios": "managers",
    "init": "config",
}
"""The module under rlctl.commands of each command that shares one with others."""

GONE: dict[str, str] = {
    "approve": "review changes in the repository of the configuration; `rlctl pause --show` prints what holds BE",
    "shadow report --profile": "name the profile in a scenario and run `rlctl bench`",
    "shadow report --seeds": "use `rlctl bench --seeds`",
    "shadow report --config": "use `rlctl bench`, which takes policies with their options",
    "shadow report --report": "use --json FILE, and redirect stdout for the tables",
    "replay --policy": "use `rlctl shadow report LOG --policy A,B`, with --json for its figures",
    "app adopt": "start the program with `rlctl app run`, or move its process into a group below BE's",
    "app release": "move the process out of its group, which rlctl then forgets",
    "app show": "use `rlctl app list --json`",
    "hand-off": "use the script configs/deploy/hand-off, which needs kubectl, as be.starved.command",
    "measure": "use `scripts/measure mix`, `burst` or `cyclictest` in rlctl's source tree, with the same options",
    "fleet": "use `rlctl bench` with many seeds for simulated hosts, `rlctl advise` for the logs of many real ones",
}
"""What to use instead of each command that was removed, and of each option, with the words before it."""

EXAMPLES = """examples:
  rlctl doctor
  rlctl serve --lc nginx.service --be batch.slice --target 10ms
  rlctl config check /etc/rlctl/serve.yaml
  rlctl serve --config /etc/rlctl/serve.yaml --dry-run --duration 60
  rlctl bench --scenario live-nginx --managers none,weights,prm-hybrid-tuned
  rlctl restore

`rlctl COMMAND --help` shows a command's options and examples.
exit codes: 0 success, 1 failed check, 2 usage, 75 temporary host failure, 77 missing permission, 78 bad configuration,
128 + n ended by signal n
"""

INTERRUPTED, READER_LEFT = 130, 141  # 128 + SIGINT, 128 + SIGPIPE


class _Parser(argparse.ArgumentParser):
    """Usage errors as one line, like all others."""

    def __init__(self, **options: object) -> None:
        defaults = {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(**{**defaults, **options})  # type: ignore[arg-type]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse what is unknown here, where the command's own options are known, rather than at the top."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown and self._subparsers is None:
            option = unknown[0].partition("=")[0]
            if instead := GONE.get(f"{self.prog.removeprefix('rlctl ')} {option}"):
                self.error(f"{option} was removed: {instead}")
            near = difflib.get_close_matches(option, self._option_string_actions, 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """One line and exit code 2."""
        self.exit(2, f"rlctl: error: {on_one_line(message)}; see `{self.prog} --help`\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; returns the exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - to the end of the process
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # a path need not be text
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
    except SystemExit as leaving:  # argparse: --help, --version and usage errors
        code = leaving.code if isinstance(leaving.code, int) else 2
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = READER_LEFT
    try:
        sys.stdout.flush()
    except OSError as error:
        _discard_stdout()
        if not isinstance(error, BrokenPipeError):  # who has left misses nothing: the work is done
            return code or print_error(f"stdout: {error.strerror}", 75)
    return code


def _run(arguments: list[str]) -> int:
    # A command of the user's: argparse finds no place for it behind options, and takes a second `--` for its own.
    cut = (
        arguments.index("--")
        if "--" in arguments and _command_name(arguments) == "app" and "run" in arguments
        else len(arguments)
    )
    args = _parser(arguments[:cut]).parse_args(arguments[:cut])
    if words := arguments[cut + 1 :]:
        before = getattr(args, "words", None)
        args.words = [*before, "--", *words] if before else words
    from rlctl.envs.errors import RlctlError  # not at import: `rlctl --help` needs no numpy

    try:
        if args.verbose:
            _log_more(args.verbose)
        return command_of(_module(args.command), args.command).run(args)
    except RlctlError as error:
        return print_error(str(error), error.exit_code)
    except BrokenPipeError:
        raise
    except OSError as error:  # a file of the user's: --out, --json
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return print_error(message, 77 if isinstance(error, PermissionError) else 75)


def print_error(message: str, exit_code: int) -> int:
    """Print an error as one line; returns the exit code."""
    print(f"rlctl: error: {on_one_line(message)}", file=sys.stderr)
    return exit_code


def _command_name(arguments: Sequence[str]) -> str:
    """The command that arguments name; empty if none."""
    return next((argument for argument in arguments if not argument.startswith("-")), "")


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    called = _command_name(arguments)
    parser = command_parser({called})
    words = [argument for argument in arguments if not argument.startswith("-")]
    for gone in (called, " ".join(words[:2])):
        if gone in GONE:
            parser.error(f"`rlctl {gone}` was removed: {GONE[gone]}")
    if called and called not in COMMANDS and (near := _near(called)):
        parser.error(f"no command {called!r}, perhaps {near}")
    return parser


def _near(word: str) -> str:
    """The command that was meant: one that begins alike, or is spelt alike; empty if there is none."""
    alike = [name for name in COMMANDS if len(word) > 1 and (name.startswith(word) or word.startswith(name))]
    return next(iter(alike or difflib.get_close_matches(word, COMMANDS, 1)), "")


def command_parser(called: Collection[str]) -> argparse.ArgumentParser:
    """The parser, with options of the commands that are called (for a manual all), and of the others a line of help."""
    parser = _Parser(
        prog="rlctl",
        description="Best-effort work fills what the latency-critical service of one Linux host leaves.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"rlctl {__version__}")
    parser.add_argument("-v", "--verbose", action="count", default=0, help="log more to stderr; -vv logs all")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        declare(subparsers, name, summary, _module(name) if name in called else None)
    return parser


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands one level below a parser, by name; for manuals."""
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}


def _module(command: str) -> ModuleType:
    return importlib.import_module(f"rlctl.commands.{FAMILIES.get(command, command.replace('-', '_'))}")


def _log_more(verbose: int) -> None:
    import logging

    from rlctl.log.stderr import log_to_stderr

    log_to_stderr(logging.INFO if verbose == 1 else logging.DEBUG)


def _discard_stdout() -> None:
    """Nobody takes what is still buffered: it must not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
