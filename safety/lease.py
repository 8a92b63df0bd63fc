"""The controller's side of the watchdog: a lease, renewed by every tick that was completed in time."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rlctl.envs.errors import HostError
from rlctl.envs.host.cgroup.emergency import EmergencyPlan
from rlctl.envs.host.cgroup.journal import JOURNAL, LOCK, RESTORED
from rlctl.envs.host.cgroup.kernel import identity_of
from rlctl.safety import watchdog

# How long a watchdog may take from its start to its first answer, on a host that is short of everything. The first
# one's is waited for; until a later one has answered BE is at the safe allocation.
CONFIRM_SECONDS = 10.0

# How long a watchdog may take to give up its claim on BE, before it is ended instead.
LEAVE_SECONDS = 2.0

# How long a watchdog is waited for that has nothing left to do; one that waits for us must not be waited for.
RELEASE_SECONDS = 0.5

# One that has answered before and owes an answer for less is not taken to hang, however short the lease is.
SHORTEST_SILENCE_SECONDS = 1.0

# Between starts after the first replacement, twice as long each time: seven in the first minute, then four.
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 16.0

# A watchdog that has lived so long did not die of its start: the next one is started at once.
PROVEN_SECONDS = 60.0

_log = logging.getLogger(__name__)


class Watchdog:
    """One running watchdog process; OSError: it cannot be started."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._said = self._heard = self._plan = 0
        self._unanswered_since: float | None = None
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        with theirs, contextlib.ExitStack() as failing:
            failing.callback(self._channel.close)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", watchdog.__file__, *arguments],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                # From there `python -m rlctl` finds this very rlctl, installed or not.
                cwd=Path(__file__).parents[2],
                # A Ctrl-C in the controller's terminal is not meant for it.
                start_new_session=True,
            )
            failing.pop_all()
        self.pid = self._process.pid
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        # It holds a descriptor for each directory of the plan.
        with contextlib.suppress(OSError):
            resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (most, most))

    def say(self, verb: str, now_seconds: float) -> bool:
        """One word, without waiting; False when it was not taken."""
        try:
            self._channel.send(f"{verb} {self._said + 1}".encode())
        except OSError:
            return False
        self._count_word(now_seconds)
        return True

    def give(self, plan: bytes, now_seconds: float) -> None:
        """Another plan: a file in memory, so that its length does not matter. Raises OSError where it was not taken."""
        with open(os.memfd_create("emergency-plan", os.MFD_CLOEXEC), "wb", buffering=0) as file:
            file.write(plan)
            socket.send_fds(self._channel, [f"plan {self._said + 1}".encode()], [file.fileno()])
        self._count_word(now_seconds)
        self._plan = self._said

    def silent_seconds(self, now_seconds: float) -> float:
        """How long it has owed an answer."""
        with contextlib.suppress(OSError):
            while answer := self._channel.recv(32):
                self._heard = int(answer)
                self._unanswered_since = None if self._heard == self._said else now_seconds
        return 0.0 if self._unanswered_since is None else now_seconds - self._unanswered_since

    def obeys(self, seconds: float) -> bool:
        """Wait until every word to it is answered."""
        self._channel.settimeout(seconds)
        try:
            while self._heard < self._said and (answer := self._channel.recv(32)):
                self._heard = int(answer)
        except OSError:
            return False
        finally:
            self._channel.setblocking(False)
        return self._heard == self._said

    @property
    def answered(self) -> bool:
        """It has come up: it answered a word."""
        return self._heard > 0

    @property
    def ready(self) -> bool:
        """It has confirmed its last plan."""
        return self._heard >= self._plan > 0

    def exit_reason(self) -> str:
        """How it ended; empty while it runs."""
        code = self._process.poll()
        return "" if code is None else f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def kill(self) -> None:
        """End it at once: a watchdog that hangs must not wake up beside its successor."""
        self._process.kill()
        # The kernel holds it, and lets it do nothing more.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(RELEASE_SECONDS)
        self._channel.close()

    def release(self) -> None:
        """Let it end by itself, and wait for that, unless it is busy putting the originals back."""
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(RELEASE_SECONDS)

    def _count_word(self, now_seconds: float) -> None:
        self._said += 1
        if self._unanswered_since is None:
            self._unanswered_since = now_seconds


