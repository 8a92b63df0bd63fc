"""How a command is declared, and the types of arguments that commands share."""

from __future__ import annotations

import argparse
import contextlib
from types import ModuleType
from typing import TypeVar

__all__ = ["address", "declare", "listed", "positive", "positive_int"]

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
