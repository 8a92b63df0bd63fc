"""The watchdog: a process of its own that takes BE to the safe allocation when the controller falls silent.

`rlctl.safety.lease` starts it as `python -I -S watchdog.py ...`; nobody calls it by hand. It shares nothing with the
controller's interpreter and imports next to nothing, so that it stays small and cannot hang where that one does.
What it writes was worked out beforehand (`rlctl.envs.host.cgroup.emergency`): here is no notion of quotas and cpusets.

Its life, top down as in `main`: it guards while word comes from the controller in time; else it holds BE at the safe
allocation until the controller is back. When that stays away and had died, it becomes `rlctl restore`. One that hung is
ended, and BE stays held for its successor: what it hung over may still be there.
"""

from __future__ import annotations

# Not `socket`: that loads enum and selectors, and this process has to stay small.
import _socket
import errno
import fcntl
import os
import select
import signal
import sys
import time

# How long one stage of the plan, the freeze, may take before the next is begun beneath it; as in
# `rlctl.envs.host.cgroup.settings`.
HEAD_START_SECONDS = 0.025

# Between looks at what was written; each is twice the one before it.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 1.0

# How long a controller may take to die of SIGKILL; one that sleeps in the kernel takes longer.
END_SECONDS = 5.0

SUCCESSOR_SECONDS = 40.0
"""Whoever holds the state directory for longer than a start takes that fails in the end is another controller."""

# The last to be killed for memory: it is small, and everything else relies on it.
OOM_SCORE = b"-999"
# So much fits whole into a pipe that select calls writable.
PIPE_BUF = 4096
GONE = (errno.ENOENT, errno.ENODEV)

_told_to_end: list[int] = []


class PlannedWrite:
    """One write of the plan.

    Attributes:
        probe: File of the same group that tells whether it has taken.
        wanted: A whole line of that file that says yes.
    """

    __slots__ = ("folder", "identity", "name", "probe", "text", "wanted")

    def __init__(self, line: bytes) -> None:
        self.identity, self.folder, self.name, self.text, self.probe, self.wanted = line.split(b"\0")


