"""Signals that end a measurement as Ctrl-C does."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from rlctl.agents.training.cluster.connection import ended_as_interrupted


@contextlib.contextmanager
def kept_at_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP interrupt meanwhile, so that what was measured is kept and what was changed is put back.

    The exit code is the signal's all the same. A signal that is ignored stays so, as nohup has it.
    """
    ends = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)}
    ends = {one: handler for one, handler in ends.items() if handler is not signal.SIG_IGN}
    with contextlib.ExitStack() as stack:
        for one, handler in ends.items():
            stack.callback(signal.signal, one, handler)
        stack.enter_context(ended_as_interrupted(ends))
        yield
