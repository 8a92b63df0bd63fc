"""One long-lived `perf stat` child: its pipe, its last words, its end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

__all__ = ["PerfChild", "on_leash"]

LEASH = Path(__file__).with_name("leash.py")
PIPE_BYTES = 1 << 18  # a controller paused for minutes must not make perf wait in the middle of an interval
READ_BYTES = 1 << 16
LAST_WORDS_BYTES = 2000
END_SECONDS = 1.0


def on_leash(command: Sequence[str], nice: int = 0, cpus: Collection[int] = ()) -> list[str]:
    """A command that dies with the thread that starts it, see `leash`.

    Args:
        command: Program and arguments.
        nice: Niceness to add.
        cpus: CPUs it may run on; empty for those of this process.
    """
    own = [sys.executable, "-I", "-S", str(LEASH), str(os.getpid()), str(nice), ",".join(map(str, cpus))]
    return [*own, *command]


class PerfChild:
    """A running perf, which writes its intervals to a pipe that is read without ever waiting.

    The kernel ends it when the *thread* that started it ends (PDEATHSIG); should it have lost that (a perf with file
    capabilities does), its next line into the closed pipe ends it by SIGPIPE. perf visits every CPU to read its
    counters, so `cpus` only holds between intervals.

    Args:
        command: perf with its arguments, `--log-fd` left out.
        nice: Niceness to add.
        cpus: CPUs it may run on; empty for those of this process.

    Raises:
        OSError: No process can be started at all.
    """

    def __init__(self, command: Sequence[str], nice: int = 0, cpus: Collection[int] = ()) -> None:
        out, log = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(out, False)
        with contextlib.suppress(OSError):  # above /proc/sys/fs/pipe-max-size: the ordinary size will do
            fcntl.fcntl(out, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._out: int | None = out
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        try:
            self._process = subprocess.Popen(
                on_leash([*command, "--log-fd", str(log)], nice, cpus),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._words,
                pass_fds=(log,),
                env={**os.environ, "LC_ALL": "C"},  # perf prints decimal commas where the locale has them
                start_new_session=True,  # ctrl-C is for the controller
            )
        except OSError:
            os.close(out)
            self._words.close()
            raise
        finally:
            os.close(log)

    @property
    def pid(self) -> int:
        """Its process id; still set when it has ended."""
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._process.poll()

    def read(self) -> bytes:
        """All that it wrote since the last call, perhaps nothing."""
        chunks: list[bytes] = []
        while self._out is not None:
            try:
                chunk = os.read(self._out, READ_BYTES)
            except BlockingIOError:
                break
            chunks.append(chunk)
            if len(chunk) < READ_BYTES:  # drained, or at its end
                break
        return b"".join(chunks)

    def last_words(self) -> str:
        """What it wrote to stderr, at most 2,000 bytes; its exit code if that is nothing."""
        if self._words.closed:
            return "stopped"
        said = os.pread(self._words.fileno(), LAST_WORDS_BYTES, 0).decode(errors="replace").strip()
        return said or f"it ended with code {self._process.returncode} and said nothing"

    def stop(self) -> None:
        """End and reap it. Idempotent."""
        out, self._out = self._out, None
        if out is not None:
            os.close(out)
        for end in (self._process.terminate, self._process.kill):
            if self._process.poll() is None:
                end()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(END_SECONDS)
        self._words.close()
