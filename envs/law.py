"""Laws: plain functions of numbers that the daemon interprets and that training compiles to machine code.

A law is written once. It takes and gives numbers, small tuples of them, and rows of structured arrays (`row["name"]`),
which it may write to. It makes no object and raises nothing: what a division, a logarithm or an exponential cannot take
is bounded before. It calls functions of `math` and other laws, by their bare names, and reads tuples of constants.
"""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import os
import types
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

log = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])

INTERPRETED = "RLCTL_INTERPRETED"
"""Environment variable: where it is set, laws are interpreted although Numba is there."""


def law(function: Function) -> Function:
    """Mark a function as a law; it stays what it is, plain Python."""
    function.__law__ = True  # type: ignore[attr-defined]
    return function


def compiled(function: Function) -> Function:
    """The same law in machine code, or the law itself where there is no Numba; the code is kept on disk.

    The first call with new kinds of arguments compiles, in seconds.
    """
    return _entry(function) if _numba() is not None else function


@cache
def _entry(function: Any) -> Any:
    return _numba().njit(_bound(function), cache=_find_cache(), nogil=True, error_model="numpy")


@cache
def _callee(function: Any) -> Any:
    # Only other laws call it: what Python would call it by need not be made.
    wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "forceinline": True}
    return _numba().njit(_bound(function), nogil=True, error_model="numpy", **wrappers)


def _bound(function: Any) -> Any:
    """A copy of a law that calls the compiled forms of the laws that it calls."""
    scope = dict(function.__globals__)
    for name in _names(function.__code__):
        value = scope.get(name)
        if hasattr(value, "__law__"):
            scope[name] = _callee(value)
        elif isinstance(value, tuple) and value and all(isinstance(one, (bool, int, float)) for one in value):
            # Python reads a tuple faster than an array; Numba would compile a branch for each of its entries.
            scope[name] = np.array(value)
    copy = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    return copy


def _names(code: types.CodeType) -> set[str]:
    """Global names that a function uses, those of its inner ones too."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


@cache
def _numba() -> Any:
    """Numba, or None where it is not installed or not wanted."""
    if os.environ.get(INTERPRETED):
        return None
    try:
        import numba  # here only: the daemon never compiles
    except ImportError:
        if multiprocessing.parent_process() is None:
            log.warning("Numba is not installed (extra 'train'), so many simulated hosts take many times as long")
        return None
    return numba


@cache
def _find_cache() -> bool:
    """Whether machine code is kept on disk: where there is a folder for it."""
    # Numba's cache knows a function by its own file, not by those of its callees: a changed law has another folder.
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = root / "rlctl" / f"laws-{_digest()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    vars(_numba().config)["CACHE_DIR"] = str(folder)
    return os.access(folder, os.W_OK)


def _digest() -> str:
    """Of the source of all that may hold laws."""
    top = Path(__file__).resolve().parents[1]
    files = sorted(path for floor in ("envs", "safety", "agents") for path in (top / floor).rglob("*.py"))
    digest = hashlib.sha256()
    for path in files:
        if (text := path.read_bytes()).find(b"@law") >= 0:
            digest.update(text)
    return digest.hexdigest()[:16]