class Lease:
    """A running watchdog, and the duty to renew: see `rlctl.safety.watchdog` for what it does when nobody does.

    In each tick `check` comes between ruling and writing, and `renew` after writing. In that order nothing is written
    on the strength of a verdict that grew old while the controller hung, and a write that got stuck halfway renews
    nothing: the watchdog then writes the safe allocation over it, and so does the next tick.

    `leave`, before the originals are put back, ends the watchdog's claim on BE; from then on it only sees to it that
    they are put back. `close` releases it.

    Args:
        lease_seconds: How long the watchdog waits for a renewal.
        restore_after_seconds: How long it then waits for the controller's return. After that it puts the originals
            back where the controller died; one that hangs it ends, and BE stays held.

    Attributes:
        restarts: How often a watchdog died or hung and had to be replaced.

    Raises:
        HostError: No watchdog can be started.
    """

    def __init__(
        self,
        plan: EmergencyPlan,
        state_dir: Path,
        lease_seconds: float,
        restore_after_seconds: float,
        *,
        start: Callable[[Sequence[str]], Watchdog] = Watchdog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lease_seconds = lease_seconds
        state = state_dir.absolute()
        self._journal = state / JOURNAL
        self._identity = identity_of(self._journal)
        restore = (sys.executable, "-m", "rlctl", "restore", "--state", str(state))
        times = (str(lease_seconds), str(restore_after_seconds))
        self._arguments = (str(os.getpid()), *times, str(state / LOCK), str(self._journal), *restore)
        self._plan = plan.to_bytes()
        self._run, self._clock = start, clock
        self._watchdog: Watchdog | None = None
        self._retry_seconds = 0.0
        self.restarts = 0
        self._started = self._checked = self._renewed = clock()
        if why := self._start(self._started) or self._await_watchdog():
            raise HostError(f"{why}; to do without one set watchdog: {{enabled: false}}")
        self._checked, self._retry_seconds = clock(), 0.0
        self.renew()

    @property
    def pid(self) -> int | None:
        """The watchdog's process, for those who measure it."""
        return None if self._watchdog is None else self._watchdog.pid

    def check(self) -> str:
        """Why BE must be at the safe allocation in this tick, or nothing. Restarts a watchdog that died or hangs."""
        now = self._checked = self._clock()
        # No watchdog, no growth: if this process died now nobody would restrict BE.
        if why := self._attend(now):
            return why
        late_seconds = now - self._renewed
        return f"no tick completed for {late_seconds:.1f} s" if late_seconds > self.lease_seconds else ""

    def why_lost(self) -> str:
        """Why this controller may write no more, or nothing.

        Its watchdog ends it before it puts the originals back. Where it may not, or where an operator forced
        `rlctl restore`, the journal is gone: what is written now would never be put back.
        """
        # `restore` renames it. A journal that was unlinked or replaced is written anew, and is no reason to stop.
        if (there := identity_of(self._journal)) is not None:
            self._identity = there
        elif self._identity is not None and self._identity == identity_of(self._journal.with_name(RESTORED)):
            return f"{self._journal} is set aside: somebody put the originals back"
        return ""

    def renew(self, *, safe: bool = False) -> None:
        """Renew: the tick whose verdict was last checked is complete. One system call; never raises, never waits.

        Args:
            safe: BE is no freer than the safe allocation, which does not grow old however long the tick took.
        """
        now = self._clock()
        # A tick that took longer than the lease wrote on a verdict that the watchdog has overruled meanwhile: it must
        # not renew.
        in_time = safe or now - self._checked <= self.lease_seconds
        if in_time and self._watchdog and self._watchdog.say("renew", now):
            self._renewed = now

    def replan(self, plan: EmergencyPlan) -> None:
        """Another plan from now on: BE's groups have changed. Until it is confirmed `check` has a reason."""
        self._plan = plan.to_bytes()
        if self._watchdog is not None:
            try:
                self._watchdog.give(self._plan, self._clock())
            except OSError as error:
                # The watchdog hangs: `check` starts another, which gets this plan.
                _log.error("the watchdog (pid %d) takes no plan: %s", self._watchdog.pid, error.strerror or error)
                self._watchdog.kill()

    def leave(self) -> None:
        """The controller is about to put the originals back itself; returns when the watchdog keeps out of its way."""
        leaving = self._watchdog
        if leaving is not None and not (leaving.say("leave", self._clock()) and leaving.obeys(LEAVE_SECONDS)):
            leaving.kill()
            self._watchdog = None

    def close(self) -> None:
        """Release the watchdog. Idempotent."""
        released, self._watchdog = self._watchdog, None
        if released is not None:
            released.release()

    def _await_watchdog(self) -> str:
        """Wait for the first watchdog; why it is of no use."""
        running = self._watchdog
        if running is None or running.obeys(CONFIRM_SECONDS):
            return ""
        why = f"the watchdog {running.exit_reason() or 'does not answer'}"
        running.kill()
        return why

    def _attend(self, now: float) -> str:
        """See that a watchdog is awake; the reason if none is."""
        if self._watchdog is None:
            return self._start(now) or "the watchdog has just been started"
        if why := self._trouble(self._watchdog, now):
            self.restarts += 1
            _log.error("%s; BE goes to the safe allocation", why)
            # SIGKILL: one that only hung must not wake up and write beside its successor.
            self._watchdog.kill()
            self._watchdog = None
            # A watchdog that lived long died of something new: the next start need not wait.
            if now - self._started >= PROVEN_SECONDS:
                self._retry_seconds = 0.0
            self._start(now)
            return why
        return "" if self._watchdog.ready else "the watchdog has not confirmed its plan yet"

    def _trouble(self, running: Watchdog, now: float) -> str:
        if end := running.exit_reason():
            return f"the watchdog (pid {running.pid}) {end}"
        silent_seconds = running.silent_seconds(now)
        # A fresh process may be slow to come up on a busy host; later it answers within the lease.
        shortest = SHORTEST_SILENCE_SECONDS if running.answered else CONFIRM_SECONDS
        if silent_seconds > max(self.lease_seconds, shortest):
            return f"the watchdog (pid {running.pid}) has not answered for {silent_seconds:.1f} s"
        return ""

    def _start(self, now: float) -> str:
        """Start a watchdog, unless one died of its start just now; why there is none."""
        if now - self._started < self._retry_seconds:
            return "there is no watchdog: the last one did not live long"
        self._started = now
        self._retry_seconds = min(max(2.0 * self._retry_seconds, FIRST_RETRY_SECONDS), LONGEST_RETRY_SECONDS)
        try:
            self._watchdog = self._run(self._arguments)
            self._watchdog.give(self._plan, now)
        except OSError as error:
            if self._watchdog is not None:
                self._watchdog.kill()
                self._watchdog = None
            why = f"the watchdog cannot be started: {error.strerror or error}"
            _log.error("%s", why)
            return why
        _log.info("watchdog started: pid %d", self._watchdog.pid)
        return ""
