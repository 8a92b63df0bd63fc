"""The reins of BE, what the LC waits for, and the law that chooses by it which rein moves BE's level.

An `Allocation` is a level of BE between the least and everything, whatever moves it: the CPUs, the host's link, or its
disks. The rein in hand carries the level; the others are free, but for the least level, which holds on all. In laws a
rein is its place among the reins.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any

from rlctl.envs.allocation import LITTLE_CPUS, Allocation, Limits
from rlctl.envs.law import law
from rlctl.envs.telemetry import LC_LINK, MOST, Telemetry, number


class Rein(StrEnum):
    """What a level of BE is a share of."""

    CPU = "cpu"
    LINK = "link"
    DISK = "disk"


REINS = tuple(Rein)
CPU, LINK, DISK = range(len(REINS))
"""Places of the reins."""

LINK_CARRIED = "link_carried_bytes"
"""The counter with what the link is taken to carry in a second."""

FELL = {Rein.LINK: "link_fell_ratio", Rein.DISK: "disk_fell_ratio"}
"""Counters with the share of that which is not carried, by what was missed in the window before; 0 in most ticks."""

LINK_SENT = "link_sent_ratio"
"""The counter with what the interface sent, by what the link is taken to carry."""

OTHERS = "others_link_ratio"
"""The counter with what all but BE sent, by the same."""

USE = {Rein.LINK: "be_link_ratio", Rein.DISK: "be_disk_ratio"}
"""Counters with BE's use of a rein: its level on the link as far as it used that, and of the disks by BE's own most."""

WAITS = {Rein.CPU: "a CPU", Rein.LINK: "its link", Rein.DISK: "its disk"}
"""What the LC waits for where BE is in its way there."""

WORTH_RATIO = 0.1
"""A share below it is not worth a word: for nine tenths of the time the LC then waits for nothing."""

LITTLE_RATIO = 0.05
"""BE that uses less of another rein than the CPUs is not what the LC waits behind."""

BUSY_RATIO = 0.5
"""An LC that is short of CPUs runs, or waits for one, for so much of the time at least."""

NEAR_RATIO = 0.5
"""So much of the most that it ever sent is near it. BE at a CPU quota sends in bursts, which fill a link for half of
the time, and others' packets wait behind each."""

EVIDENCE = 2
"""Windows that speak for another rein, and none in between for the one in hand, until it is taken."""

MEMORY_SECONDS = 600.0
"""For so long one such window is remembered: a policy that holds 99 % of them meets one in two minutes."""

KEEP_SECONDS = 30.0
"""For so long a rein that was taken is kept: what queued behind the other one is gone by then."""

MORE_RATIO = 1.3
"""So much more than usual is sent beside a BE that sends, as long as nobody counts its part."""

LEAST_RAN_RATIO = 0.25
"""A window in which BE ran for less counts as so much: what an LC waits for wavers by some hundredths in each."""

USUAL = 0.1
"""Weight of a window that held beside a frozen BE in what the LC usually waits for, which is nobody's doing."""

CARRIED_RATIO = 0.88
"""Of what a link is taken to carry, what all together may send. A full link drops what is sent again, and so
counts twice. And a class must be narrower than the link, or the queue in which the LC waits forms there (tc-htb(8))."""

DISK_CARRIED_RATIO = 0.8
"""Of what a disk is taken to carry, what all together may do. No kernel lets BE have what the LC leaves
block by block: what the LC wants at once must find room, and waits behind each large write of BE's."""

LEAST_DISK_BYTES = 1e6
"""A second; no group is held below it: a task that waits for one large write can neither be frozen nor end."""


@law
def share_of_link(level: float, others: float) -> float:
    """What all together may send, by what the link is taken to carry, where BE has a level of what the others leave.

    Args:
        level: Share of everything, where everything is what the LC does not feel.
        others: What all but BE sent, by the same.
    """
    return min(others + level * max(CARRIED_RATIO - others, 0.0), CARRIED_RATIO)


@law
def level_used(level: float, share: float, others: float, be: float) -> float:
    """BE's level on the link as far as it used that: where the others leave next to nothing, all of it or none.

    Args:
        share: What all might send, from `share_of_link`.
        others, be: What they and BE sent, by the same.
    """
    left = share - others
    if left > LITTLE_RATIO:
        return level * min(be / left, 1.0)
    return level if be > 0.0 or level < 1.0 else 0.0


@law
def share_of_disk(level: float, others: float) -> float:
    """What BE may do, by what the disk is taken to carry, where it has a level of what the others leave.

    Args:
        level: Share of everything, where everything is what the LC does not feel.
        others: What all but BE did, by the same.
    """
    return level * max(DISK_CARRIED_RATIO - others, 0.0)


