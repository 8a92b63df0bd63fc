"""The upload as a best-effort job: the program that sends, and the one at the link's other end that counts."""

from __future__ import annotations

import os
import sys
from typing import Literal

from rlctl.envs.errors import TestbedError
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
