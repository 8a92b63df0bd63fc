"""Residuals of a calibration as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlctl.envs.sim.residuals import Residual, agreement, by_regime

__all__ = ["cell_rows", "regime_rows"]

HEADER = (
    "cells",
    "number",
    "p95 within 2x %",
    "side of target %",
    "BE within .1 CPU %",
    "LC within .1 CPU %",
    "median x",
)
CELL_HEADER = ("cell", "regime", "measured ms", "simulated ms", "x", "BE", "BE sim", "LC", "LC sim", "misses")


def regime_rows(parts: Mapping[str, Sequence[Residual]]) -> list[tuple[str, ...]]:
    """Header, then all cells, then each part with its regimes."""
    everything = [one for part in parts.values() for one in part]
    rows: list[tuple[str, ...]] = [HEADER, _row("all", everything)]
    for name, part in parts.items():
        rows.append(_row(name, part))
        rows += [_row(f"{name}: {regime}", some) for regime, some in by_regime(part).items()]
    return rows


def cell_rows(part: Sequence[Residual]) -> list[tuple[str, ...]]:
    """Header, then a row per cell; `misses`: p95 beyond a factor of two, or the target's other side."""
    rows: list[tuple[str, ...]] = [CELL_HEADER]
    for one in part:
        cell = one.cell
        misses = " ".join(word for word, fine in (("p95", one.within), ("side", one.same_side)) if not fine)
        times = (f"{1e3 * cell.tail_latency_seconds:.2f}", f"{1e3 * one.tail_latency_seconds:.2f}", f"{one.ratio:.2f}")
        cpus = (cell.be_busy_cpus, one.be_cpus, cell.lc_busy_cpus, one.lc_cpus)
        rows.append((str(cell), str(one.regime), *times, *(f"{number:.2f}" for number in cpus), misses))
    return rows


def _row(name: str, found: Sequence[Residual]) -> tuple[str, ...]:
    one = agreement(found)
    shares = (one.within_percent, one.side_percent, one.be_percent, one.lc_percent)
    return (name, str(one.cells), *(f"{share:.1f}" for share in shares), f"{one.median_ratio:.2f}")
