"""Best-effort jobs that move bytes until they are stopped: an upload over the link, and what writes to the disk."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import Literal

from rlctl.envs.errors import TestbedError
from rlctl.envs.testbed.disk import writer
from rlctl.envs.testbed.disk.provisioned import VOLUME_BYTES
from rlctl.envs.testbed.launch import Launcher
from rlctl.envs.testbed.network import sink, uploader
from rlctl.envs.testbed.network.link import CLIENT_ADDRESS, SINK_PORT
from rlctl.envs.testbed.workloads import Program, Transfer

CONNECTIONS = 32
"""TCP connections, all told. With a few of them the kernel's limit on what a connection may queue on its own host
(tcp_limit_output_bytes) keeps the link's queue short, whatever BE does."""


class Sink(Program):
    """The program at the client's end that takes the uploads and counts their bytes."""

    name = "sink"

    def ready(self) -> None:
        """Wait until it listens.

        Raises:
            TestbedError: It does not, or ended; with its last words.
        """
        self.await_that(lambda: "ready" in self.process.output.read_text(), "listen")

    def stop(self) -> int:
        """End it; the bytes that arrived.

        Raises:
            TestbedError: It does not run, or had ended before.
        """
        process, self._process = self.process, None
        code = process.stop()
        words = process.output.read_text().split()
        if code != os.EX_OK or not words[-1].isdecimal():
            raise TestbedError(f"the sink of the upload ended with code {code}: {process.tail()}")
        return int(words[-1])

    def _command(self, launcher: Launcher) -> list[str]:  # noqa: ARG002
        return [sys.executable, "-I", "-S", sink.__file__, CLIENT_ADDRESS, str(SINK_PORT)]


class Upload(Transfer):
    """An upload that runs until it is stopped; its work is bytes delivered.

    Args:
        workers: Its processes; each has its part of the connections.
        client: Starts the sink, at the other end of the link.
        way: Whether its CPU compresses what it sends, or the kernel sends a file as it is.
    """

    name, opens = "upload", f"make its {CONNECTIONS} connections"

    def __init__(self, workers: int, client: Launcher, way: Literal["compress", "sendfile"] = "compress") -> None:
        self._workers, self._client, self._sink, self._way = workers, client, Sink(), way

    def start(self, launcher: Launcher) -> None:
        """Start the sink, then the upload.

        Raises:
            TestbedError: It runs already, or cannot be run.
        """
        self._sink.start(self._client)
        self._sink.ready()
        super().start(launcher)

    def _moved_bytes(self) -> int:
        return self._sink.stop()

    def _command(self, launcher: Launcher) -> list[str]:  # noqa: ARG002
        numbers = (SINK_PORT, CONNECTIONS, self._workers)
        return [sys.executable, "-I", "-S", uploader.__file__, CLIENT_ADDRESS, *map(str, numbers), self._way]


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
