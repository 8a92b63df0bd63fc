"""The words of the mode channel: what the service tells an application, and what an application may say.

Service to application, a line per change: `mode 2 threads 4 millicpus 1500 memory 0`. Further pairs of words may
follow in a later version. Application to service: `gap 12.5`, percent of its goal that it falls short of it, negative
when it does better. The C header and the Python client speak it too.
"""

from __future__ import annotations

import re

from rlctl.envs.applications import Placement, WorkingMode

__all__ = ["MOST_GAP_PERCENT", "mode_line", "parse_gap"]

MOST_GAP_PERCENT = 100.0
_GAP = re.compile(rb"gap (-?[0-9]{1,3}(?:\.[0-9]{1,6})?)")


def mode_line(placement: Placement, mode: WorkingMode) -> str:
    """What an application is told of its placement, with the newline."""
    millicpus = round(placement.cpus * 1000.0)
    return f"mode {placement.mode} threads {mode.threads} millicpus {millicpus} memory {mode.memory_bytes}\n"


def parse_gap(line: bytes) -> float | None:
    """The goal gap that a line says, in percent; None if it is no such line or says more than there can be."""
    said = _GAP.fullmatch(line)
    gap = float(said[1]) if said else MOST_GAP_PERCENT + 1.0
    return gap if abs(gap) <= MOST_GAP_PERCENT else None