@law
def lc_goes_first(rein: float, least_weight: bool) -> bool:
    """Whether BE of any level only has what the LC leaves: of a link or a disk, or of the CPUs at the least weight.

    Then everything is free until it missed.
    """
    return rein != CPU or least_weight


@law
def weigh(hand: Any, suspect: float, used: bool, now_seconds: float, worth: float) -> None:
    """Take in that a window speaks for a rein. Some must say the same, and what was taken is kept for a while.

    Args:
        hand: The rein in hand, and of the evidence its rein, windows and time, and when the one in hand was taken.
        used: BE uses the one in hand.
        worth: For how many windows it speaks.
    """
    again = suspect == hand["suspect"] and now_seconds - hand["seen_seconds"] <= MEMORY_SECONDS
    hand["windows"] = hand["windows"] + worth if again else worth
    hand["suspect"], hand["seen_seconds"] = suspect, now_seconds
    kept = used and now_seconds - hand["taken_seconds"] < KEEP_SECONDS
    if suspect != hand["rein"] and hand["windows"] >= EVIDENCE and not kept:
        hand["rein"], hand["taken_seconds"] = suspect, now_seconds


def waits_of(telemetry: Telemetry) -> dict[str, float]:
    """Shares of the time for which the LC waited, the largest first; of its link the share of requests."""
    run_delay = number(telemetry.lc_run_delay_ratio)
    pressure = number(telemetry.lc_pressure_ratio)
    known = {
        # PSI where there is a cgroup2 group; else the threads' waits, which may add up to more than the time.
        "a CPU": run_delay if pressure is None else pressure,
        "its disk": _counter(telemetry, "lc_io_pressure_ratio"),
        "memory": _counter(telemetry, "lc_memory_pressure_ratio"),
        "its link": _counter(telemetry, LC_LINK),
    }
    found = {what: min(share, 1.0) for what, share in known.items() if share is not None}
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def level_ratio(allocation: Allocation, cpus: int) -> float:
    """The level as a share of everything, in (0, 1]; that of a frozen BE is the one it has beneath."""
    return min(allocation.quota_cpus, float(allocation.cpuset_cpus), float(cpus)) / cpus


def on_cpus(allocation: Allocation, rein: Rein, limits: Limits) -> Allocation:
    """What the CPUs carry of a level: all of it under their own rein; else the least level, or else nothing.

    Frozen is frozen, and the least is the least, under each rein: so the safe allocation is safe whatever the LC waits
    for. In between the CPUs are free under another rein, or BE would be held twice.
    """
    return allocation if rein is Rein.CPU or limits.is_least(allocation) else limits.full


def used_cpus(telemetry: Telemetry, cpus: int) -> float | None:
    """What BE used of the rein that was in hand, in CPUs of a level; None where nobody knows."""
    if telemetry.rein == Rein.CPU:
        return number(telemetry.be_cpus)
    used = _counter(telemetry, USE[Rein(telemetry.rein)])
    return None if used is None else used * cpus


def is_mended(telemetry: Telemetry) -> bool:
    """What was missed in the window before was no level's doing: the link or disk is taken to carry less since then."""
    return any((_counter(telemetry, name) or 0.0) > 0.0 for name in FELL.values())


