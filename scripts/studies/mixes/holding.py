"""A launcher whose commands wait for a word, so that all instances of a mix begin at one moment."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlctl.envs.testbed import leftovers
from rlctl.envs.testbed.launch import PAUSE_SECONDS, Launcher, Process


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

        It has used all the CPU time that it needs before, but for that of `env`. It is in no group but this process's
        until its owner attaches it somewhere. What `environment` holds is set besides this process's.

        Raises:
            TestbedError: It cannot be run.
        """
        settings = [f"{one}={value}" for one, value in (environment or {}).items()]
        process = self._begin(name, ["env", f"--chdir={directory or self.folder}", *settings, *command])
        while (now := leftovers.task(process.pid)) and now.state not in "SZX":  # it sleeps: it waits for the word
            time.sleep(PAUSE_SECONDS)
        return process
