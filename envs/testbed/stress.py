"""stress-ng as BE: it never has enough, and tells at its end how many rounds it has done."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from pathlib import Path
from typing import Literal

from rlctl.envs.errors import TestbedError
from rlctl.envs.testbed.launch import Launcher, Process, find_program
from rlctl.envs.testbed.workloads import BeJob, Work

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
    try:
        rounds = parse_metrics(report.read_text(errors="replace"))
    except OSError as error:
        raise TestbedError(f"stress-ng left no metrics in {report}: {process.tail()}") from error
    if not rounds and ALL_ZERO not in process.tail():
        raise TestbedError(f"stress-ng left no metrics in {report}: {process.tail()}")
    return rounds
