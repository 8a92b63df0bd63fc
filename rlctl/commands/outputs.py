"""What a command writes, checked before anything runs and not after an hour of measuring; damage in what it reads."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from rlctl.envs import whole_file
from rlctl.envs.closing import Closing
from rlctl.envs.errors import ConfigError, HostError, PermissionMissing, require_installed
from rlctl.envs.log_lines import Damage
from rlctl.envs.ticklog import LOG_NAME
from rlctl.log.progress import say

MOST_DAMAGES = 5
"""Damaged places that are told one by one."""


def add_json(parser: argparse.ArgumentParser, what: str = "the result as JSON") -> None:
    """Declare `--json [FILE]`; without FILE its value is `-`, which stands for stdout."""
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE", help=f"{what}; without FILE to stdout")


def write_json(file: str | None, data: object) -> None:
    """Write the value of `--json`: one line on stdout for `-`, a file whole or not at all, nothing for None."""
    if file == "-":
        print_json(data)
    elif file:
        whole_file.write_json(Path(file), data)


def print_json(data: object) -> None:
    """Print data as one line of JSON on stdout, at once; a path as its text."""
    print(json.dumps(data, default=str), flush=True)


@contextlib.contextmanager
def files_first(show: Callable[[], object]) -> Iterator[None]:
    """Write files, and then show: whoever reads the tables may have left, and a disk that is full costs no table."""
    try:
        yield
    finally:
        show()


def raise_early_end(why: str) -> None:
    """Once what was measured is written: HostError says why it ended early, KeyboardInterrupt that it was Ctrl-C."""
    if why == "Ctrl-C":
        raise KeyboardInterrupt
    if why:
        raise HostError(f"ended early: {why}")


class Damages(Closing):
    """Tells the first damaged places on stderr, and at the end how many more there are; the rest of the log is good.

    Attributes:
        count: Number of damaged places so far.
    """

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, damage: Damage) -> None:
        """Tell of one more."""
        self.count += 1
        if self.count <= MOST_DAMAGES:
            say(f"rlctl: damaged: {damage}")

    def close(self) -> None:
        """Tell how many more there were."""
        if self.count > MOST_DAMAGES:
            say(f"rlctl: damaged: {self.count - MOST_DAMAGES} more")


def check_outputs(args: argparse.Namespace) -> None:
    """Check that what is asked for can be written; folders are made, but not for a dry run.

    Args:
        args: Arguments of a command: `json`, `report`, `html`, `onnx` and `dry_run` where it has them.
    """
    report, make = getattr(args, "report", None), not getattr(args, "dry_run", False)
    if report:
        require_installed("--report", "cli", "matplotlib")
        _check_folder(Path(report), "--report folder", make=make)
    taken = {(Path(report) / "result.json").resolve(): "--report"} if report else {}
    for name in ("html", "json", "onnx"):
        if (given := getattr(args, name, None)) not in (None, "-"):
            option = f"--{name}"
            file = Path(given)
            if (writer := taken.setdefault(file.resolve(), option)) != option:
                raise ConfigError(f"is what {writer} writes; name another file for {option}", file)
            if file.is_dir():
                raise ConfigError(f"is a folder; name a file for {option}", file)
            # As root /dev/null would be a file afterwards, and so would /dev/stdout, which may lead to one.
            if os.path.exists(file) and (not file.is_file() or file.absolute().parent == Path("/dev")):
                raise ConfigError(f"is not a regular file; name another for {option}", file)
            if file.name.startswith(LOG_NAME):  # `--json LOG`, where LOG was to be read
                raise ConfigError(f"is a tick log; name another file for {option}", file)
            _check_folder(file.resolve().parent, f"{option} file", make=make)


def _check_folder(folder: Path, what: str, *, make: bool) -> None:
    there = next(one for one in (folder.absolute(), *folder.absolute().parents) if os.path.exists(one))
    if not there.is_dir():
        raise ConfigError(f"is not a folder; name another {what}", there)
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionMissing(f"{there}: may not be written; name another {what}")
    if not make:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()  # a disk that is full or read-only looks writable until written
    except PermissionError as error:
        raise PermissionMissing(f"{folder}: may not be written; name another {what}") from error
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror or error}; name another {what}", folder) from error
