"""One owner per knob: other writers are noticed, named by their place, and answered without a fight.

Some programs put their own value back again and again; operators want edits by hand to last (koordinator #2591). One
rule serves both: what another program wrote is a *further bound* on that knob, beside the verdict. It can only
restrict. A value freer than the verdict is corrected in the same tick, in every mode, however often it comes. A tighter
one binds for a while, by mode:

`reassert`: not at all the first time, then 2, 4, 8 ... ticks, up to a limit; it starts over after a quiet time.
`yield`: until the other program writes something else.
`alarm`: as `yield`, and the log says so as an error.
"""

from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.state import Knob, Settings, in_words, tighter
from rlctl.envs.host.cgroup.witness import Witness
from rlctl.envs.host.events import Events

MOST_BACKOFF_TICKS = 60
# So many times the longest back-off without a foreign write, and the knob counts as undisputed again.
QUIET_BACKOFFS = 2


_SUSPECTS = (
    (re.compile(r"kubepods"), "kubelet"),
    (re.compile(r"(^|/)(docker|libpod|crio|cri-containerd|nerdctl)\b|libpod_parent"), "the container runtime"),
    (re.compile(r"\.(slice|service|scope)(/|$)"), "systemd"),
)


def suspect(group: str) -> str:
    """The program that manages groups in such a place, with "probably", or "unknown".

    Args:
        group: Path below the hierarchy's root.
    """
    return next((f"probably {name}" for pattern, name in _SUSPECTS if pattern.search(group)), "unknown")


class Foreign(StrEnum):
    """What another program's tighter setting of a BE knob is answered with; a freer one is always corrected."""

    REASSERT = "reassert"
    YIELD = "yield"
    ALARM = "alarm"


@dataclass(slots=True)
class _Claim:
    """Another program's hold on one knob."""

    value: Knob
    times: int
    last_tick: int
    ends_tick: float  # from then on it binds no more


class Ownership:
    """Foreign writes to BE's knobs, and the bounds that come of them.

    Args:
        most_backoff_ticks: The longest that `reassert` leaves a tighter value alone.
        events: Takes every foreign write; the log hears of the 1st, 2nd, 4th, 8th ... to a knob.
        witness: Tells between the ticks that another program wrote; is told which groups come and go.
    """

    def __init__(
        self,
        foreign: Foreign = Foreign.REASSERT,
        most_backoff_ticks: int = MOST_BACKOFF_TICKS,
        events: Events | None = None,
        witness: Witness | None = None,
    ) -> None:
        self.foreign = foreign
        self.events = events or Events()
        self._witness = witness
        self._most_backoff_ticks = most_backoff_ticks
        self._tick = 0
        self._claims: dict[tuple[Group, str], _Claim] = {}

    def watch(self, group: Group) -> None:
        """A group comes under control."""
        if self._witness:
            self._witness.watch(path for knob in Settings.__slots__ for path in group.knob_files(knob))

    def begin_tick(self) -> None:
        """Time passes; knobs that nobody else wrote for long are undisputed again."""
        self._tick += 1
        quiet_ticks = QUIET_BACKOFFS * self._most_backoff_ticks
        for key, claim in tuple(self._claims.items()):
            if self._tick - claim.last_tick > quiet_ticks:
                claim.times = 0
                if self._tick >= claim.ends_tick:
                    del self._claims[key]

    def compare(self, group: Group, left: Settings, now: Settings, safe: Settings) -> None:
        """Take every knob that reads otherwise than we left it for another program's.

        Args:
            safe: What rlctl's watchdog writes; it may have come no further when we went on.
        """
        for knob, (ours, theirs) in left.changes(now).items():
            # Each knob has a claim of its own: who insists on a quota says nothing of the CPUs.
            claim = self._claims.setdefault((group, knob), _Claim(theirs, 0, 0, 0.0))
            claim.value, claim.times, claim.last_tick = theirs, claim.times + 1, self._tick
            claim.ends_tick = self._tick + self._patience_ticks(claim.times)
            who = "rlctl's watchdog, or as it would" if theirs == getattr(safe, knob) else suspect(group.name)
            often = "" if claim.times == 1 else f", {claim.times} times now"
            text = f"{group.name}: {knob} {in_words(ours)} -> {in_words(theirs)}, by {who}{often}"
            self.events.tell("foreign-write", text, self._level(claim.times))

    def bound(self, group: Group, wanted: Settings) -> Settings:
        """What a group may have: what we want for it, within what others claim. Never freer than what we want."""
        for knob in Settings.__slots__ if self._claims else ():
            claim, ours = self._claims.get((group, knob)), getattr(wanted, knob)
            if claim is not None and ours is not None and self._tick < claim.ends_tick:
                # The meet of both wishes: another program may restrict BE further, never free it.
                changed: dict[str, Any] = {knob: tighter(ours, claim.value)}
                wanted = replace(wanted, **changed)
        return wanted

    def forget(self, group: Group) -> None:
        """The group is gone, or another one has its name."""
        for key in [key for key in self._claims if key[0] is group]:
            del self._claims[key]
        if self._witness:
            self._witness.forget(group.directories)

    def _patience_ticks(self, times: int) -> float:
        if self.foreign is not Foreign.REASSERT:
            return math.inf
        # Once may be an accident. kubelet and systemd repeat theirs about every minute (koordinator #1734): whoever
        # insists is left alone for longer each time, rather than fought with at every tick.
        return 0 if times == 1 else min(2 ** min(times - 1, 30), self._most_backoff_ticks)

    def _level(self, times: int) -> int | None:
        # The 1st, 2nd, 4th, 8th ... time.
        if times & (times - 1):
            return None
        return logging.ERROR if self.foreign is Foreign.ALARM else logging.WARNING
