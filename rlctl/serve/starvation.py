"""BE that has had too little for too long, told to whoever can move it elsewhere: an event, a metric, a command."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

from rlctl.config.serve import StarvedSection
from rlctl.envs.errors import ConfigError, in_one_line
from rlctl.envs.host.events import Events
from rlctl.envs.reins import Rein
from rlctl.envs.telemetry import number
from rlctl.log.record import Tick
from rlctl.safety.verdict import Reason

log = logging.getLogger(__name__)

COMMAND_SECONDS = 60.0
"""So long the command may take; then it is killed."""

DEATH_SECONDS = 0.1
"""So long the loop waits for one that was killed; one that sleeps in the kernel is reaped by a later look."""

FED_RATIO = 2.0
"""Of the share below which BE starves: at this mean it is fed again, so that a BE at the edge is not reported in turns.
It is no further from it than halfway to everything."""

MEANT = frozenset({Reason.OPERATOR, Reason.SCHEDULE})
"""Reasons for which BE has little because somebody wants it so."""

ABOUT_RATIO = 0.5
"""A policy that goes by levels has no less than this of what it may have, where that is why it has no more."""

WANTING_RATIO = 0.5
"""A task of BE waited for a CPU for this share of the time (PSI): BE would have used more than it did."""

BUSY = "cpus-busy"
"""The reason where BE might use at least twice of what it got: at its weight others had the CPUs."""

LOOK_SECONDS = 10.0
"""Between two looks whether a process is in BE's groups."""

EMPTY_SECONDS = 60.0
"""After so long without a process whoever comes begins anew; between two jobs the groups are empty for less."""


class StarvationDetector:
    """The mean of what BE had, as a share of its CPUs, and who is told when it is too little.

    In each tick BE had what it may use from then on. Where PSI says that it waited for a CPU for half of the time or
    more (WANTING_RATIO), it had the less of that and of what it used in the period before. At the least weight beside a
    busy LC it may use everything and gets nothing. Without PSI of BE's groups, and while its link or disk is held, only
    what it may use counts: of a job that copies next to no CPU time says nothing.

    Ticks in which a pause, a limit or the schedule holds BE, or in which its groups are empty, do not count. The mean
    is that of the others, as if no time had passed.

    A recorder; `events` are for the next tick.

    Args:
        section: When BE counts as starved, and the command.
        cpus: BE's CPUs, of which the shares are.
        has_processes: Answers whether a process is in BE's groups; asked only where BE had little.
    """

    def __init__(
        self,
        section: StarvedSection,
        cpus: float,
        tick_seconds: float,
        has_processes: Callable[[], bool] = lambda: True,
    ) -> None:
        self._section, self._cpus, self._tick_seconds, self._peopled = section, cpus, tick_seconds, has_processes
        self._shares: deque[tuple[float, str]] = deque(maxlen=max(round(section.after_seconds / tick_seconds), 1))
        self._sum, self._reasons, self._quiet_ticks = 0.0, Counter[str](), 0
        self._empty, self._empty_ticks, self._look_in_ticks = False, 0, 0
        self._events, self._command = Events(), _Command(section.command)
        self.starved = False

    def events(self) -> tuple[str, ...]:
        """What happened since the last call."""
        return self._events.drain()

    def write(self, tick: Tick) -> None:
        """Take in what BE had in this tick, and why no more."""
        self._command.look()
        # What BE had, in order: its share, whether anybody is there to use it, whether somebody wants it so.
        share, reason = self._had(tick)
        little = share < self._section.below_ratio * FED_RATIO
        self._empty_ticks = self._empty_ticks + 1 if little and self._is_empty() else 0
        if tick.be_vanished or self._empty_ticks * self._tick_seconds >= EMPTY_SECONDS:
            # Without a process of BE nothing starves.
            self._forget()
        elif not self._empty_ticks and not _meant(tick):
            self._count(share, reason)

    def close(self) -> None:
        """End a command that still runs."""
        self._command.end()

    def _had(self, tick: Tick) -> tuple[float, str]:
        """BE's share of its CPUs, from 0 to 1, and what held it there."""
        may_cpus, telemetry = tick.applied.usable_cpus, tick.telemetry
        used_cpus, waited = number(telemetry.be_cpus), number(telemetry.be_pressure_ratio)
        # PSI some: the share of time in which at least one task of BE was ready and had no CPU.
        wanting = telemetry.rein == Rein.CPU and waited is not None and waited >= WANTING_RATIO
        had_cpus = min(may_cpus, used_cpus) if wanting and used_cpus is not None else may_cpus
        # Less than half of what it may use: not the shield but the LC's work kept BE from the CPUs.
        if had_cpus < 0.5 * may_cpus:
            reason = BUSY
        else:
            cause = tick.verdict.cause(but=MEANT)
            # Numbers are masked, so that one reason is counted as one.
            wrong = re.sub(r"\d+(\.\d+)?", "...", tick.why_safe.partition(":")[0])
            reason = wrong or (str(cause.reason) if cause else f"policy {tick.acting or tick.policy}")
        return min(had_cpus / self._cpus, 1.0), reason

    def _is_empty(self) -> bool:
        """No process is in BE's groups, as the last look had it."""
        self._look_in_ticks -= 1
        if self._look_in_ticks <= 0:
            self._look_in_ticks = round(LOOK_SECONDS / self._tick_seconds)
            self._empty = not self._peopled()
        return self._empty

    def _forget(self) -> None:
        """Whoever comes begins anew."""
        if self.starved:
            self._fed("no process of BE is there any more", 0.0)
        self._shares.clear()
        self._reasons.clear()
        self._sum = 0.0

    def _fed(self, text: str, share: float) -> None:
        self.starved = False
        self._events.tell("be-fed", text, logging.INFO)
        self._command.run({"RLCTL_SHARE": f"{share:.4f}", "RLCTL_REASON": "", "RLCTL_FED": "1"}, must=True)

    def _count(self, share: float, reason: str) -> None:
        # A sliding mean: the oldest tick leaves the sum as the newest enters.
        if len(self._shares) == self._shares.maxlen:
            gone, why = self._shares[0]
            self._sum -= gone
            self._reasons[why] -= 1
            if not self._reasons[why]:
                del self._reasons[why]
        self._shares.append((share, reason))
        self._sum += share
        self._reasons[reason] += 1
        if len(self._shares) == self._shares.maxlen:
            self._judge(max(self._sum / len(self._shares), 0.0))

    def _judge(self, mean: float) -> None:
        seconds = self._section.after_seconds
        time_span = f"{seconds:g} s" if seconds < 120.0 else f"{seconds / 60.0:g} min"
        below = self._section.below_ratio
        # Hysteresis: fed again only well above the threshold, or a BE near it would start the command at every turn.
        if mean >= (min(FED_RATIO * below, (1.0 + below) / 2.0) if self.starved else below):
            if self.starved:
                self._fed(f"BE had {mean:.1%} of its CPUs in {time_span}", mean)
            return
        reason = self._reasons.most_common(1)[0][0]
        self._quiet_ticks -= 1
        if not self.starved:
            self.starved = True
            self._events.tell("be-starved", f"BE had {mean:.1%} of its CPUs in {time_span}, mostly for: {reason}")
        elif self._quiet_ticks > 0:
            return
        told = self._command.run({"RLCTL_SHARE": f"{mean:.4f}", "RLCTL_REASON": reason, "RLCTL_FED": "0"})
        self._quiet_ticks = round(self._section.again_seconds / self._tick_seconds) if told else 0


