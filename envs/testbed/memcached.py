"""memcached as LC: threads that answer 100-key gets, about 40 us of CPU time each."""

from __future__ import annotations

import os
import signal

from rlctl.envs.testbed.generator import GeneratorConfig
from rlctl.envs.testbed.launch import Launcher, find_program
from rlctl.envs.testbed.workloads import LcProgram

MEMORY_MEGABYTES, ITEM_BYTES = 64, 256
"""Memory for items, unless they need more; what an item of the generator's takes at most."""

PRELOAD_KEYS, MOST_KEYS = 10_000, 9_999_999
"""Items, unless somebody wants more; what the load generator has names for."""


class Memcached(LcProgram):
    """A memcached of our own, empty at its start.

    Args:
        threads: Those that answer: one, so that one CPU is all that it can use.
        preload_keys: Items that the load generator writes before the first request; above 60 000 it takes seconds.
    """

    name = "memcached"
    request = b"version\r\n"
    answer = b"VERSION"

    def __init__(
        self, *, threads: int = 1, preload_keys: int = PRELOAD_KEYS, address: tuple[str, int] | None = None
    ) -> None:
        super().__init__(address)
        self.threads, self.preload_keys = threads, preload_keys

    def load(self) -> GeneratorConfig:
        """Multi-key gets of items that the generator writes first."""
        return self._aim_at_listener(GeneratorConfig("memcached", preload_keys=self.preload_keys))

    def stop(self) -> None:
        """End it at once. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.stop(signal.SIGKILL)  # asked politely it takes a second, and there is nothing to save

    def _command(self, launcher: Launcher) -> list[str]:
        program = find_program("memcached", "memcached")
        self._make_folder(launcher)
        megabytes = max(MEMORY_MEGABYTES, self.preload_keys * ITEM_BYTES >> 20)
        command = [program, f"--threads={self.threads}", f"--memory-limit={megabytes}"]
        if self.address is None:
            command += [f"--unix-socket={self.socket}", "--unix-mask=0700"]
        else:
            command += [f"--listen={self.address[0]}", f"--port={self.address[1]}"]
        if os.geteuid() == 0:
            command.append("--user=root")  # as nobody it could not make its socket in our folder
        return command
