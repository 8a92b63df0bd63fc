"""The bulk writer as a best-effort job."""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.errors import ConfigError
from rlctl.envs.testbed.disk import writer
from rlctl.envs.testbed.disk.provisioned import VOLUME_BYTES
from rlctl.envs.testbed.launch import Launcher
from rlctl.envs.testbed.workloads import Transfer


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


class BulkWrite(Transfer):
    """A writer that runs until it is stopped; its work is bytes on the disk.

    Args:
        volume: Block device that it writes to.
    """

    name = "writer"

    def __init__(self, config: WriteConfig, volume: Path) -> None:
        self.config, self.volume = config, volume
        self._counts = Path()

    def ready(self) -> None:
        """Wait until it could begin.

        Raises:
            TestbedError: It does not get there, or ended; with its last words.
        """
        self.await_that(lambda: "ready" in self.process.output.read_text(), "open its volume")

    def _moved_bytes(self) -> int:
        return sum(struct.unpack(f"={self.config.depth}Q", self._counts.read_bytes()))

    def _command(self, launcher: Launcher) -> list[str]:
        self._counts = launcher.folder / "written"
        self._counts.write_bytes(bytes(8 * self.config.depth))
        numbers = (VOLUME_BYTES, self.config.workers, self.config.depth)
        command = [sys.executable, "-I", "-S", writer.__file__, str(self.volume)]
        return [*command, *map(str, numbers), str(self._counts)]
