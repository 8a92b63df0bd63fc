"""The shield: what may be written is the most restrictive of the proposal and of every guard's bound."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlctl.envs.actions import asked_by_each
from rlctl.envs.allocation import Allocation, Limits, most_restrictive
from rlctl.envs.arrays import Flags
from rlctl.envs.telemetry import Telemetry
from rlctl.safety.guard import Guard
from rlctl.safety.harm import WAIVED, HarmEvidence
from rlctl.safety.profile import Profile
from rlctl.safety.user_guard import UserGuard, UserMemory
from rlctl.safety.verdict import Bound, Verdict


@dataclass(frozen=True, slots=True)
class EachLc:
    """What a guard remembers of each of several LCs, by name: as if each had a shield of its own."""

    lcs: Mapping[str, Any]


def advance(guards: tuple[Guard[Any], ...], memories: tuple[Any, ...], telemetry: Telemetry) -> tuple[Any, ...]:
    """Every guard's memory after a tick; telemetry without a finite time teaches nothing."""
    # Without a time nothing can be said to have passed: a memory that took such a tick in would be wrong for good.
    if not math.isfinite(telemetry.time_seconds):
        return memories
    return tuple(_advance_memory(guard, memory, telemetry) for guard, memory in zip(guards, memories, strict=True))


def _advance_memory(guard: Guard[Any], memory: Any, telemetry: Telemetry) -> Any:
    """A guard's memory after a tick, of one LC or of each of several."""
    # A guard that saw only the worst LC of each tick would forget what the others did: that one of them is cooling
    # down, or under high load. So each LC's readings teach its own memory; readings of none in particular teach all.
    if telemetry.ruling:
        known = memory.lcs if isinstance(memory, EachLc) else {}
        return EachLc({name: guard.advance(known.get(name, guard.start()), one) for name, one in telemetry.lcs.items()})
    if isinstance(memory, EachLc):
        return EachLc({name: guard.advance(one, telemetry) for name, one in memory.lcs.items()})
    return guard.advance(memory, telemetry)


def bounds(
    guards: tuple[Guard[Any], ...],
    memories: tuple[Any, ...],
    telemetry: Telemetry,
    current: Allocation,
    limits: Limits,
) -> tuple[Bound, ...]:
    """Every guard's bound of a tick, whatever is proposed; of several LCs, each guard's bound for each of them."""
    # At the least weight a BE that nothing speaks against has what the kernel gives it: for each LC by itself.
    cleared = _list_cleared(guards, memories) if limits.least_weight else frozenset()
    return tuple(
        bound
        for guard, memory in zip(guards, memories, strict=True)
        for bound in _bounds_of(guard, memory, telemetry, current, limits, cleared)
        if bound is not None
    )


def _list_cleared(guards: tuple[Guard[Any], ...], memories: tuple[Any, ...]) -> frozenset[str]:
    """Names of the LCs that BE is not seen to harm, the empty one where there is only one LC."""
    record = next(
        (memory for guard, memory in zip(guards, memories, strict=True) if isinstance(guard, HarmEvidence)), None
    )
    records = record.lcs if isinstance(record, EachLc) else {"": record} if record is not None else {}
    return frozenset(name for name, one in records.items() if one.cleared)


def _bounds_of(
    guard: Guard[Any],
    memory: Any,
    telemetry: Telemetry,
    current: Allocation,
    limits: Limits,
    cleared: frozenset[str],
) -> Iterator[Bound | None]:
    waived = cleared if isinstance(guard, WAIVED) else frozenset()
    if not isinstance(memory, EachLc):
        yield None if waived else guard.bound(memory, telemetry, current, limits)
        return
    for name, one in memory.lcs.items():
        bound = None if name in waived else guard.bound(one, telemetry.lcs.get(name, telemetry), current, limits)
        yield bound and replace(bound, detail=f"LC {name}: {bound.detail}" if bound.detail else f"LC {name}")


def judge(given: tuple[Bound, ...], proposed: Allocation) -> Verdict:
    """The verdict on a proposal: the greatest lower bound of it and all bounds."""
    # Knob by knob the tightest setting of all. It depends on no order of the guards, a further bound can only restrict
    # further, and nothing that a bound forbids is let through, whoever proposed it. What evidence waives is not given.
    return Verdict(most_restrictive(proposed, *(bound.most for bound in given)), proposed, given)