class ReinLaw:
    """Which rein is in hand: that of what the LC waited for more than usual when it missed its target beside BE.

    Args:
        reins: Those that this host has.

    Attributes:
        suspect: What the LC waited for beside BE in the last window; None where it held, or where nothing says.
    """

    def __init__(self, reins: Collection[Rein]) -> None:
        self._reins = frozenset(reins)
        self._usual: dict[str, float] = {}
        self.suspect: Rein | None = None
        self._used: list[Rein] = []
        self._hand = {"rein": CPU, "suspect": CPU, "windows": 0, "seen_seconds": 0.0, "taken_seconds": float("-inf")}

    @property
    def in_hand(self) -> Rein:
        """From the next write on; CPU at first."""
        return REINS[int(self._hand["rein"])]

    @in_hand.setter
    def in_hand(self, rein: Rein) -> None:
        self._hand["rein"] = REINS.index(rein)

    def drop(self, rein: Rein) -> None:
        """This host has it no more: a write to it failed again and again."""
        self._reins -= {rein}
        if self.in_hand is rein:
            self.in_hand = Rein.CPU

    def look(self, telemetry: Telemetry, level: Allocation, limits: Limits, ran_ratio: float = 1.0) -> Rein:
        """Take in a window; the rein in hand from now on.

        Args:
            level: What BE had in the window, or until it was cut.
            ran_ratio: Share of the window in which BE had that; less than all of it: then the guard saw late requests.
        """
        self.suspect, cut = None, ran_ratio < 1.0
        # 1. What the LC waits for alone, while its target is held, is its own affair.
        if telemetry.missed is False and limits.is_least(level) and level.frozen >= limits.can_freeze:
            sent = _sent_bytes(telemetry)
            for what, share in (waits_of(telemetry) | ({LINK_SENT: sent} if sent is not None else {})).items():
                self._usual[what] = (1.0 - USUAL) * self._usual.get(what, share) + USUAL * share
        # 2. Only a miss beside a BE that ran says anything, one that the guard kept from the window as well; of the
        # CPUs one beside more than the least level.
        if not (telemetry.missed or cut) or level.frozen:
            self._used = []
            return self.in_hand
        ran_ratio, least = max(ran_ratio, LITTLE_RATIO), limits.is_least(level)
        reins = self._reins - ({Rein.CPU} if least else set())
        # Beside the least level the LC may wait behind what BE has queued in the window before.
        queued, self._used = self._used, [rein for rein in reins if self._is_used(telemetry, rein, ran_ratio)]
        used = [rein for rein in Rein if rein in self._used or (least and rein in queued and rein in reins)]
        suspect = self.suspect = self._find_suspect(telemetry, used, limits.lc_cpus, ran_ratio)
        if suspect is None or (suspect is Rein.CPU and suspect not in reins):
            return self.in_hand  # the least level holds on the CPUs already
        # 3. It does not go to and fro. A cut window that was missed says it twice: the guard spared the LC another.
        worth = EVIDENCE if cut and telemetry.missed else 1
        weigh(self._hand, REINS.index(suspect), self.in_hand in used, telemetry.time_seconds, worth)
        return self.in_hand

    def _find_suspect(
        self, telemetry: Telemetry, used: Sequence[Rein], lc_cpus: float, ran_ratio: float
    ) -> Rein | None:
        """The rein that BE uses of what the LC waited for; None where it waited for nothing that is known."""
        longer, worth_ratio = self._longer_waits(telemetry), WORTH_RATIO * max(ran_ratio, LEAST_RAN_RATIO)
        if _sleeps(telemetry, lc_cpus):
            longer[Rein.CPU] = 0.0
        if used and longer[most := max(used, key=lambda rein: longer[rein])] >= worth_ratio:
            return most
        if max(longer.values()) >= WORTH_RATIO:  # behind others than BE
            return None
        # Late without a wait that the host can see: what is late then waits outside it, behind a full link.
        full = (_counter(telemetry, LINK_SENT) or 0.0) >= NEAR_RATIO * ran_ratio
        if full and Rein.LINK in used:
            return Rein.LINK
        # To hold BE by what it does not use is no hold at all: the CPUs reach everything that it computes.
        return Rein.CPU if self.in_hand not in used else None

    def _longer_waits(self, telemetry: Telemetry) -> dict[Rein, float]:
        """How much longer than alone the LC waited, of each rein."""
        waits = waits_of(telemetry)
        return {rein: waits.get(what, 0.0) - self._usual.get(what, 0.0) for rein, what in WAITS.items()}

    def _is_used(self, telemetry: Telemetry, rein: Rein, ran_ratio: float) -> bool:
        if rein is Rein.CPU:
            return (number(telemetry.be_cpus) or 0.0) >= LITTLE_CPUS * ran_ratio
        if rein is Rein.LINK and USE[rein] not in telemetry.counters:
            # Nobody counts BE's part yet: the LC waits there more than alone, or more is sent.
            sent, usual = _sent_bytes(telemetry), self._usual.get(LINK_SENT, math.inf)
            more = sent is not None and sent >= usual * (1.0 + (MORE_RATIO - 1.0) * ran_ratio)
            return more or (sent is not None and self._longer_waits(telemetry)[rein] >= WORTH_RATIO * ran_ratio)
        return (_counter(telemetry, USE[rein]) or 0.0) >= LITTLE_RATIO * ran_ratio


def _sleeps(telemetry: Telemetry, lc_cpus: float) -> bool:
    """Whether the LC neither ran nor waited for a CPU for half of the time: no work was there that lacked one.

    On a busy machine any service waits now and then, which makes no request late by a tenth of a second.
    """
    ran = number(telemetry.lc_cpus)
    return ran is not None and ran / lc_cpus + waits_of(telemetry).get("a CPU", 0.0) < BUSY_RATIO


def _sent_bytes(telemetry: Telemetry) -> float | None:
    """By all, in a second: what the link is taken to carry grows beside the first BE, and shares of it with it."""
    sent, carried = _counter(telemetry, LINK_SENT), _counter(telemetry, LINK_CARRIED)
    return None if sent is None else sent * (carried or 1.0)


def _counter(telemetry: Telemetry, name: str) -> float | None:
    reading = telemetry.counters.get(name)
    return None if reading is None else number(reading)


def rate_of(plain: object) -> float:
    """A rate from a file of state. Raises ValueError where it is none."""
    if isinstance(plain, bool) or not isinstance(plain, (int, float)) or not 0.0 <= plain <= MOST:
        raise ValueError(f"{plain!r} is not a rate")
    return float(plain)
