"""Runs a command that dies with whoever started it: `python -I -S leash.py PARENT_PID NICE CPUS COMMAND...`.

Started as a file of its own in a fresh interpreter, because code between fork and exec (`preexec_fn`) can deadlock in
a process that has threads, as the controller has. It uses nothing outside the standard library.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h
EXEC_FAILED = 127


def main(arguments: list[str]) -> int:
    """Put on the leash, set niceness and CPUs, become the command.

    Args:
        arguments: Pid of the parent, niceness to add, CPUs as "0,1" ("" for all that it has), and the command.

    Returns:
        An exit code, only if the command could not be run.
    """
    parent, nice, cpus, *command = arguments
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):  # it died before the leash was on
        return EXEC_FAILED
    try:
        os.nice(int(nice))
        if cpus:
            os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
        os.execvp(command[0], command)  # noqa: S606 - no shell is the point
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
    return EXEC_FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