class Shield:
    """The guards of one host, and what they remember.

    It opens no file and reads no clock, and what it remembers ends with it: each start of the service, and each reload
    with other constants, makes another. It learns from each Telemetry object once: to rule again on the same one, for
    a mask or for shadow policies, changes nothing. Apply one verdict per telemetry.
    """

    def __init__(self, profile: Profile, limits: Limits) -> None:
        self.profile = profile
        self.limits = limits
        self.guards = profile.guards()
        self.digest = profile.digest
        self._said: tuple[Bound, ...] = ()
        self._current: Allocation | None = None
        self.reset()

    @property
    def state(self) -> Mapping[str, object]:
        """What each shipped guard with a memory remembers, in plain values for the tick log."""
        named = zip(self.guards, self._memories, strict=True)
        shipped = ((guard, memory) for guard, memory in named if not isinstance(guard, UserGuard))
        return {guard.name: _plain(memory) for guard, memory in shipped if memory is not None}

    def hold(self, said: tuple[Bound, ...]) -> None:
        """From now on no verdict is freer than these bounds of the service either; they replace those before."""
        self._said = said
        self._current = None

    def follow_weight(self, *, least: bool) -> None:
        """Go by whether BE's least weight counts now: without it nothing is waived, see `rlctl.safety.harm`."""
        if least != self.limits.least_weight:
            self.limits = replace(self.limits, least_weight=least)
            self._current = None

    def reset(self) -> None:
        """Forget everything but the service's bounds; nothing is allowed on the strength of what was seen before."""
        self._memories = tuple(guard.start() for guard in self.guards)
        self._learnt: Telemetry | None = None
        self._current = None
        self._given: tuple[Bound, ...] = ()

    def resume(self, remembered: Mapping[str, Any], telemetry: Telemetry) -> bool:
        """Go on from what the guards of another shield remembered after a tick, as its `state` has it.

        Args:
            telemetry: Readings of that tick, which are learnt already.

        Returns:
            False, and nothing has changed, where that is no memory of these guards.
        """
        try:
            self._memories = tuple(_restore_memory(guard.start(), remembered.get(guard.name)) for guard in self.guards)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            return False
        self._learnt, self._current = telemetry, None
        return True

    def rule(self, telemetry: Telemetry, current: Allocation, proposed: Allocation) -> Verdict:
        """What may be written.

        Args:
            telemetry: This tick's readings, in whatever state.

        Returns:
            A verdict whose allocation is at most the proposal and at most every guard's bound.
        """
        # The bounds are worked out without the proposal: no policy can talk a guard out of one.
        return judge(self._bounds(telemetry, current), proposed)

    def mask(self, telemetry: Telemetry, current: Allocation) -> Flags:
        """Which moves are allowed: bool, shape (len(MOVES),).

        Allowed is a move that `rule` lets through unchanged; `freeze` always is, for it asks for the safe allocation.
        """
        # A move is allowed iff its allocation is at most the meet of all bounds, which is what `rule` writes.
        most = most_restrictive(self.limits.full, *(bound.most for bound in self._bounds(telemetry, current)))
        return np.array([asked.at_most(most) for asked in asked_by_each(current, self.limits)])

    def _bounds(self, telemetry: Telemetry, current: Allocation) -> tuple[Bound, ...]:
        # By identity: an equal copy is a tick in which no time passed, which earns BE nothing. The bounds depend on no
        # proposal, so those of a tick serve its mask, its ruling, and any number of policies that share the shield.
        if telemetry is self._learnt and current is self._current:
            return self._given
        if telemetry is not self._learnt:
            self._memories = advance(self.guards, self._memories, telemetry)
            self._learnt = telemetry
        own = bounds(self.guards, self._memories, telemetry, current, self.limits)
        self._current, self._given = current, (*own, *self._said)
        return self._given


def _plain(memory: object) -> object:
    """A guard's memory as plain values by name; None for a number that there is none of."""
    if isinstance(memory, EachLc):
        return {"lcs": {name: _plain(one) for name, one in memory.lcs.items()}}
    if not isinstance(memory, tuple):
        return memory
    values = memory._asdict().items()  # type: ignore[attr-defined]
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in values}


def _restore_memory(fresh: Any, remembered: Any) -> Any:
    """A guard's memory; one for each LC where there were several."""
    if isinstance(remembered, Mapping) and remembered.keys() == {"lcs"}:
        return EachLc({str(name): _memory(fresh, one) for name, one in remembered["lcs"].items()})
    return _memory(fresh, remembered)


def _memory(fresh: Any, remembered: Mapping[str, Any] | None) -> Any:
    """A guard's memory out of plain values; numbers that JSON does not have stand there as text.

    Args:
        fresh: The guard's memory before any telemetry, which has the fields and their types.

    Raises:
        KeyError, OverflowError, TypeError, ValueError: It is no memory of this guard.
    """
    if fresh is None or isinstance(fresh, UserMemory):
        return fresh  # a user's guard begins anew: what it remembered stands in no log
    if not isinstance(remembered, Mapping):
        raise TypeError(f"{remembered!r} is no memory")
    values = {name: float(value) if isinstance(value, str) else value for name, value in remembered.items()}
    for name, usual in fresh._asdict().items():
        value = values[name]
        if value is None and isinstance(usual, float) and math.isnan(usual):
            values[name] = usual
        elif not isinstance(value, (int, float)) or isinstance(value, bool) != isinstance(usual, bool):
            raise TypeError(f"{name} cannot be {value!r}")
        elif math.isnan(float(value)):
            raise ValueError(f"{name} cannot be {value!r}")
    return type(fresh)(**values)
