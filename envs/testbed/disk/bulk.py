"""The bulk writer as a best-effort job."""

from __future__ import annotations

import os
import signal
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.errors import ConfigError, TestbedError
from rlctl.envs.testbed.disk import writer
from rlctl.envs.testbed.disk.provisioned import VOLUME_BYTES
from rlctl.envs.testbed.launch import Launcher
from rlctl.envs.testbed.workloads import Job, Work


@dataclass(frozen=True, slots=True)
class WriteConfig:
    """How the writing is spread.

    Attributes:
        workers: Processes that compress.
        depth: Writes under way at most, all told, each from a thread of its own: what the LC's write finds before it
            in the disk's queue.

    Raises:
        ConfigError: Fewer threads than processes.
    """

    workers: int = 1
    depth: int = 32

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= self.depth:
            raise ConfigError(f"impossible writer: {self}: 1 or more workers, and no fewer writes under way")


class BulkWrite(Job):
    """A writer that runs until it is stopped; its work is bytes on the disk.

    Args:
        volume: Block device that it writes to.
    """

    name = "writer"

    def __init__(self, config: WriteConfig, volume: Path) -> None:
        self.config, self.volume = config, volume
        self._counts = Path()
        self._begin_seconds = 0.0

    def start(self, launcher: Launcher) -> None:
        """Start it in the launcher's group.

        Raises:
            TestbedError: It runs already, or cannot be run.
        """
        super().start(launcher)
        self._begin_seconds = time.monotonic()

    def ready(self) -> None:
        """Wait until it could begin.

        Raises:
            TestbedError: It does not get there, or ended; with its last words.
        """
        self.await_that(lambda: "ready" in self.process.output.read_text(), "open its volume")

    def begin(self) -> None:
        """Write from now on. Further calls change nothing."""
        os.kill(self.process.pid, signal.SIGUSR1)  # not reaped before `stop`, so the number is its own

    def stop(self) -> Work:
        """End it; what was written until now. Afterwards it is gone, also when this raises.

        Raises:
            TestbedError: It does not run, or had ended before.
        """
        seconds = time.monotonic() - self._begin_seconds
        process, self._process = self.process, None
        ended = process.exit_code
        written = float(sum(struct.unpack(f"={self.config.depth}Q", self._counts.read_bytes())))
        process.stop(signal.SIGKILL)  # there is nothing to save, and a throttled one would take its time
        if ended is not None:
            raise TestbedError(f"the writer ended with code {ended}: {process.tail()}")
        return Work(written, seconds, {"bytes": written})

    def _command(self, launcher: Launcher) -> list[str]:
        self._counts = launcher.folder / "written"
        self._counts.write_bytes(bytes(8 * self.config.depth))
        numbers = (VOLUME_BYTES, self.config.workers, self.config.depth)
        command = [sys.executable, "-I", "-S", writer.__file__, str(self.volume)]
        return [*command, *map(str, numbers), str(self._counts)]
