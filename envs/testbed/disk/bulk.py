"""The bulk writer as a best-effort job."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from rlctl.envs.errors import ConfigError
from rlctl.envs.testbed.disk import writer
from rlctl.envs.testbed.disk.provisioned import VOLUME_BYTES
from rlctl.envs.testbed.launch import Launcher
from rlctl.envs.testbed.workloads import Transfer

DEPTH = 32
"""Writes under way at most, all told, each from a thread of its own: what the LC's finds before it in the queue."""


class BulkWrite(Transfer):
    """A writer that runs until it is stopped; its work is bytes on the disk.

    Args:
        workers: Processes that compress.
        volume: Block device that it writes to.
    """

    name, opens = "writer", "open its volume"

    def __init__(self, workers: int, volume: Path, depth: int = DEPTH) -> None:
        if not 1 <= workers <= depth:
            raise ConfigError(f"a writer of {workers} workers: 1 to {depth} are possible")
        self._workers, self.volume, self._depth = workers, volume, depth
        self._counts = Path()

    def _moved_bytes(self) -> int:
        return sum(struct.unpack(f"={self._depth}Q", self._counts.read_bytes()))

    def _command(self, launcher: Launcher) -> list[str]:
        self._counts = launcher.folder / "written"
        self._counts.write_bytes(bytes(8 * self._depth))
        numbers = (VOLUME_BYTES, self._workers, self._depth)
        command = [sys.executable, "-I", "-S", writer.__file__, str(self.volume)]
        return [*command, *map(str, numbers), str(self._counts)]
