"""A guard of a user, beside the shipped ones: whatever its code does, it can only tighten.

Its bound enters the verdict as every other bound does, the most restrictive wins, and it never sees another guard's
memory. Where it raises or answers nonsense, BE gets the safe allocation in that tick, and the bound says why.
"""

from __future__ import annotations

import inspect
import operator
from dataclasses import dataclass, is_dataclass
from typing import Any, Self

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import PolicyError, in_one_line
from rlctl.envs.plugins import errors_located, load, shown_path
from rlctl.envs.telemetry import Telemetry
from rlctl.safety.guard import Guard
from rlctl.safety.verdict import Bound, Reason

MOST_DETAIL = 200
"""Characters of a detail that logs take."""


@dataclass(frozen=True, slots=True)
class UserMemory:
    """What the user's guard remembers; an object of any type, which no log takes.

    Attributes:
        value: What it returned last without an error.
        failed: What it raised in this tick; empty when nothing.
    """

    value: Any
    failed: str = ""


@dataclass(frozen=True, slots=True)
class UserGuard:
    """The user's guard as one that raises nothing and answers with nothing odd.

    Attributes:
        guard: Of the user: `start`, `advance` and `bound`.
        name: Shown with each of its bounds.
        digest: Of its code and constants.
        asked: How it was asked for, by which another process loads it; empty for an object.
    """

    guard: Guard[Any]
    name: str
    digest: str
    asked: str = ""

    @classmethod
    def of(cls, guard: Guard[Any], digest: str = "", asked: str = "") -> Self:
        """A guard that is at hand; PolicyError: it lacks a member."""
        made = type(guard)
        # A protocol and not a base class: whoever writes a guard need not import from here.
        lacking = [name for name in ("name", "start", "advance", "bound") if not hasattr(guard, name)]
        if lacking or not isinstance(guard.name, str) or not guard.name:
            wrong = f"lacks {', '.join(lacking)}" if lacking else "has a name that is not a text"
            raise PolicyError(f"guard {made.__qualname__} {wrong}; see rlctl.safety.guard.Guard")
        # A dataclass shows its constants; of any other class the code alone enters the digest.
        constants = repr(guard) if is_dataclass(guard) else ""
        return cls(
            guard, guard.name, f"{made.__module__ if not asked else digest}.{made.__qualname__}{constants}", asked
        )

    # A class out of a file is in no module that another process of a benchmark could import.
    def __reduce__(self) -> tuple[Any, ...]:
        return (build_user_guard, (self.asked,)) if self.asked else (type(self).of, (self.guard,))

    def start(self) -> UserMemory:
        """The memory before any telemetry."""
        # What it raises must not leave the shield: an error here would cost the shipped guards their say, too.
        try:
            return UserMemory(self.guard.start())
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is not trusted to fail in a known way
            return UserMemory(None, in_one_line(error))

    def advance(self, memory: UserMemory, telemetry: Telemetry) -> UserMemory:
        """The memory after this tick; the one before where the user's code raises."""
        # The last memory that came of no error goes on: the tick is lost to the guard, and BE is safe in it.
        try:
            return UserMemory(self.guard.advance(memory.value, telemetry))
        except (Exception, SystemExit) as error:  # noqa: BLE001
            return UserMemory(memory.value, in_one_line(error))

    def bound(self, memory: UserMemory, telemetry: Telemetry, current: Allocation, limits: Limits) -> Bound | None:
        """Its bound, with our name and reason; the safe allocation where it has none to be believed."""
        # What failed to learn from this tick cannot judge it.
        if memory.failed:
            return self._safe(limits, f"advance raised {memory.failed}")
        try:
            answer = self.guard.bound(memory.value, telemetry, current, limits)
            return None if answer is None else self._plain(answer, limits)
        except (Exception, SystemExit) as error:  # noqa: BLE001
            return self._safe(limits, f"bound raised {in_one_line(error)}")

    def _plain(self, answer: Bound, limits: Limits) -> Bound:
        """The answer in plain types and within this host's range."""
        # most_restrictive takes minima: a NaN, or an object that compares as it likes, could lift the others' bounds.
        most = Allocation(
            float(answer.most.quota_cpus), operator.index(answer.most.cpuset_cpus), bool(answer.most.frozen)
        )
        return Bound(self.name, Reason.OWN, limits.clip(most), str(answer.detail)[:MOST_DETAIL])

    def _safe(self, limits: Limits, why: str) -> Bound:
        return Bound(self.name, Reason.OWN, limits.safe, f"guard {self.name} failed: {why}"[:MOST_DETAIL])


def build_user_guard(name: str, *, strict: bool = False) -> UserGuard:
    """A guard by name; PolicyError: it cannot be loaded or made.

    Args:
        name: `FILE.py:CLASS`, or an entry point in `rlctl.guards`.
        strict: Only code that nobody but root and this process' user can write.
    """
    # Code that anybody else can write would rule as root: `strict` refuses it in the service.
    plugin = load("guards", name, strict=strict)
    if inspect.isabstract(plugin.made):
        lacking = ", ".join(sorted(plugin.made.__abstractmethods__))
        raise PolicyError(f"guard {plugin.made.__name__} lacks {lacking}", shown_path(plugin.file))
    with errors_located(plugin.file, f"{plugin.made.__name__}()"):
        return UserGuard.of(plugin.made(), plugin.digest, name)
