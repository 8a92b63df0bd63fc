"""The bulk writer, and the copier of large blocks, as best-effort jobs."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from rlctl.envs.testbed.disk import writer
from rlctl.envs.testbed.disk.provisioned import VOLUME_BYTES
from rlctl.envs.testbed.launch import Launcher
from rlctl.envs.testbed.workloads import Transfer

DEPTH = 32
"""Writes under way at most, all told, each from a thread of its own: what the LC's finds before it in the queue."""

COPIES, COPIED_BYTES = 4, 262_144
"""Threads that copy, and the block that each reads and then writes: several of them fill the disk."""


class BulkWrite(Transfer):
    """A writer that runs until it is stopped; its work is bytes on the disk.

    Args:
        workers: Its processes, which share the writes under way among them.
        volume: Block device that it writes to.
        copied_bytes: Block that it copies; 0 to compress what it writes, which takes CPU time.
    """

    name, opens = "writer", "open its volume"

    def __init__(self, workers: int, volume: Path, depth: int = DEPTH, copied_bytes: int = 0) -> None:
        self._workers, self.volume, self._depth = workers, volume, depth
        self._counts, self._copied_bytes = Path(), copied_bytes

    def _moved_bytes(self) -> int:
        return sum(struct.unpack(f"={self._depth}Q", self._counts.read_bytes()))

    def _command(self, launcher: Launcher) -> list[str]:
        self._counts = launcher.folder / "written"
        self._counts.write_bytes(bytes(8 * self._depth))
        numbers = (VOLUME_BYTES, self._workers, self._depth)
        command = [sys.executable, "-I", "-S", writer.__file__, str(self.volume)]
        return [*command, *map(str, numbers), str(self._counts), str(self._copied_bytes)]
