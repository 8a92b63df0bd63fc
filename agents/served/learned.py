"""A learned policy: the network's best move among those that the shield lets through."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.policy import Policy
from rlctl.agents.served.bundle import Bundle
from rlctl.agents.served.card import Card
from rlctl.envs.actions import MOVES
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import PolicyError, in_one_line
from rlctl.envs.features import FEATURES
from rlctl.envs.observation import LAGS, MOST_PRICE, Observation
from rlctl.envs.telemetry import Missing, Why
from rlctl.envs.workload import Weight

SENSORS: Mapping[str, str] = MappingProxyType(
    {"cpi": "cpi", "cpu_per_request": "lc_cpu_seconds_per_request", "lc_cpus": "lc_cpus", "be_cpus": "be_cpus"}
)
"""Features whose absence counts, and the Telemetry field behind each. Latency and load are not among them: without
these the shield holds BE at the safe allocation, whoever decides."""

IDLE = frozenset({Why.NO_DATA, Why.NOT_COUNTED})
"""Missing since the LC did nothing, as in any quiet night: the sensor is there."""

LOW, HIGH = -1.0, 1.0

ENDS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {"latency": (LOW,), "stretch": (LOW,), "load": (HIGH,), "cpi": (LOW, HIGH), "cpu_per_request": (LOW, HIGH)}
)
"""Features, and the ends of their ranges that no training host was at for long. The other ends and features are reached
in every run: BE frozen or with everything, an LC that is overloaded or has no load."""

_PLACES = MappingProxyType({feature.name: place for place, feature in enumerate(FEATURES)})


class Drift:
    """Whether a learned policy runs on a host like those that it learned on.

    Two things are found without a model of what is normal. A sensor that this host lacks and no training host lacked:
    the network gets a 0 with a flag that was never set so in training. And a number beyond its feature's range: it is
    clipped, so the network gets the range's end whatever the number is. Both are mistakes in a configuration more often
    than rare hosts: a target in the wrong unit, a `max_load_rps` that is too small, a perf group that is not the LC's.
    Not found are numbers within the ranges in combinations that training never had: bundles do not hold those.

    A card that names no training hosts says nothing of their sensors: then none is held to be strange.
    """

    def __init__(self, card: Card) -> None:
        lacked = {name for plant in card.plants for name in plant.absent}
        self._always_there = {name: field for name, field in SENSORS.items() if card.plants and name not in lacked}

    def unfamiliar(self, observation: Observation) -> str:
        """What of this tick training never had, in a few words; empty when nothing. Never raises."""
        try:
            # A simulated LC is never idle. Beside one that is, no answer is a wrong one.
            if observation.telemetry.idle:
                return ""
            return ", ".join([*self._list_lost(observation), *_list_clipped(observation)])
        except Exception as error:  # noqa: BLE001 - readings that cannot even be looked at are unlike any training
            return in_one_line(error)

    def _list_lost(self, observation: Observation) -> list[str]:
        told = observation.telemetry
        if isinstance(told.latency_seconds, Missing) or isinstance(told.load_ratio, Missing):
            return []  # an LC that restarts has no other reading either, and the shield sees to it
        readings = {name: getattr(told, field) for name, field in self._always_there.items()}
        if observation.current.frozen:  # as while no job of BE's is there
            readings.pop("be_cpus", None)
        return [f"no {name}" for name, one in readings.items() if isinstance(one, Missing) and one.why not in IDLE]


def _list_clipped(observation: Observation) -> list[str]:
    if not observation.frames:
        return []
    seen = observation.frames[-1].values(observation.tick_seconds)
    return [f"{name} beyond its range" for name, ends in ENDS.items() if float(seen[_PLACES[name]]) in ends]


BARE, BOLD, CAREFUL = "-bare", "-bold", "-careful"
"""Ends of names. The first is of a policy judged without shield and mask, and not held to what its host teaches.
To the other two a violation costs the least, or the most, that it cost in training."""

VARIANTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {BARE: {"shielded": False}, BOLD: {"price": 1.0 / MOST_PRICE}, CAREFUL: {"price": MOST_PRICE}}
)
"""How each of these is built, in benchmarks only."""


def plain_name(name: str) -> str:
    """A name without such an end."""
    return next((name.removesuffix(end) for end in VARIANTS if name.endswith(end)), name)


class LearnedPolicy(Policy):
    """A bundle behind the Policy protocol.

    Nothing in it belongs to a host: what it observes and what it asks for are shares of the host that it runs on. What
    its host teaches narrows the moves among which it chooses, see `SafeLevelMemory.filter_moves`.

    Args:
        shielded: False judges it without shield and mask, among all moves, in benchmarks only.
        price: What a violation costs, by what the observation says of it: above 1 careful, below it bold.
        name: Name in results; by default that of its card.
    """

    weight: Weight = Weight.EQUAL
    needs: tuple[str, ...] = ("tail_latency_seconds",)
    learned: bool = True
    learns: bool = True
    moves_reins: bool = True

    def __init__(self, bundle: Bundle, *, shielded: bool = True, price: float = 1.0, name: str | None = None) -> None:
        self.bundle, self.price = bundle, price
        self.name = name or bundle.card.name + ("" if shielded else BARE)
        self.shielded = self.masked = shielded
        # Observers show every lag of LAGS; a policy with a shorter history takes its own part of them.
        self._shown = tuple(LAGS.index(lag) for lag in bundle.card.lags)
        self._logits: NDArray[np.float32] | None = None
        self._taught = ""
        self._tick_seconds = bundle.card.tick_seconds
        shields = {kind.shield_digest: f"{kind.shield} ({kind.shield_digest})" for kind in bundle.card.plants}
        self.trained_with = {digest: name for digest, name in shields.items() if digest}
        self._drift = Drift(bundle.card)

    def start(self, limits: Limits) -> Allocation:
        """Forget the last move; BE begins at the safe allocation."""
        self._logits = None
        return limits.safe

    def act(self, observation: Observation) -> int:
        """The best allowed move, an index into MOVES.

        Raises:
            PolicyError: The network answers with something that is no number, or no move is allowed, or the
                observation is not of this rlctl's history.
        """
        logits = self.bundle.logits(self.visible_part(observation))
        if not np.isfinite(logits).all():
            raise PolicyError(f"{self.name}: the network's answer is not finite")
        if self.masked:
            mask = np.ones(len(MOVES), np.bool_) if observation.mask is None else observation.mask
            if not mask.any():
                raise PolicyError(f"{self.name}: no move is allowed")
            wanted = np.where(mask, logits, np.float32(-np.inf)).argmax()
            logits = np.where(observation.filter_moves(mask, self.price), logits, np.float32(-np.inf))
            self._taught = (
                f"; this host has taught not to take {MOVES[wanted].name}" if np.isinf(logits[wanted]) else ""
            )
        self._logits, self._tick_seconds = logits, observation.tick_seconds
        return int(logits.argmax())

    @property
    def note(self) -> str:
        """The move, the runner-up, and what it would have been but for what this host has taught."""
        if self._logits is None:
            return "start"
        best, second = np.argsort(-self._logits, kind="stable")[:2]
        finite = np.isfinite(self._logits[second])
        rest = f", second choice {MOVES[second].name}" if finite else " as the only move allowed"
        return f"{MOVES[best].name}{rest}{self._taught}"

    def unfamiliar(self, observation: Observation) -> str:
        """What of a tick its training never had, in a few words; empty when nothing."""
        return self._drift.unfamiliar(observation)

    @property
    def digest(self) -> str:
        """Of the network: the start of its file's SHA-256."""
        return self.bundle.card.policy_sha256[:12]

    @property
    def remarks(self) -> tuple[str, ...]:
        """Which network it is, and where it is not used as it was trained."""
        card = self.bundle.card
        remarks = [f"{card.algorithm}, weights.npz {card.policy_sha256[:12]}, exported {card.created}"]
        if not self.shielded:
            remarks.append("without shield and mask")
        if self._tick_seconds != card.tick_seconds:
            remarks.append(f"trained at ticks of {card.tick_seconds:g} s, run at {self._tick_seconds:g} s")
        return tuple(remarks)

    def visible_part(self, observation: Observation) -> NDArray[np.float32]:
        """The part of an observation that it was trained to see; PolicyError: it holds another history."""
        frames = observation.frames
        if len(frames) != len(LAGS):
            raise PolicyError(f"{self.name}: the observation holds {len(frames)} ticks, not {len(LAGS)}")
        shown = [number for place in self._shown for number in frames[place].values(observation.tick_seconds)]
        return np.array(shown + observation.tail(self.price), np.float32)
