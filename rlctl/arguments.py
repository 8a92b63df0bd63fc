"""What commands have in common at their edges: types of arguments, and what is said beside the result."""

from __future__ import annotations

import argparse
import sys

__all__ = ["address", "listed", "positive", "positive_int", "say"]


def positive(text: str) -> float:
    """A number above 0 and below a thousand million, for argparse."""
    value = float(text)
    if not 0.0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def positive_int(text: str) -> int:
    """A whole number of 1 or more, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def listed(text: str) -> tuple[str, ...]:
    """Names between commas, for argparse too; those that are empty are left out."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def address(text: str) -> str:
    """Of a Ray cluster, for argparse: an empty one is a variable that was not set, and means no cluster to nobody."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; give local, auto, or HOST:PORT of a cluster's head")
    return text


def say(text: str) -> None:
    """A line for the person at the terminal: to stderr, at once; stdout is the result's."""
    print(text, file=sys.stderr, flush=True)
