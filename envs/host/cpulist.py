"""Lists of CPUs as the kernel writes them: `0-2,5`."""

from __future__ import annotations

import functools
from collections.abc import Iterable

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