def _meant(tick: Tick) -> bool:
    """Somebody wants BE to have so little: people or the schedule allow no more than others, and BE has about that."""
    meant, others = math.inf, math.inf
    for bound in tick.verdict.bounds:
        if bound.reason in MEANT:
            meant = min(meant, bound.most.usable_cpus)
        else:
            others = min(others, bound.most.usable_cpus)
    return meant < math.inf and meant <= others and tick.verdict.allocation.usable_cpus >= ABOUT_RATIO * meant


def check_command(words: Sequence[str]) -> None:
    """Raise ConfigError where the program of `be.starved.command` is not there, or this user cannot run it."""
    if not words or shutil.which(words[0]):
        return
    program = words[0]
    if "/" not in program:
        raise ConfigError(f"be.starved.command: {program!r}: no such program in PATH; give its whole path")
    there = os.path.exists(program)
    raise ConfigError(f"be.starved.command: {program}: " + ("may not be executed" if there else "no such program"))


class _Command:
    """A program of the operator's, of which one runs at a time; what it prints goes where the service's log goes."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self._words, self._until_seconds = words, 0.0
        self._process: subprocess.Popen[bytes] | None = None
        # Environment of the command that runs.
        self._told: dict[str, str] = {}
        # Environment of the command that must still run.
        self._must: dict[str, str] = {}
        self._again_seconds = 0.0

    def run(self, told: dict[str, str], *, must: bool = False) -> bool:
        """Start it, unless there is none; False: one runs, and whoever wants this one comes again.

        Args:
            must: Start it when the one before has ended, and again until it ends well or something else is to be told.
        """
        self._must = told if must else {}
        if self._process is not None:
            return False
        self._start(told)
        return True

    def _start(self, told: dict[str, str]) -> None:
        if not self._words:
            return
        now = time.monotonic()
        self._told, self._until_seconds, self._again_seconds = told, now + COMMAND_SECONDS, now + COMMAND_SECONDS
        try:
            self._process = subprocess.Popen(
                self._words, env={**os.environ, **told}, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True
            )
        except (OSError, ValueError) as error:
            log.warning("be.starved.command cannot be started: %s", in_one_line(error))

    def look(self) -> None:
        """See whether it has ended, and how; one that takes too long is killed."""
        if self._process is None:
            if self._must and time.monotonic() >= self._again_seconds:
                self._start(self._must)
            return
        if (code := self._process.poll()) is not None:
            self._process = None
            if code:
                log.warning("be.starved.command ended with exit code %d", code)
            if self._told is not self._must:
                # Another message waits: start it at once.
                self._again_seconds = 0.0
            elif not code:
                self._must = {}
        elif time.monotonic() > self._until_seconds:
            log.warning("be.starved.command has not ended in %g s and is killed", COMMAND_SECONDS)
            self._until_seconds = math.inf
            self.end()

    def end(self) -> None:
        """Kill it with all that it has started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(DEATH_SECONDS)
                self._process = None
