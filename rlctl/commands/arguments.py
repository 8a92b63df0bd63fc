"""Types of arguments that commands share."""

from __future__ import annotations

import argparse
import contextlib

__all__ = ["address", "listed", "positive", "positive_int"]


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
