"""Holds a command back until its launcher has put it where it belongs; it ends with the thread that launched it.

Called as `python -I -S launch_barrier.py PARENT COMMAND...`. A program that is moved to its control groups only after
it has begun may have made threads and children by then. So this waits for a byte on standard input before it becomes
the command; /dev/zero there holds nothing back. It is a file of its own in a fresh interpreter, because code between
fork and exec (`preexec_fn`) can deadlock in a process that has threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h
EXEC_FAILED = 127
_DEFAULT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)


def main(arguments: list[str]) -> int:
    """Wait for the byte, then become the command; the arguments are those of the command line.

    Returns:
        An exit code, only if the command could not be run.
    """
    parent, *command = arguments
    for number in _DEFAULT:  # whatever the launcher ignored is inherited, and what Python ignores would be too
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # SIGTERM and not SIGKILL: a parent of workers can then end them.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent) or not os.read(0, 1):  # the launcher died before it had placed us
        return EXEC_FAILED
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell is the point
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
    return EXEC_FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
