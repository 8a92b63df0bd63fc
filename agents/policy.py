"""One protocol for whoever decides: heuristic managers and learned policies alike."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from rlctl.envs.actions import Action, decode
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.observation import Observation
from rlctl.envs.workload import Weight
from rlctl.envs.yaml_edge import Strict
from rlctl.safety.verdict import Verdict


class Policy(Protocol):
    """Decides once per control period what BE should get. A `rlctl.agents.policy_runner.PolicyRunner` asks it.

    A policy derives from this class and writes `name`, `shielded`, `weight`, `masked`, `needs`, `start`, `act`, `note`,
    `remarks`. All else has an answer here, right for a policy which decides alone and learned nothing.

    Attributes:
        shielded: True when a benchmark judges it behind the shield. Managers that were published with guards of
            their own, and the plain references, run bare there; `rlctl serve` shields every policy.
        weight: The CPU weight that it wants BE to have where weights are its to set.
        masked: True when it wants the shield's mask with each observation; managers do not, and a mask costs time.
        needs: Names of Telemetry fields that it cannot work without.
        learned: True for a network's; `rlctl serve` puts a heuristic behind it, see `rlctl.agents.served.fallback`.
        trained_with: Shields that it met in training, as "name (digest)" by their digests; empty when nothing is known.
        heuristic: The policy that decides in its place when it fails; None when it decides alone.
        moves_reins: BE's level may be moved by what the LC waits for, see `rlctl.envs.reins`; else by the CPUs alone.
        learns: It goes by the observation's experience, so that it is another one on a host that it has watched.
        fallback: Why the last action was not its own but another's; empty when it was its own.
        failed: It gave no usable answer in the last tick, and another policy decided.
    """

    name: str
    shielded: bool
    weight: Weight
    masked: bool
    needs: tuple[str, ...]
    learned: bool = False
    moves_reins: bool = False
    learns: bool = False
    trained_with: Mapping[str, str] = MappingProxyType({})
    heuristic: Policy | None = None
    fallback: str = ""
    failed: bool = False

    def start(self, limits: Limits) -> Allocation:
        """Forget everything and return the allocation to begin with on this host."""
        ...

    def act(self, observation: Observation) -> Action:
        """The next action. Called once per tick, in order; time is `observation.telemetry.time_seconds`."""
        ...

    @property
    def note(self) -> str:
        """Why the last action was taken, in a few words, for the tick log."""
        ...

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of its results must know."""
        ...

    @property
    def acting(self) -> str:
        """Name of the policy that took the last action: its own, or that of the heuristic behind it."""
        return self.name

    @property
    def digest(self) -> str:
        """Twelve hex digits of what makes it decide as it does, files included; asked for before `start`."""
        plain = (int, float, str, tuple, Strict)
        constants = {name: value for name, value in vars(self).items() if isinstance(value, plain)}
        text = f"{type(self).__qualname__} {sorted(constants.items())!r}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def unfamiliar(self, observation: Observation) -> str:  # noqa: ARG002 - most were not trained
        """What of a tick its training never had, in a few words; empty when nothing, or nothing is known of it."""
        return ""

    def learn_ruling(self, verdict: Verdict) -> None:  # noqa: ARG002 - most do not learn from it
        """Learn what the shield made of the last action; told once per tick, after the ruling."""
        return

    def rehearse(self, limits: Limits, observation: Observation) -> float | None:
        """Answer once before the service begins; `start` follows, and finds the policy as it was.

        Returns:
            Seconds that an answer took; None when there is no budget that it has to keep.

        Raises:
            Exception: It has no answer to this observation, which is one of a quiet host.
        """
        tried = copy.copy(self)  # what it learns from this is not its: `digest` is of its constants alone
        tried.start(limits)
        decode(tried.act(observation), observation.current, limits)
        return None

    def close(self) -> None:
        """Let go of threads and files; it is not asked again. May be called twice."""
        return
