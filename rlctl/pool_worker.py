"""What each process of a pool does first, so that none is ever left behind."""

from __future__ import annotations

import ctypes
import os
import signal

__all__ = ["begin"]

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def begin(parent: int) -> None:
    """Leave Ctrl-C to the parent, and end with it, whatever ends it: a pool's processes wait for more work forever.

    Args:
        parent: Its pid. The kernel looks at the thread that started us, which is the one that uses the pool.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it goes to the whole process group; the parent ends us, quietly
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before
        os._exit(1)
