"""How large a checkout is by floor, what is largest, and what repeats itself."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.house.sources import Source

__all__ = ["LEAST_REPEATED", "LONG_FUNCTION", "LONG_MODULE", "functions", "largest", "repeated", "size"]

LONG_MODULE, LONG_FUNCTION = 300, 35
"""Lines from which on they are counted; a module seldom has more than 400, a function more than 35."""

LEAST_REPEATED = 6
"""Lines of the shortest run that counts as repeated code."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def size(files: Sequence[Source]) -> dict[str, int]:
    """Counts of one floor, by column."""
    lengths = [length for source in files for length in functions(source).values()]
    return {
        "modules": len(files),
        "lines": sum(source.line_count for source in files),
        "code": sum(source.code_line_count for source in files),
        "long_modules": sum(source.line_count > LONG_MODULE for source in files),
        "functions": len(lengths),
        "long_functions": sum(length > LONG_FUNCTION for length in lengths),
    }


def functions(source: Source) -> dict[str, int]:
    """Lines of each function without decorators and docstring, by `path:line name`."""
    defined = (node for node in ast.walk(source.tree) if isinstance(node, Function))
    return {f"{source.at(node)} {node.name}": _length(node) for node in defined}


def _length(function: Function) -> int:
    docstring = ast.get_docstring(function, clean=False)
    in_docstring = (function.body[0].end_lineno or 0) - function.body[0].lineno + 1 if docstring else 0
    return (function.end_lineno or function.lineno) - function.lineno + 1 - in_docstring


def largest(lines: Mapping[str, int], count: int) -> dict[str, int]:
    """The entries with the most lines, by name."""
    return dict(sorted(lines.items(), key=lambda entry: -entry[1])[:count])


def repeated(checkout: Path, files: Sequence[Source], symilar: str, count: int) -> dict[str, Any]:
    """Lines that stand more than once, and the longest runs of them; or under `missing` how to get the program."""
    if shutil.which(symilar) is None:
        return {"missing": "symilar is not on PATH: pip install pylint, or name it with --symilar"}
    options = [f"--duplicates={LEAST_REPEATED}", "--ignore-comments", "--ignore-docstrings", "--ignore-imports"]
    paths = [str(source.path) for source in files]
    done = subprocess.run([symilar, *options, *paths], cwd=checkout, capture_output=True, text=True)
    total = re.search(r"TOTAL lines=(\d+) duplicates=(\d+) percent=([\d.]+)", done.stdout)
    if total is None:
        return {"missing": f"symilar ended with {done.returncode}: {done.stderr.strip()[-200:]}"}
    runs = dict(_runs(done.stdout))
    return {"runs": len(runs), "lines": int(total[2]), "percent": float(total[3]), "longest": largest(runs, count)}


def _runs(output: str) -> Iterator[tuple[str, int]]:
    """Places of each repeated run, joined by `~`, and its lines."""
    for run in re.finditer(r"^(\d+) similar lines in \d+ files\n((?:==\S+:\[\d+:\d+\]\n)+)", output, re.MULTILINE):
        yield " ~ ".join(run[2].replace("==", "").split()), int(run[1])
