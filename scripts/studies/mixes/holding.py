"""A launcher whose commands wait for a word, so that all instances of a mix begin at one moment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlctl.envs.testbed.launch import Launcher, Process


class HoldingLauncher(Launcher):
    """As `Launcher`, with `hold` beside `start`."""

    def hold(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> Process:
        """As `start`, but the command waits for `Process.release`, so that several can begin at one moment.

        It has used all the CPU time that it needs before its first instruction. It is in no group but this process's
        until its owner attaches it somewhere. What `environment` holds is set besides this process's.

        Raises:
            TestbedError: It cannot be run.
        """
        ready, held = os.pipe2(os.O_CLOEXEC)
        with open(ready, "rb") as end:
            try:
                options = {"env": {**os.environ, **(environment or {})}, "cwd": directory or self.folder}
                process = self._begin(name, self._open(name, command, str(held), pass_fds=(held,), **options))
            finally:
                os.close(held)
            with self._failing(process):
                end.read()  # until it has closed the other end, or has died
        return process
