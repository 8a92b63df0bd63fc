"""`rlctl` with one fault inside: `python -m tests.faults.launcher FAULT TRIGGER GROUP COMMAND...`, for the matrix only.

The shipped code has no hooks for faults. This replaces one method of it in its own process, which from then on fails
while the file TRIGGER is there, and then runs the command line as ever.
"""

from __future__ import annotations

import errno
import itertools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

FAR_SECONDS = 86_400.0
HANG_SECONDS = 3600.0


def _raise() -> NoReturn:
    raise RuntimeError("a fault of the matrix")


def _hang() -> NoReturn:
    time.sleep(HANG_SECONDS)
    raise RuntimeError("nobody has ended this")


def _out_of_range() -> Callable[[], object]:
    """In turn an index beyond the table, and an allocation beyond any host."""
    from rlctl.envs.allocation import Allocation

    answers = itertools.cycle((1_000_000, Allocation(1e9, 1_000_000)))
    return lambda: next(answers)


POLICY: dict[str, Callable[[], Callable[[], object]]] = {
    "raises": lambda: _raise,
    "nan": lambda: lambda: float("nan"),
    "out-of-range": _out_of_range,
    "hangs": lambda: _hang,
}
"""By the name behind `policy-`: what stands in for the answer of whoever decides."""

WRITE = ("EACCES", "EINVAL", "ENOENT", "EBUSY")
"""Behind `write-`: what every write to the group's knobs fails with."""

FREEZER = "freezer"
"""Nothing is written to the freezer, and it says that what was ordered is done."""

CLOCK = "wall-clock"
"""The wall clock jumps a day ahead and a day back, at every look at it."""


def main(arguments: list[str]) -> int:
    """Put the fault in, then run the command.

    Args:
        arguments: The fault, the file that triggers it, the group whose files cannot be written, and the command.

    Returns:
        The command's exit code.
    """
    fault, trigger, group, *command = arguments
    kind, _, name = fault.partition("-")
    if fault == CLOCK:
        _break_clock(trigger)
    elif fault == FREEZER:
        _break_freezer(trigger)
    elif kind == "policy":
        _break_policy(trigger, POLICY[name]())
    else:
        _break_writes(trigger, group, getattr(errno, name))
    from rlctl.cli import main as rlctl

    return rlctl(command)


def _break_policy(trigger: str, answer: Callable[[], object]) -> None:
    from rlctl.agents.managers.references import GreedyShield
    from rlctl.agents.served.learned import LearnedPolicy

    for policy in (GreedyShield, LearnedPolicy):
        act: Callable[..., object] = policy.act

        def broken(self: Any, observation: object, act: Callable[..., object] = act) -> object:
            return answer() if os.path.exists(trigger) else act(self, observation)

        policy.act = broken  # type: ignore[method-assign, assignment]


def _break_writes(trigger: str, group: str, number: int) -> None:
    from rlctl.envs.host.cgroup.kernel import KernelFiles

    write = KernelFiles.write

    def broken(self: KernelFiles, path: Path, text: str) -> None:
        if path.parent.name == group and os.path.exists(trigger):
            opening = number in (errno.EACCES, errno.ENOENT)  # these come of opening the file, and then have its name
            raise OSError(number, os.strerror(number), *([str(path)] if opening else []))
        write(self, path, text)

    KernelFiles.write = broken  # type: ignore[method-assign]


def _break_freezer(trigger: str) -> None:
    from rlctl.envs.host.cgroup.driver import FreezerDriver
    from rlctl.envs.host.cgroup.v1 import FreezerV1

    pretended: dict[Path, bool] = {}
    order = FreezerDriver.order

    def broken(self: FreezerDriver, frozen: bool) -> None:
        if os.path.exists(trigger):
            pretended[self.state_path] = frozen
        else:
            order(self, frozen)

    FreezerDriver.order = broken  # type: ignore[method-assign]
    for driver in (FreezerDriver, FreezerV1):
        for name in ("is_ordered", "frozen"):
            told = getattr(driver, name)
            setattr(driver, name, lambda self, told=told: pretended.get(self.state_path) or told(self))


def _break_clock(trigger: str) -> None:
    right, ways = time.time, itertools.cycle((FAR_SECONDS, -FAR_SECONDS))
    time.time = lambda: right() + (next(ways) if os.path.exists(trigger) else 0.0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
