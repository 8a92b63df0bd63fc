"""The rows that laws read and write: one host's readings, allocation and limits as numbers side by side.

A structured array has a row for each host. Python reads a whole column of it by name, without a copy; a law takes one
row. `Readings` and `Allocations` are such columns under their names.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

Row = np.void
"""One host's row: `row["name"]`, to read and to write."""

Rows = NDArray[np.void]
"""One row for each host, shape (n,)."""


ALLOCATION = np.dtype([("quota_cpus", "f8"), ("cpuset_cpus", "i8"), ("frozen", "?")], align=True)
"""As `Allocation`."""

LIMIT = np.dtype(
    [("cpus", "i8"), ("lc_cpus", "f8"), ("min_quota_cpus", "f8"), ("levels", "i8"), ("exclusive_cpus", "i8"),
     ("least_weight", "?")], align=True,
)  # fmt: skip
"""As `Limits`."""


def plain_row(kind: np.dtype[np.void]) -> dict[str, Any]:
    """A row of zeros as a dict of Python's numbers and lists: Python reads it faster than a structured array's."""
    return {name: plain_field(kind[name], np.zeros((), kind[name])) for name in kind.names or ()}


def plain_field(kind: np.dtype[Any], value: object) -> Any:
    """A field's value for such a row, rounded as in a row of that type."""
    numbers = np.array(value, kind.base)
    return _in_arrays(numbers.tolist(), numbers.ndim) if kind.base == np.float32 else numbers.tolist()


def _in_arrays(lines: Any, depth: int) -> Any:
    return array("f", lines) if depth == 1 else [_in_arrays(line, depth - 1) for line in lines]


def row_of(kind: np.dtype[np.void], source: object) -> dict[str, Any]:
    """The same with the attributes of an object."""
    return {name: getattr(source, name) for name in kind.names or ()}


def rows_of(kind: np.dtype[np.void], columns: object, count: int) -> Rows:
    """Rows with the attributes of an object, each an array of shape (count,) or one number for all."""
    names = kind.names or ()
    rows: Rows | None = getattr(getattr(columns, names[0]), "base", None)
    whole = isinstance(rows, np.ndarray) and rows.dtype == kind and rows.shape == (count,)
    if whole and rows is not None and all(getattr(columns, name).base is rows for name in names):
        return rows  # they are columns of such rows already
    rows = np.empty(count, kind)
    for name in names:
        rows[name] = getattr(columns, name)
    return rows


def plain_rows(rows: Rows) -> list[dict[str, Any]]:
    """Copies of rows as `plain_row` has them, for laws that only read."""
    return [dict(zip(rows.dtype.names or (), row, strict=True)) for row in rows.tolist()]
