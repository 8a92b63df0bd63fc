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

import contextlib
import ctypes
import logging
import math
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.settings import Knob, Settings, in_words, tighter
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


_IN_MODIFY = 0x2
_NOTICE = struct.Struct("=iIII")  # struct inotify_event, linux/inotify.h
_READ_BYTES = 1 << 14


class Witness:
    """Tells between two ticks that another program wrote to a knob of BE.

    inotify tells of every write to a watched file, control groups' included (seen on Linux 6.18 for cgroup v1 and 6.1
    for v2), and takes no capability. It does not tell whose the write was: what reads as we left it is taken for our
    own.

    Args:
        holds: Whether a file reads as we left it.

    Attributes:
        file: A descriptor that becomes readable when anybody writes to a watched file, we ourselves too; None where
            nothing can be watched.
    """

    def __init__(self, holds: Callable[[Path], bool]) -> None:
        self._holds = holds
        self._libc = ctypes.CDLL(None)
        self._paths: dict[int, str] = {}  # by the number of inotify's watch
        # Through ctypes: Python's library has no inotify, and a dependency for three calls would be one too many.
        number = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self.file: int | None = number if number >= 0 else None

    def watch(self, files: Iterable[Path]) -> None:
        """Begin to watch files; what cannot be watched is not."""
        for path in files if self.file is not None else ():
            number = self._libc.inotify_add_watch(self.file, os.fsencode(path), ctypes.c_uint32(_IN_MODIFY))
            if number >= 0:
                self._paths[number] = str(path)

    @property
    def watches(self) -> bool:
        """Whether the kernel watches any file for us."""
        return bool(self._paths)

    def anybody(self, *, readable: bool = True) -> bool:
        """Whether another program has written since the last call, and what it wrote still stands.

        Args:
            readable: `file` may have become so; False: it was just seen not to be.
        """
        # Equal notices are merged while nobody reads them: the queue is never longer than the files are many.
        # Our own writes are among the notices; they read as we left them.
        changed = {self._paths[number] for number in self._notices() if number in self._paths} if readable else ()
        return any(not self._holds(Path(path)) for path in changed)

    def forget(self, folders: Iterable[Path]) -> None:
        """Groups are gone, with the inodes that were theirs."""
        gone = tuple(f"{folder}/" for folder in folders)
        for number in [number for number, path in self._paths.items() if path.startswith(gone)]:
            del self._paths[number]
            if self.file is not None:  # or the inode of a removed group's file would stay for our sake
                self._libc.inotify_rm_watch(self.file, number)

    def close(self) -> None:
        """Watch no more. Idempotent."""
        file, self.file = self.file, None
        if file is not None:
            os.close(file)

    def _notices(self) -> Iterator[int]:
        """The watch of each write, whole events as the kernel hands them over."""
        with contextlib.suppress(OSError):  # nothing more
            while self.file is not None:
                data, offset = os.read(self.file, _READ_BYTES), 0
                while offset + _NOTICE.size <= len(data):
                    number, _, _, length = _NOTICE.unpack_from(data, offset)
                    offset += _NOTICE.size + length
                    yield number