class Plan:
    """What to write, in stages, with the groups' directories held open.

    A held directory is the very group that the plan was made for. If it was removed, opening a file below it fails,
    even if another group took its name. So nothing is written to a group that is not known to be BE's.

    Args:
        data: One step per line, its fields between NULs; an empty line between stages.
    """

    def __init__(self, data: bytes = b"") -> None:
        self.stages = [[PlannedWrite(line) for line in stage.split(b"\n")] for stage in data.split(b"\n\n") if stage]
        self._open: dict[bytes, int] = {}
        for stage in self.stages:
            for step in stage:
                self._hold(step)

    def enforce(self) -> list[str]:
        """Write stage by stage; returns what has not taken, each with its reason."""
        refused: list[str] = []
        for stage in self.stages:
            # The freeze gets a head start; what did not take is written beneath it all the same.
            if refused:
                time.sleep(HEAD_START_SECONDS)
            refused += self._sweep(stage)
        return refused

    def repeat(self) -> list[str]:
        """Write once more what does not read as wanted; returns what still does not."""
        return [reason for stage in self.stages for reason in self._sweep(stage)]

    def close(self) -> None:
        """Let go of the directories. Idempotent."""
        while self._open:
            os.close(self._open.popitem()[1])

    def _hold(self, step: PlannedWrite) -> None:
        if step.folder in self._open:
            return
        try:
            folder = os.open(step.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in GONE:
                return
            raise
        status = os.fstat(folder)
        # Device and inode tell this group from a later one of the same name.
        if b"%d:%d" % (status.st_dev, status.st_ino) == step.identity:
            self._open[step.folder] = folder
        else:
            os.close(folder)

    def _sweep(self, stage: list[PlannedWrite]) -> list[str]:
        outcomes = [(step, self._settle(step)) for step in stage]
        return [f"{os.fsdecode(step.folder)}/{os.fsdecode(step.name)}: {why}" for step, why in outcomes if why]

    def _settle(self, step: PlannedWrite) -> str:
        """Write what does not read as wanted; why it has not taken, or nothing."""
        folder = self._open.get(step.folder)
        if folder is None or _reads(folder, step):
            return ""
        try:
            _write(folder, step)
        except OSError as error:
            return "" if error.errno in GONE else os.strerror(error.errno or 0)
        return "" if _reads(folder, step) else f"does not read {os.fsdecode(step.wanted)!r} yet"


def _reads(folder: int, step: PlannedWrite) -> bool:
    try:
        with open(os.open(step.probe, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder), "rb", buffering=0) as file:
            return step.wanted in (file.read(4096) or b"").split(b"\n")
    except OSError:
        return False


def _write(folder: int, step: PlannedWrite) -> None:
    # Neither made nor truncated, and in one write: a kernel file takes its value whole.
    with open(os.open(step.name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder), "wb", buffering=0) as file:
        file.write(step.text)


class ControllerLink:
    """The controller, as seen from here.

    Its words are datagrams `renew N`, `leave N` and, with a file that holds a plan, `plan N`. Each is answered with N
    when it is done, so that the controller knows that somebody is awake here.

    Attributes:
        gone: It has closed its end, which the kernel does for a process that dies.
        leaving: It puts back the originals itself: BE is no longer ours.
        renewed_seconds: When its last word came that was not about BE's groups, or this link was made.
    """

    def __init__(self, channel: _socket.socket, pid: int) -> None:
        self.pid = pid
        self.plan = Plan()
        self.gone = False
        self.leaving = False
        self.renewed_seconds = time.monotonic()
        self._channel = channel
        self._process = _pidfd(pid)

    def hear(self, seconds: float) -> bool:
        """Wait for one word and heed it; False when none came, or none ever will."""
        if self.gone:
            time.sleep(seconds)
            return False
        if not select.select([self._channel], [], [], seconds)[0]:
            return False
        try:
            word, ancillary, *_ = self._channel.recvmsg(64, _socket.CMSG_SPACE(4))
        except ConnectionResetError:
            # The controller ended with an answer unread; its earlier words come next.
            return self.hear(0.0)
        if not word:
            self.gone = True
            return False
        _told_to_end.clear()
        self._heed(word, ancillary)
        return True

    def wait_for_death(self, seconds: float) -> bool:
        """Wait for its death; True when it is surely dead."""
        return self._process >= 0 and bool(select.select([self._process], [], [], seconds)[0])

    def end(self) -> bool:
        """Kill it, lest it wakes up and writes on when the originals are back; True when it is surely dead."""
        try:
            if self._process >= 0:
                if not self.gone and not self.wait_for_death(0.0):
                    _say(f"ending the hung controller {self.pid}")
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
        except OSError:
            # The controller ended long ago, or this process may not signal it.
            pass
        return self.wait_for_death(END_SECONDS)

    def _heed(self, word: bytes, ancillary: list[tuple[int, int, bytes]]) -> None:
        verb, _, number = word.partition(b" ")
        if verb == b"plan":
            with open(int.from_bytes(ancillary[0][2][:4], sys.byteorder), "rb") as file:
                # The controller wrote it through the same description.
                file.seek(0)
                plan = Plan(file.read())
            self.plan.close()
            self.plan = plan
        else:
            # Groups that come and go are no sign that ticks are completed.
            self.renewed_seconds = time.monotonic()
        self.leaving = self.leaving or verb == b"leave"
        try:  # noqa: SIM105 - contextlib would be the largest import here, and below
            self._channel.send(number)
        except OSError:
            # The controller has ended or reads no answers: `hear` will find out.
            pass


def _pidfd(pid: int) -> int:
    """A handle of the controller that no later process of that number can be taken for; -1 if there is none."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return -1
    # Our parent still: the number was not given to another process before the handle was opened.
    return handle if os.getppid() == pid else -1


def guard(link: ControllerLink, lease_seconds: float) -> str:
    """Until the controller falls silent; returns how, or nothing when it leaves in good order."""
    while link.hear(max(link.renewed_seconds + lease_seconds - time.monotonic(), 0.0)):
        if link.leaving:
            return ""
    return "has ended" if link.gone else f"has not renewed its lease for {lease_seconds:g} s"


def hold(link: ControllerLink, restore_after_seconds: float, lock: str, journal: str) -> str:
    """BE at the safe allocation until the controller is `back`, `succeeded` by another, or `away`; returns which."""
    # From the last renewal on: who only says which groups there are comes back here again and again.
    ends, pause, hung = link.renewed_seconds + restore_after_seconds, FIRST_PAUSE_SECONDS, not link.gone
    write, told, taken_seconds = link.plan.enforce, [""], 0.0
    while True:
        # The originals are back: a write now would never be undone.
        if absent(journal):
            return "away"
        # A successor or `rlctl restore` that holds the lock decides on BE: nothing is written beside it.
        held = BriefStateLock(lock, link.pid)
        try:
            refused = None if held.taken or absent(journal) else write()
        finally:
            held.close()
        if refused is not None:
            write, taken_seconds = link.plan.repeat, 0.0
            told = _report(refused, told)
        elif taken_seconds > SUCCESSOR_SECONDS and successor(lock, link.pid):
            return "succeeded"
        if _told_to_end:
            return "away"
        if time.monotonic() >= ends and not held.taken:
            # A dead controller's BE goes back to its originals; a hung one's stays held, for the cause may be there
            # still.
            if not hung:
                return "away"
            link.end()
            _say("the controller hung: BE stays at the safe allocation for the next one; `rlctl restore` sets it free")
            ends = float("inf")
        if link.hear(pause):
            return "back"
        # The time of a successor's start does not count: should it crash, the next one is waited for as well.
        if held.taken:
            taken_seconds, ends = taken_seconds + pause, ends + pause
        pause = min(2.0 * pause, LONGEST_PAUSE_SECONDS)


class BriefStateLock:
    """The state directory, held while something is written: `rlctl restore` comes before it or after it, never between.

    A controller that hangs holds it itself; then nobody restores without --force, and it is not needed.

    Attributes:
        taken: A successor or `rlctl restore` has it: BE is its business.
    """

    def __init__(self, path: str, controller: int) -> None:
        self.taken, self._file = False, -1
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.taken = successor(path, controller) != 0
        except OSError:
            # No lock file, or it cannot be opened: BE is held all the same.
            pass

    def close(self) -> None:
        """Let go of it."""
        if self._file >= 0:
            os.close(self._file)


def absent(path: str) -> bool:
    """True when there surely is no such file, rather than one that cannot be looked at."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def successor(lock: str, pid: int) -> int:
    """Pid of another live process that holds the state directory, and with it BE; 0 if there is none."""
    try:
        with open(lock, "rb", buffering=0) as file:
            holder = int(file.read(32))
    except (OSError, ValueError):
        return 0
    return holder if holder not in (pid, os.getpid()) and os.path.exists(f"/proc/{holder}") else 0


def restore(link: ControllerLink, journal: str, command: list[str]) -> int:
    """Become `rlctl restore`; returns only if there is nothing to put back, or if that cannot be run."""
    dead = link.end()
    if absent(journal):
        _say("no journal, so there is nothing to put back")
        return 0
    if not dead:
        # A controller stuck in the kernel may hold the lock, but will never run again.
        command = [*command, "--force"]
    _say("putting the originals back")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        # The report goes where this process's messages go.
        os.dup2(2, 1)
        os.execv(command[0], command)  # noqa: S606 - the controller named it
    except OSError as error:
        _say(f"cannot run {command[0]}: {error.strerror}; BE stays at the safe allocation: run `rlctl restore`")
    return 75


def main(arguments: list[str]) -> int:
    """Guard one controller until it needs no watchdog.

    Args:
        arguments: Its pid, lease, and for how long its return is waited for (seconds), paths of lock and journal, and
            the command that puts the originals back. Standard input is the channel.
    """
    pid, lease_seconds, restore_after_seconds = int(arguments[0]), float(arguments[1]), float(arguments[2])
    lock, journal, *command = arguments[3:]
    _prepare()
    link = ControllerLink(_socket.socket(fileno=0), pid)
    while silence := guard(link, lease_seconds):
        _say(f"controller {pid} {silence}: BE goes to the safe allocation")
        outcome = hold(link, restore_after_seconds, lock, journal)
        if outcome == "succeeded":
            _say("another rlctl has taken over")
            return 0
        if outcome == "away":
            return restore(link, journal, command)
        _say(f"controller {pid} is back")
        if link.leaving:
            break
    return see_off(link, restore_after_seconds, lock, journal, command)


def see_off(link: ControllerLink, seconds: float, lock: str, journal: str, command: list[str]) -> int:
    """A controller that leaves puts the originals back itself; done here only if it dies or hangs over it."""
    ends = time.monotonic() + seconds
    while not link.gone and time.monotonic() < ends:
        link.hear(max(ends - time.monotonic(), 0.0))
    if absent(journal) or successor(lock, link.pid):
        return 0
    # The controller may still have a message to log.
    link.wait_for_death(max(ends - time.monotonic(), 0.0))
    return restore(link, journal, command)


def _prepare() -> None:
    """Be there when it matters: before other processes, last to be killed, deaf while the controller lives."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: _told_to_end.append(number))
    try:  # noqa: SIM105
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        # Needs root, and in a v1 group a real-time budget; goes on without.
        pass
    try:
        with open("/proc/self/oom_score_adj", "wb", buffering=0) as score:
            score.write(OOM_SCORE)
    except OSError:
        # Lowering the score takes CAP_SYS_RESOURCE; goes on without.
        pass


def _report(refused: list[str], told: list[str]) -> list[str]:
    """Say what has not taken, unless that was the last that was said; returns it."""
    if refused == told:
        pass
    elif refused:
        _say(f"not in force yet, trying again: {'; '.join(refused[:3])}" + (", ..." if len(refused) > 3 else ""))
    else:
        _say("BE is at the safe allocation")
    return refused


def _say(text: str) -> None:
    """One line on stderr, unless nobody takes it: this process must not wait for a reader."""
    # `errors.shown`, without its imports.
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    # Without the time where journald adds its own, as `log.stderr` does.
    at = "" if "JOURNAL_STREAM" in os.environ else time.strftime("%H:%M:%S ")
    try:
        if select.select([], [2], [], 0.0)[1]:
            os.write(2, f"{at}rlctl watchdog: {text}"[: PIPE_BUF - 1].encode(errors="replace")[: PIPE_BUF - 1] + b"\n")
    except (OSError, ValueError):
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
