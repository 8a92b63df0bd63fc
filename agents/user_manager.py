"""A manager of a user, named `FILE.py:CLASS`: loaded from a file by commands that are given its name, by no others.

A file of Python is code that runs as whoever loads it. So only a command line may name one: `rlctl bench`,
`rlctl replay` and `rlctl managers check`. `rlctl.agents.catalogue.build`, which the service uses, refuses it, and
nothing that serves imports this module.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from rlctl.agents import catalogue
from rlctl.agents.managers.prm_model import PrmModel
from rlctl.agents.policy import Policy
from rlctl.envs.actions import Action
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import PolicyError, RlctlError, meant
from rlctl.envs.observation import Observation
from rlctl.envs.workload import Weight
from rlctl.safety.verdict import Verdict

MEMBERS = ("shielded", "weight", "masked", "needs", "start", "act", "note", "remarks")
"""Members that a policy must have; its name is that on the command line."""

WAY_OUT = "derive it from rlctl.agents.managers.manager.Manager, which needs begin and decide only"


def build(name: str, *, time_scale: float = 1.0, model: PrmModel | None = None, **options: Any) -> Policy:
    """A new policy: of one's own, or else what `rlctl.agents.catalogue.build` makes of the name.

    Args:
        name: `FILE.py:CLASS`, or a name that the catalogue knows.
        time_scale: Divides every published period.
        options: Parameters of the constructor. A class of one's own gets those that it has, and `time_scale`
            likewise: what a benchmark tells the published managers is nothing that it must listen to.

    Raises:
        PolicyError: The file, the class or a method is not there, or its code raises; with file and line.
    """
    if not catalogue.is_own(name):
        with _file_meant(name):
            return catalogue.build(name, time_scale=time_scale, model=model, **options)
    path, wanted = _parted(name)
    made = _class(_module(path), path, wanted)
    with _blamed(path, f"{wanted}()"):
        given = {"time_scale": time_scale, **options}
        takes = inspect.signature(made).parameters
        return OwnPolicy(made(**{key: value for key, value in given.items() if key in takes}), name, path)


def refuse(names: tuple[str, ...], who: str) -> None:
    """Check that a file which others may have written names no code to run; PolicyError: it does."""
    for name in names:
        if catalogue.is_own(name):
            raise PolicyError(f"{who} names {name}: code of a file runs only when --managers or --policy names it")


class OwnPolicy(Policy):
    """A user's policy as one Policy; what its code raises becomes one line with file and line."""

    def __init__(self, policy: Any, name: str, path: Path) -> None:
        self._policy, self._path, self._class = policy, path, type(policy).__name__
        lacking = [member for member in MEMBERS if not hasattr(type(policy), member) and not hasattr(policy, member)]
        if lacking:
            raise PolicyError(f"class {self._class} lacks {', '.join(lacking)}; {WAY_OUT}", _shown(path))
        if isinstance(policy.needs, str):
            raise PolicyError(f"{self._class}.needs is a text; give a tuple: ({policy.needs!r},)", _shown(path))
        self.name = name
        self.shielded, self.masked = bool(policy.shielded), bool(policy.masked)
        self.weight, self.needs = Weight(policy.weight), tuple(policy.needs)
        self.learns = bool(getattr(policy, "learns", False))

    def start(self, limits: Limits) -> Allocation:
        """Forget everything and return the allocation to begin with on this host."""
        with self._blamed("start"):
            begun = self._policy.start(limits)
            if not isinstance(begun, Allocation):
                raise PolicyError(f"{self._class} starts with {begun!r}, which is no Allocation", _shown(self._path))
            return begun

    def act(self, observation: Observation) -> Action:
        """The next action, from the user's code."""
        with self._blamed("act"):
            action: Action = self._policy.act(observation)
            if action is None:
                raise PolicyError(f"{self._class}.act returned nothing; return an Allocation", _shown(self._path))
            return action

    @property
    def note(self) -> str:
        """Why the last action was taken."""
        with self._blamed("note"):
            return str(self._policy.note)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of its results must know."""
        with self._blamed("remarks"):
            remarks = self._policy.remarks
            if isinstance(remarks, str):
                raise PolicyError(f"{self._class}.remarks is a text; give a tuple of sentences", _shown(self._path))
            return tuple(map(str, remarks))

    def learn_ruling(self, verdict: Verdict) -> None:
        """What the shield made of the last action, to a class that listens."""
        if callable(hear := getattr(self._policy, "judged", None)):
            with self._blamed("judged"):
                hear(verdict)

    def close(self) -> None:
        """It is not asked again."""
        if callable(close := getattr(self._policy, "close", None)):
            with self._blamed("close"):
                close()

    def _blamed(self, method: str) -> contextlib.AbstractContextManager[None]:
        return _blamed(self._path, f"{self._class}.{method}")


@contextlib.contextmanager
def _file_meant(name: str) -> Iterator[None]:
    """A name that nobody knows may be a class without its file, or a file without its `.py`."""
    try:
        yield
    except PolicyError as error:
        if catalogue.is_known(name) or str(error).endswith("?"):  # another name was meant
            raise
        file, _, wanted = name.rpartition(":" if ":" in name or "/" in name else ".")
        example = f", here {file}.py:{wanted}" if file.strip("./") and wanted.isidentifier() else ""
        raise PolicyError(f"{error}; a class of your own is FILE.py:CLASS{example}") from error


def _parted(name: str) -> tuple[Path, str]:
    file, _, wanted = name.rpartition(":")
    if not file or not wanted.isidentifier():
        raise PolicyError(f"{name}: name the class, too: {file or name}:CLASS")
    path = Path(file).resolve()
    if not path.is_file():
        raise PolicyError(f"there is no such file; a manager of your own is FILE.py:{wanted}", file)
    return path, wanted


@cache
def _module(path: Path) -> ModuleType:
    """The file's module, run once per process under a name that nothing else has."""
    name = f"_own_{path.stem}_{len(sys.modules)}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PolicyError("cannot be loaded as Python", _shown(path))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    with _blamed(path, "it"):
        spec.loader.exec_module(module)
    return module


