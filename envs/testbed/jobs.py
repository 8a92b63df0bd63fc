"""Best-effort jobs of a testbed: stress-ng, an upload over the link, and what writes to the disk."""

from __future__ import annotations

import os
import re
import signal
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

from rlctl.envs.errors import TestbedError
from rlctl.envs.testbed.disk import writer
from rlctl.envs.testbed.disk.provisioned import VOLUME_BYTES
from rlctl.envs.testbed.launch import Launcher, Process, find_program
from rlctl.envs.testbed.network import sink, uploader
from rlctl.envs.testbed.network.link import CLIENT_ADDRESS, SINK_PORT
from rlctl.envs.testbed.workloads import BeJob, Program, Transfer, Work

# Limit for the end, which waits for the last round and the report: seconds under the smallest quota (0.01 CPU), and
# half a minute for `stream`, whose arrays are larger than the cache, on a busy machine with a large one.
STOP_SECONDS = 60.0
START_SECONDS = 5.0
# Time to fill the arrays: a task that clears pages in the kernel cannot be frozen.
FILL_SECONDS = {"cpu": 0.0, "memory": 1.0, "mixed": 1.0}

_METRIC = re.compile(r"- stressor: (\S+)\s+bogo-ops: (\d+)")


# Its exit code when a worker did not end by itself. A starved one does not, and is killed by its parent; its rounds are
# in shared memory and count.
_UNSUCCESSFUL = 2

# Begins the lines in which it doubts its own counters.
_CORRUPT = "fail:"

# What stress-ng writes when no worker has finished a round; there are no metrics then.
ALL_ZERO = "all bogo-op counters are zero"


class StressNg(BeJob):
    """A stress-ng that runs until it is stopped.

    Args:
        kind: `cpu` multiplies matrices, `memory` streams through arrays larger than the last-level cache, `mixed` has
            both, half of the workers each.
        workers: Number of its processes.
    """

    name = "stress-ng"

    def __init__(self, kind: Literal["cpu", "memory", "mixed"] = "cpu", workers: int = 2) -> None:
        self._kind, self._workers, self._report = kind, workers, Path()

    @property
    def stressors(self) -> dict[str, int]:
        """Workers by stressor, as stress-ng names it in its options and in its report."""
        streaming = {"cpu": 0, "memory": self._workers, "mixed": self._workers // 2}[self._kind]
        counts = {"cpu": self._workers - streaming, "stream": streaming}
        return {name: count for name, count in counts.items() if count}

    @property
    def options(self) -> list[str]:
        """What makes stress-ng do this."""
        counts = [word for name, count in self.stressors.items() for word in (f"--{name}", str(count))]
        return counts + (["--cpu-method", "matrixprod"] if "--cpu" in counts else [])

    def ready(self) -> None:
        """Wait until all workers run and have filled their arrays.

        Raises:
            TestbedError: They do not, or it ended; with its last words.
        """
        self.await_that(lambda: len(self.pids()) > self._workers, f"start its {self._workers} workers", START_SECONDS)
        time.sleep(FILL_SECONDS[self._kind])

    def stop(self, timeout_seconds: float = STOP_SECONDS) -> Work:
        """Thaw it, ask it to end, and read what it has done. Afterwards it is gone, also when this raises.

        The end takes CPU time: lift a small quota first, or give it time.

        Raises:
            TestbedError: It does not run, did not end in time, or did not report.
        """
        process, self._process = self.process, None
        ended_before = process.exit_code is not None
        seconds = time.monotonic() - self._begin_seconds
        exit_code = process.stop(signal.SIGINT, timeout_seconds)
        if exit_code == -signal.SIGINT and not ended_before:
            return self._work(seconds, {})  # frozen or starved since its start: it had not even begun to listen
        if exit_code == -signal.SIGKILL and not ended_before:
            raise TestbedError(
                f"stress-ng did not end in {timeout_seconds:g} s, so its work is unknown: lift its quota before the end"
            )
        counted = exit_code == os.EX_OK or (exit_code == _UNSUCCESSFUL and _CORRUPT not in process.tail())
        if ended_before or not counted:
            raise TestbedError(f"stress-ng ended with code {exit_code}: {process.tail()}")
        return self._work(seconds, _rounds(self._report, process))

    def _command(self, launcher: Launcher) -> list[str]:
        program = find_program("stress-ng", "stress-ng")
        folder = Path(tempfile.mkdtemp(prefix="stress-", dir=launcher.folder))
        self._report = folder / "metrics.yaml"
        # no --quiet: it leaves the metrics out of the file as well
        report = ["--metrics-brief", "--yaml", str(self._report), "--temp-path", str(folder), "--timeout", "0"]
        return [program, *self.options, *report]

    def _work(self, seconds: float, rounds: dict[str, float]) -> Work:
        """A stressor that finished no round is a zero: stress-ng leaves it out of its report."""
        return Work(dict.fromkeys(self.stressors, 0.0) | rounds, seconds)


def parse_metrics(text: str) -> dict[str, float]:
    """Rounds by stressor, from the file of `--yaml`. It is no dependable YAML: texts in it are not escaped."""
    return {name: float(ops) for name, ops in _METRIC.findall(text)}


def _rounds(report: Path, process: Process) -> dict[str, float]:
    """Finished rounds by stressor; empty when it ended before any worker's first."""
    rounds = parse_metrics(report.read_text(errors="replace")) if report.exists() else None
    if rounds is None or (not rounds and ALL_ZERO not in process.tail()):
        raise TestbedError(f"stress-ng left no metrics in {report}: {process.tail()}")
    return rounds


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
