"""numpy's library has one thread in rlctl, said before it is first imported; import this module before numpy.

It maps memory and starts a thread for each CPU, for matrices larger than any here. The `rlctl restore` of a watchdog
inherits it.
"""

from __future__ import annotations

import os

_SAID_BEFORE = "OPENBLAS_NUM_THREADS" in os.environ

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def not_for_others() -> None:
    """Take it back before a command of somebody else's is run, whose threads are its own affair."""
    if not _SAID_BEFORE:
        os.environ.pop("OPENBLAS_NUM_THREADS", None)
