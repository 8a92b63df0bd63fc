"""Managers and guards of a user: a class in a file, `FILE.py:CLASS`, or an entry point of an installed package.

Code runs as whoever loads it. So a command line or the service's configuration may name a file; a scenario, a result
and a log may not. The service is `strict`: it runs no file that another user than root or its own could have written.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from rlctl.envs.errors import PolicyError, RlctlError, meant
from rlctl.envs.whole_file import check_owner

Kind = Literal["managers", "guards"]


@dataclass(frozen=True, slots=True)
class Plugin:
    """A class that was loaded.

    Attributes:
        made: What makes the manager or guard.
        source: Its file, or its package with the version.
        digest: Of the file's text, or of the package's name and version.
        file: Where its code is, for messages.
    """

    made: Any
    source: str
    digest: str
    file: str


def is_file(name: str) -> bool:
    """True for `FILE.py:CLASS`, whether or not there is such a file."""
    return name.endswith(".py") or ".py:" in name


def entries_of(kind: Kind) -> Mapping[str, EntryPoint]:
    """Entry points of installed packages in the group `rlctl.managers` or `rlctl.guards`, by name."""
    return {one.name: one for one in entry_points(group=f"rlctl.{kind}")}


def source_of(entry: EntryPoint) -> str:
    """Its package with the version, and the class in it."""
    return f"{entry.dist.name} {entry.dist.version}, {entry.value}" if entry.dist else entry.value


def load(kind: Kind, name: str, *, strict: bool = False) -> Plugin:
    """The class of this name; PolicyError: it is not there, does not load, or, where strict, others may write it."""
    if is_file(name):
        return _from_file(name, strict=strict)
    if (entry := entries_of(kind).get(name)) is None:
        raise PolicyError(f"no entry point '{name}' in rlctl.{kind}" + meant(name, entries_of(kind)))
    source = source_of(entry)
    with errors_located(source, "it"):
        if strict:
            _check_package(entry.module)
        made = entry.load()
        if not inspect.isclass(made):
            raise PolicyError(f"entry point {name!r} is not a class", source)
        return Plugin(made, source, hashlib.sha256(source.encode()).hexdigest(), inspect.getfile(made))


def _from_file(name: str, *, strict: bool) -> Plugin:
    file, _, wanted = name.rpartition(":")
    if not file or not wanted.isidentifier():
        raise PolicyError(f"{name}: name the class, too: {file or name}:CLASS")
    path = Path(file).resolve()
    if not path.is_file():
        raise PolicyError(f"there is no such file; a class of your own is FILE.py:{wanted}", file)
    module, digest = _run(path, path.stat().st_mtime_ns, strict)
    if not inspect.isclass(made := getattr(module, wanted, None)):
        own = [key for key, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__]
        way_out = meant(wanted, own, none="; it has none")
        raise PolicyError(f"there is no class {wanted}{way_out}", shown_path(str(path)))
    return Plugin(made, file, digest, str(path))


@cache
def _run(path: Path, changed_ns: int, strict: bool) -> tuple[ModuleType, str]:  # noqa: ARG001 - the cache goes by it
    """The file's module and the digest of its text; run anew when the file has changed, as after a reload."""
    # What is checked is what runs: the text comes from the file whose owner was looked at, wherever its name leads now.
    with path.open("rb") as file:
        if strict:
            check_owner(path, os.fstat(file.fileno()))
        text = file.read()
    name = f"_rlctl_plugin_{path.stem}_{len(sys.modules)}"
    module = sys.modules[name] = ModuleType(name)  # dataclasses look their module up
    module.__file__ = str(path)
    with errors_located(str(path), "it"):
        exec(compile(text, path, "exec"), module.__dict__)  # noqa: S102 - that is what a plug-in is
    return module, hashlib.sha256(text).hexdigest()


def _check_package(module: str) -> None:
    """Check all that is in the package of a module, extensions and bytecode too; PolicyError: others may write one."""
    if spec := find_spec(module.partition(".")[0]):
        bytecode = spec.cached and os.path.dirname(spec.cached)
        places = [Path(one) for one in (*(spec.submodule_search_locations or ()), spec.origin, bytecode) if one]
        for file in (one for place in places if place.exists() for one in (place, *place.rglob("*"))):
            check_owner(file.resolve(), file.stat())


@contextlib.contextmanager
def errors_located(file: str, what: str) -> Iterator[None]:
    """Tell what the code of a file raises as a PolicyError, `FILE:LINE: WHAT raised ...`."""
    try:
        yield
    except RlctlError:
        raise
    except (Exception, SystemExit) as error:  # a script's sys.exit is a mistake here, not the end of the command
        raised = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        message = f"{what} raised {raised}{_way_out(error, Path(file).parent)}"
        raise PolicyError(message, shown_path(file), _line(error, file)) from error


def shown_path(path: str) -> Path:
    """As a user would write it who stands in the current folder."""
    return Path(path).relative_to(Path.cwd()) if Path(path).is_relative_to(Path.cwd()) else Path(path)


def _way_out(error: BaseException, folder: Path) -> str:
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if not module or not ((folder / f"{module}.py").is_file() or (folder / module).is_dir()):
        return ""
    return f"; a file is loaded alone, modules beside it are found with PYTHONPATH={shown_path(str(folder))}"


def _line(error: BaseException, path: str) -> int | None:
    """The last line of the file on the error's way."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return lines[-1] if lines else None
