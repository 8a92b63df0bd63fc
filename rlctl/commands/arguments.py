"""How a command is declared, and the types of arguments that commands share."""

from __future__ import annotations

import argparse
import contextlib
import shlex
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TypeVar

__all__ = ["address", "command_line", "declare", "listed", "positive", "positive_int", "refuse_given"]

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)


def declare(
    subparsers: argparse._SubParsersAction[Parser], name: str, summary: str, command: ModuleType | None
) -> None:
    """Add one command to a parser.

    Args:
        subparsers: Where it is added.
        name: What is typed.
        summary: Its line in the list of commands.
        command: Its module, see `rlctl.commands`; None declares none of its options.
    """
    parser = subparsers.add_parser(name, help=summary)
    if command is not None:
        parser.description, parser.epilog = vars(command).get("DESCRIPTION"), command.EXAMPLES
        command.add_arguments(parser)


def positive(text: str) -> float:
    """A number above 0 and below a thousand million, for argparse."""
    with contextlib.suppress(ValueError):
        if 0.0 < (value := float(text)) < 1e9:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a positive number, such as 600 or 0.5")


def positive_int(text: str) -> int:
    """A whole number of 1 or more, for argparse."""
    with contextlib.suppress(ValueError):
        if (value := int(text)) >= 1:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number, such as 1000")


def listed(text: str) -> tuple[str, ...]:
    """Names between commas, for argparse too; those that are empty are left out."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def address(text: str) -> str:
    """Of a Ray cluster, for argparse: an empty one is a variable that was not set, and means no cluster to nobody."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; give local, auto, or HOST:PORT of a cluster's head")
    return text


def refuse_given(args: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """Refuse options that mean nothing beside the others, rather than pass them over.

    Args:
        args: The command's arguments; None is what was not given.
        names: Options that must not be given.
        why: Ends the message.

    Raises:
        ConfigError: One of them was given.
    """
    from rlctl.envs.errors import ConfigError  # not at import: `rlctl --help` needs no numpy

    if given := [name for name in names if getattr(args, name) is not None]:
        raise ConfigError(f"--{given[0].replace('_', '-')} {why}")


def command_line(command: str, options: Mapping[str, object]) -> str:
    """The command line with these options, to be typed again; None and False are left out, tuples are repeated."""
    words = ["rlctl", command]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif isinstance(value, tuple):
            words += [word for one in value for word in (option, str(one))]
        elif value is not None and value is not False:
            words += [option, str(value)]
    return shlex.join(words)
