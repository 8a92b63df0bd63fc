"""Commands, one module for each family of them.

A module with one command has `EXAMPLES`, which ends its help, `add_arguments(parser)`, which declares its options, and
`run(args)`, which returns the exit code. `DESCRIPTION` begins the help where the line in `rlctl --help` does not say
enough. A module with several has `FAMILY`: a `Command` with the same four parts for each name. What goes wrong is
raised as an `rlctl.envs.errors.RlctlError`, of which `rlctl.cli` makes one line and the exit code.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TypeVar

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)


@dataclass(frozen=True)
class Command:
    """The parts of one command, as a module with one command has them."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    examples: str
    description: str | None = None


def command_of(module: ModuleType, name: str) -> Command:
    """The command of that name in a module, see `rlctl.commands`."""
    parts = vars(module)
    if "FAMILY" in parts:
        family: dict[str, Command] = parts["FAMILY"]
        return family[name]
    return Command(parts["add_arguments"], parts["run"], parts["EXAMPLES"], parts.get("DESCRIPTION"))


def declare(subparsers: argparse._SubParsersAction[Parser], name: str, summary: str, module: ModuleType | None) -> None:
    """Add one command of a module to a parser; None declares none of its options."""
    parser = subparsers.add_parser(name, help=summary)
    if module is not None:
        command = command_of(module, name)
        parser.description, parser.epilog = command.description, command.examples
        command.add_arguments(parser)
