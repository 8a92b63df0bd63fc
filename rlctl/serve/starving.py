"""BE that has had too little for too long, told to whoever can move it elsewhere: an event, a metric, a command."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import subprocess
import time
from collections import Counter, deque

from rlctl.config.serve import StarvedSection
from rlctl.envs.errors import in_one_line
from rlctl.envs.host.events import Events
from rlctl.loop.narrator import be_vanished
from rlctl.loop.record import Tick

log = logging.getLogger(__name__)

COMMAND_SECONDS = 60.0
"""So long the command may take; then it is killed."""

DEATH_SECONDS = 0.1
"""So long the loop waits for one that was killed; one that sleeps in the kernel is reaped by a later look."""

FED_RATIO = 2.0
"""Of the share below which BE starves: at this mean it is fed again, so that one at the edge is not told in turns."""


class Starving:
    """The mean of what BE may use, and who is told when it is too little. A recorder; `events` are for the next tick.

    Args:
        section: When BE counts as starved, and the command.
        cpus: BE's CPUs, of which the shares are.
    """

    def __init__(self, section: StarvedSection, cpus: float, tick_seconds: float) -> None:
        self._section, self._cpus, self._tick_seconds = section, cpus, tick_seconds
        self._shares: deque[tuple[float, str]] = deque(maxlen=max(round(section.after_seconds / tick_seconds), 1))
        self._sum, self._reasons, self._quiet_ticks = 0.0, Counter[str](), 0
        self._events, self._command = Events(), _Command(section.command)
        self.starved = False

    def events(self) -> tuple[str, ...]:
        """What happened since the last call."""
        return self._events.drain()

    def write(self, tick: Tick) -> None:
        """Take in what BE may use from this tick on, and why no more."""
        self._command.look()
        if be_vanished(tick):  # nobody is there to starve, and whoever comes begins anew
            self._shares.clear()
            self._reasons.clear()
            self._sum, self.starved = 0.0, False
            return
        share = min(tick.applied.usable_cpus / self._cpus, 1.0)
        decisive = tick.verdict.decisive
        reason = str(decisive[0].reason) if decisive else f"policy {tick.acting or tick.policy}"
        if len(self._shares) == self._shares.maxlen:
            gone, why = self._shares[0]
            self._sum -= gone
            self._reasons[why] -= 1
        self._shares.append((share, reason))
        self._sum += share
        self._reasons[reason] += 1
        if len(self._shares) == self._shares.maxlen:
            self._judge(max(self._sum / len(self._shares), 0.0))

    def close(self) -> None:
        """End a command that still runs."""
        self._command.end()

    def _judge(self, mean: float) -> None:
        minutes = self._section.after_seconds / 60.0
        if mean >= self._section.below_ratio * (FED_RATIO if self.starved else 1.0):
            if self.starved:
                self.starved = False
                self._events.tell("be-fed", f"BE had {mean:.1%} of its CPUs in the last {minutes:g} min", logging.INFO)
            return
        reason = self._reasons.most_common(1)[0][0]
        self._quiet_ticks -= 1
        if not self.starved:
            self.starved = True
            text = f"BE might use {mean:.1%} of its CPUs in the last {minutes:g} min, mostly for: {reason}"
            self._events.tell("be-starved", text)
        elif self._quiet_ticks > 0:
            return
        self._quiet_ticks = round(self._section.again_seconds / self._tick_seconds)
        self._command.run({"RLCTL_SHARE": f"{mean:.4f}", "RLCTL_REASON": reason})


class _Command:
    """A program of the operator's, of which one runs at a time; what it prints goes where the service's log goes."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self._words, self._until_seconds = words, 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, told: dict[str, str]) -> None:
        """Start it, unless there is none, or it runs."""
        if not self._words or self._process is not None:
            return
        self._until_seconds = time.monotonic() + COMMAND_SECONDS
        try:
            self._process = subprocess.Popen(
                self._words, env={**os.environ, **told}, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True
            )
        except (OSError, ValueError) as error:
            log.warning("be.starved.command cannot be started: %s", in_one_line(error))

    def look(self) -> None:
        """See whether it has ended, and how; one that takes too long is killed."""
        if self._process is None:
            return
        if (code := self._process.poll()) is not None:
            self._process = None
            if code:
                log.warning("be.starved.command ended with exit code %d", code)
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
