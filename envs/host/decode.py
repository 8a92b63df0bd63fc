"""Text from outside into numbers, with a reason instead of an exception; and lists of CPUs as the kernel writes them.

What a perf child, an endpoint or a log writes is not ours: any bytes may come. All but `parse_cpus` takes them all.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.telemetry import Why


def text_of(path: Path) -> str:
    """What a file says, without white space at its ends; empty when it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def first_line(words: str, passed_over: str = "") -> str:
    """The first line of a program's output that says something and is not `passed_over`, at most 200 characters."""
    lines = (line.strip() for line in words.splitlines())
    return next((line for line in lines if line not in ("", passed_over)), "it said nothing")[:200]


def json_or_none(data: bytes | str) -> object:
    """The decoded document; None for anything that is no JSON (and for `null`, which says as little)."""
    try:
        document: object = json.loads(data)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError; so is an integer of 5,000 digits
        return None
    return document


def parse_quantity(raw: object, most: float = math.inf) -> float | Why:
    """A physical quantity from what was written.

    Args:
        raw: A number, or text (bytes or str) that holds one.
        most: Largest value that physics allows, in the quantity's unit.

    Returns:
        A finite number in [0, most]; MALFORMED when it is no number; ABSURD when it is none that can be.
    """
    if isinstance(raw, bool) or not isinstance(raw, (int, float, str, bytes)):
        return Why.MALFORMED
    try:
        number = float(raw)
    except ValueError:
        return Why.MALFORMED
    except OverflowError:
        return Why.ABSURD
    if not math.isfinite(number) or not 0.0 <= number <= most:
        return Why.ABSURD
    return abs(number)  # -0.0 would print as a negative


def all_measured(raws: Sequence[object], most: float = math.inf) -> NDArray[np.float64] | None:
    """What `parse_quantity` makes of each, shape (n,), where all are numbers that it takes; None where one is not."""
    if not _NUMBERS.issuperset(map(type, raws)):
        return None
    try:
        numbers = np.array(raws, np.float64)
    except OverflowError:
        return None
    # The first is what NaN fails.
    return np.abs(numbers) if ((numbers >= 0.0) & (numbers <= most) & np.isfinite(numbers)).all() else None


_NUMBERS = frozenset({int, float})


# The kernel's largest CONFIG_NR_CPUS; a longer range is a slip, and would fill the memory.
MOST_CPUS = 8192


@functools.lru_cache(maxsize=64)  # the same few lists of every group, at every tick
def parse_cpus(text: str) -> frozenset[int]:
    """The numbers in a kernel list (of CPUs or memory nodes); an empty list has none."""
    numbers: set[int] = set()
    if not text.isascii():  # other scripts have digits too, but no kernel writes them
        raise ValueError(f"{text.strip()!r} is no list of CPUs such as 0-2,5")
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise ValueError(f"{text.strip()!r} is no list of CPUs such as 0-2,5")
        if int(last if dash else first) >= MOST_CPUS:
            raise ValueError(f"{text.strip()!r} is no list of CPUs: the last there can be is {MOST_CPUS - 1}")
        numbers.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(numbers)


def format_cpus(cpus: Iterable[int]) -> str:
    """The list as the kernel itself would print it, without the newline."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
