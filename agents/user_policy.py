"""A manager of a user as one Policy: what its code raises or answers wrongly is one line with file and line."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
from typing import Any

from rlctl.agents.policy import Policy
from rlctl.envs.actions import Action
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import PolicyError, meant
from rlctl.envs.observation import Observation
from rlctl.envs.plugins import Plugin, errors_located, load, shown_path
from rlctl.envs.workload import Weight
from rlctl.safety.verdict import Verdict

MEMBERS = ("shielded", "weight", "masked", "needs", "start", "act", "note", "remarks")
"""Members that a policy must have; its name is that by which it was asked for."""

OFFERED = ("time_scale", "model", "core_cpus")
"""Options that a benchmark tells every manager, and a class takes if it has them."""

WAY_OUT = "derive it from rlctl.agents.managers.manager.Manager, which needs begin and decide only"


def build_user_policy(name: str, options: dict[str, Any], *, strict: bool = False) -> UserPolicy:
    """A new policy of the class `FILE.py:CLASS` or of an entry point; see `rlctl.envs.plugins.load`.

    Raises:
        PolicyError: It cannot be loaded or made, or has no such option.
    """
    plugin = load("managers", name, strict=strict)
    made, place = plugin.made, shown_path(plugin.file)
    if inspect.isabstract(made):
        raise PolicyError(
            f"class {made.__name__} lacks {', '.join(sorted(made.__abstractmethods__))}; {WAY_OUT}", place
        )
    takes = inspect.signature(made).parameters
    given = {key: value for key, value in options.items() if key in takes or key not in OFFERED}
    if unknown := sorted(given.keys() - takes.keys()):
        raise PolicyError(f"{made.__name__} has no option '{unknown[0]}'" + meant(unknown[0], takes), place)
    with errors_located(plugin.file, f"{made.__name__}()"):
        return UserPolicy(made(**given), name, plugin)


class UserPolicy(Policy):
    """A user's manager behind the members of a Policy; PolicyError: it lacks one, or its code raised."""

    def __init__(self, policy: Any, name: str, plugin: Plugin) -> None:
        self._policy, self._plugin, self._class = policy, plugin, type(policy).__name__
        if lacking := [
            member for member in MEMBERS if not hasattr(type(policy), member) and not hasattr(policy, member)
        ]:
            raise self._wrong(f"class {self._class} lacks {', '.join(lacking)}; {WAY_OUT}")
        if isinstance(policy.needs, str):
            raise self._wrong(f"{self._class}.needs is a text; give a tuple: ({policy.needs!r},)")
        self.name = name
        self.shielded, self.masked = bool(policy.shielded), bool(policy.masked)
        self.weight, self.needs = Weight(policy.weight), tuple(policy.needs)
        self.learns = bool(getattr(policy, "learns", False))
        self.moves_reins = bool(getattr(policy, "moves_reins", False))
        own = getattr(policy, "__dict__", {})  # a class with slots has none
        constants = sorted((key, one) for key, one in own.items() if isinstance(one, (int, float, str, tuple)))
        text = f"{plugin.digest} {self._class} {constants!r}"
        self._digest = hashlib.sha256(text.encode()).hexdigest()[:12]

    def start(self, limits: Limits) -> Allocation:
        """Forget everything and return the allocation to begin with on this host."""
        begun = self._call("start", limits)
        if not isinstance(begun, Allocation):
            raise self._wrong(f"{self._class} starts with {begun!r}, which is not an Allocation")
        return begun

    def act(self, observation: Observation) -> Action:
        """The next action, from the user's code."""
        action: Action | None = self._call("act", observation)
        if action is None:
            raise self._wrong(f"{self._class}.act returned nothing; return an Allocation")
        return action

    @property
    def note(self) -> str:
        """Why the last action was taken."""
        with self._blame("note"):
            return str(self._policy.note)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of its results must know."""
        with self._blame("remarks"):
            remarks = self._policy.remarks
            if isinstance(remarks, str):
                raise self._wrong(f"{self._class}.remarks is a text; give a tuple of sentences")
            return tuple(map(str, remarks))

    @property
    def digest(self) -> str:
        """Twelve hex digits of its code and of its constants as it was made."""
        return self._digest

    def learn_ruling(self, verdict: Verdict) -> None:
        """What the shield made of the last action, to a class that listens."""
        if hasattr(self._policy, "learn_ruling"):
            self._call("learn_ruling", verdict)

    def close(self) -> None:
        """Let it close, if it can; it is not asked again."""
        if hasattr(self._policy, "close"):
            self._call("close")

    def _call(self, method: str, *arguments: object) -> Any:
        with self._blame(method):
            return getattr(self._policy, method)(*arguments)

    def _blame(self, method: str) -> contextlib.AbstractContextManager[None]:
        return errors_located(self._plugin.file, f"{self._class}.{method}")

    def _wrong(self, why: str) -> PolicyError:
        return PolicyError(why, shown_path(self._plugin.file))
