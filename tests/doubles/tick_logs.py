"""Tick logs as plain data, for whoever judges what a service has written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rlctl.envs.ticklog import Damage, read_lines


def read_ticks(path: Path, damaged: Callable[[Damage], None] = lambda _: None) -> Iterator[dict[str, Any]]:
    """The objects of one file of a tick log, headers left out; so are damaged lines, after they were reported."""
    for line in read_lines([path], damaged):
        if not line.is_header:
            yield dict(line.content)
