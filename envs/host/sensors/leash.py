"""Runs a command that dies with whoever started it: `python -I -S leash.py PARENT_PID COMMAND...`.

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
    """Put on the leash, become the command; returns an exit code only if it could not be run."""
    parent, *command = arguments
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):  # it died before the leash was on
        return EXEC_FAILED
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell is the point
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
    return EXEC_FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
