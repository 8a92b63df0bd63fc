"""One module per command: `EXAMPLES` ends its help, `add_arguments(parser)` declares its options, `run(args)` runs it.

`run` returns the exit code; `DESCRIPTION` begins the help where the line in `rlctl --help` does not say enough. What
goes wrong is raised as an `rlctl.envs.errors.RlctlError`, of which `rlctl.cli` makes one line and the exit code.
"""

from __future__ import annotations

import argparse
from types import ModuleType
from typing import TypeVar

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)


def declare(
    subparsers: argparse._SubParsersAction[Parser], name: str, summary: str, command: ModuleType | None
) -> None:
    """Add one command to a parser by its module, see `rlctl.commands`; None declares none of its options."""
    parser = subparsers.add_parser(name, help=summary)
    if command is not None:
        parser.description, parser.epilog = vars(command).get("DESCRIPTION"), command.EXAMPLES
        command.add_arguments(parser)
