"""Whether the LC waits for CPUs, between two ticks: by the kernel's own word where it gives it, else by its counter."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from pathlib import Path

from rlctl.envs.host.sensors.psi import Psi
from rlctl.envs.telemetry import Missing

WAITED_SECONDS, WINDOW_SECONDS = 0.2, 0.5
"""An LC that wants more than its half of a CPU waits half of the time (docs/measured/simulator.md, 1). Half a second is
the shortest window for which the kernel takes a trigger (kernel/sched/psi.c, WINDOW_MIN_US)."""

READ_SECONDS = 0.05
"""As often as the kernel itself sees whether to pull a trigger of that window (UPDATES_PER_WINDOW)."""

UNPRIVILEGED = "the kernel takes no window below two seconds without CAP_SYS_RESOURCE"


class PsiTrigger:
    """A descriptor with POLLPRI when some task has waited for so long, at most once a window.

    Attributes:
        why: Why there is none; empty where there is.
    """

    def __init__(self, path: Path) -> None:
        self.why = ""
        self.file: int | None = None
        try:
            self.file = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            # Documentation/accounting/psi.rst: microseconds; the byte at the end is taken for the string's own.
            os.write(self.file, b"some %d %d\0" % (WAITED_SECONDS * 1e6, WINDOW_SECONDS * 1e6))
        except OSError as error:
            self.close()
            refused = error.errno in (errno.EINVAL, errno.EPERM)
            self.why = UNPRIVILEGED if refused else f"{path}: {error.strerror or error}"

    def close(self) -> None:
        """The kernel forgets the trigger. Idempotent."""
        file, self.file = self.file, None
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)


class LcWaits:
    """Whether a task of the LC has waited for WAITED_SECONDS of the last WINDOW_SECONDS.

    Args:
        psi: Reads the LC's counter, and follows its group.
    """

    def __init__(self, psi: Psi) -> None:
        self._psi = psi
        self.trigger = PsiTrigger(psi.lc_file)
        self._seen: deque[tuple[float, float]] = deque()

    def high(self, now_seconds: float, *, told: bool) -> bool:
        """Whether it has, once for each such wait.

        Args:
            told: The trigger has been pulled.
        """
        if self.trigger.file is not None:
            return told
        if self._seen and now_seconds - self._seen[-1][0] < READ_SECONDS:
            return False
        waited = self._psi.lc_waited_seconds()
        if isinstance(waited, Missing):
            self._seen.clear()
            return False
        while self._seen and self._seen[0][0] < now_seconds - WINDOW_SECONDS:
            self._seen.popleft()
        self._seen.append((now_seconds, waited))
        high = waited - self._seen[0][1] >= WAITED_SECONDS
        if high:
            self._seen.clear()
        return high