def _class(module: ModuleType, path: Path, wanted: str) -> Any:
    """The class, checked to be one that can be made."""
    policy = getattr(module, wanted, None)
    if not inspect.isclass(policy):
        own = [
            key for key, item in vars(module).items() if inspect.isclass(item) and item.__module__ == module.__name__
        ]
        raise PolicyError(f"there is no class {wanted}" + meant(wanted, own, none="; it has none"), _shown(path))
    if inspect.isabstract(policy):
        lacking = ", ".join(sorted(policy.__abstractmethods__))  # type: ignore[attr-defined]
        raise PolicyError(f"class {wanted} lacks {lacking}; see rlctl.agents.managers.manager.Manager", _shown(path))
    return policy


@contextlib.contextmanager
def _blamed(path: Path, what: str) -> Iterator[None]:
    """Whatever the user's code raises, as one line with the place in the user's file."""
    try:
        yield
    except RlctlError:
        raise
    except (Exception, SystemExit) as error:  # a script's sys.exit is a mistake here, not the end of the command
        raised = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise PolicyError(f"{what} raised {raised}{_beside(error, path)}", _shown(path), _line(error, path)) from error


def _beside(error: BaseException, path: Path) -> str:
    """The way out where a module was not found that is beside the file."""
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    folder = path.parent
    if not module or not ((folder / f"{module}.py").is_file() or (folder / module).is_dir()):
        return ""
    return f"; a manager's file is loaded alone, modules beside it are found with PYTHONPATH={_shown(folder)}"


def _shown(path: Path) -> Path:
    """As a user would write it who stands in the current folder."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _line(error: BaseException, path: Path) -> int | None:
    """The last line of the file on the error's way."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return lines[-1] if lines else None
