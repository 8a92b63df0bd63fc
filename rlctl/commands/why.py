"""`rlctl why`: one decision of the controller in plain words."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from rlctl.commands.damages import Damages
from rlctl.commands.outputs import print_json
from rlctl.config.serve import LogSection, load_config
from rlctl.envs.errors import CheckFailed, ConfigError
from rlctl.envs.ticklog import log_files
from rlctl.log.lookup import find, parse_moment
from rlctl.log.why import as_json, in_plain_words

DESCRIPTION = "What was seen, asked for, allowed, written and read back at a time, and what came of it."

EXAMPLES = """examples:
  rlctl why                        # the last decision
  rlctl why 14:03:22               # the nearest one to the last time that it was 14:03:22 here
  rlctl why 2026-01-31T14:03:22
  rlctl why -90s                   # 90 seconds ago; m, h and d are known too
  rlctl why tick 1234              # or '#1234', in quotes
  rlctl why -5m --config /etc/rlctl/serve.yaml --json

A directory's log is read with its rotated files, a file alone.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser._negative_number_matcher = re.compile(r"-\d")  # -90s is a time and no option; Python 3.14 knows by itself
    parser.add_argument("time", nargs="*", metavar="TIME", help="default: the last decision")
    add_log_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the tick as it is recorded, and the one after it")


def add_log_arguments(parser: argparse.ArgumentParser) -> None:
    """Which log: `--log` or `--config`."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--log", type=Path, metavar="FILE|DIR", help="a tick log; default: /var/log/rlctl")
    which.add_argument("--config", type=Path, metavar="FILE", help="the serve configuration that names the log")


def run(args: argparse.Namespace) -> int:
    """Run the command: a TIME that is none is a usage error, CheckFailed means that the log holds no tick."""
    try:
        moment = parse_moment(" ".join(args.time))
    except ValueError as error:
        print(f"rlctl: error: {error}", file=sys.stderr)
        return 2
    path = log_path(args)
    with Damages() as damaged:
        found = find(log_files(path), moment, damaged)
    if found is None:
        raise CheckFailed(f"{path}: no tick is recorded here")
    if args.json:
        print_json(as_json(found))
    else:
        print("\n".join(in_plain_words(found, moment)))
    return 0


def log_path(args: argparse.Namespace) -> Path:
    """The log that the arguments name; ConfigError where none is named and there is none in the default place."""
    if args.log is not None:
        return Path(args.log)
    if args.config:
        return load_config(args.config).log.directory
    default = LogSection().directory
    if not default.exists():
        raise ConfigError("there is no log: name the one of your service by --config serve.yaml or --log DIR", default)
    return default
