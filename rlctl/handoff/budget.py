"""How many pods a node may hand off within an hour, kept over runs in the state directory."""

from __future__ import annotations

import contextlib
import fcntl
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rlctl.envs.errors import ConfigError, HostError, PermissionMissing
from rlctl.envs.host.cgroup.journal import read_own
from rlctl.envs.whole_file import write_json

FILE, LOCK = "hand-offs.json", "hand-offs.lock"
"""Below the state directory."""

HOUR_SECONDS, MOST_BYTES = 3600.0, 1 << 16


class Budget:
    """Times of the hand-offs within an hour, never more than the budget has: the file stays small.

    A hand-off counts from before it is asked for, so that none is free when its answer is lost, or this process.

    Args:
        most: Hand-offs within any hour.
        clock: Answers the Unix time.
    """

    def __init__(self, state: Path, most: int, clock: Callable[[], float] = time.time) -> None:
        self._state, self._most, self._clock = state, most, clock

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep a second hand-off away meanwhile.

        Raises:
            HostError: One is under way, or the file system has no room.
            PermissionMissing: The state directory may not be written.
        """
        with contextlib.ExitStack() as opened:
            with self._writing():
                self._state.mkdir(parents=True, exist_ok=True)
                file = opened.enter_context(open(self._state / LOCK, "ab"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise HostError(f"{self._state / LOCK}: another hand-off is under way") from error
            yield

    def left(self) -> int:
        """Hand-offs that may still be within this hour; HostError: nobody knows."""
        return max(self._most - len(self._times()), 0)

    def next_seconds(self) -> float:
        """Time until there is one more, in s; 0 where one is left."""
        times = self._times()
        return 0.0 if len(times) < self._most else max(times[-self._most] + HOUR_SECONDS - self._clock(), 0.0)

    def spend(self) -> None:
        """Count one hand-off. Raises as `alone` does; then it must not be."""
        self._keep([*self._times(), self._clock()])

    def give_back(self) -> None:
        """The one that was counted last has changed nothing."""
        self._keep(self._times()[:-1])

    def _times(self) -> list[float]:
        path, now = self._state / FILE, self._clock()
        try:
            times = [float(one) for one in json.loads(read_own(path, MOST_BYTES))["times"]]
        except FileNotFoundError:
            return []
        except PermissionError as error:
            raise PermissionMissing(f"{path}: may not be read; run as who runs the service") from error
        except (OSError, ValueError, TypeError, KeyError, RecursionError, ConfigError) as error:
            raise HostError(f"{path}: cannot be read, so nothing is handed off; remove it: {error}") from error
        return sorted(one for one in times if abs(now - one) < HOUR_SECONDS)  # a clock that was set back ends nothing

    def _keep(self, times: list[float]) -> None:
        with self._writing():
            write_json(self._state / FILE, {"schema": 1, "times": times[-self._most :]}, lasting=True)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            raise PermissionMissing(f"{error.filename}: may not be written; run as who runs the service") from error
        except OSError as error:
            said = f"{error.filename}: {error.strerror}"
            raise HostError(f"{said}: without its budget nothing is handed off") from error
