"""Where the latency of a faulty run comes from: a client of a real LC, or an endpoint that tells what it is told."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

from tests.doubles.http import answering

ANSWERING = """
import socket, sys
here = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
here.bind(sys.argv[1])
while True:
    asked, who = here.recvfrom(64)
    here.sendto(asked, who)
"""
"""The LC: answers every datagram with itself."""

OLDEST_ANSWER_SECONDS = 0.5


class Client:
    """Asks the LC at a steady rate and writes a line for each answer, as `latency: {kind: jsonl}` reads them.

    Args:
        folder: Takes the sockets and the lines.
        interval_seconds: Between two requests.

    Attributes:
        server: Where the LC is to listen.
        lines: The file.
    """

    def __init__(self, folder: Path, interval_seconds: float) -> None:
        self.server, self.lines = folder / "lc", folder / "requests.jsonl"
        self._interval_seconds = interval_seconds
        self._stalled, self._ended, self._garbled = threading.Event(), threading.Event(), threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(folder / "client"))
        self._socket.setblocking(False)
        self._written = 0
        self._thread = threading.Thread(target=self._run, name="client", daemon=True)
        self._thread.start()

    @property
    def config(self) -> dict[str, object]:
        """The section `lc.latency`."""
        return {"kind": "jsonl", "path": str(self.lines)}

    def stall(self) -> None:
        """Send nothing and write nothing any more."""
        self._stalled.set()

    def garble(self) -> None:
        """Write null in place of each latency in ten: requests that timed out, as some services log them."""
        self._garbled.set()

    def close(self) -> None:
        """End it. Idempotent."""
        self._ended.set()
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        with self.lines.open("ab", buffering=0) as lines:
            while not self._ended.wait(self._interval_seconds):
                if not self._stalled.is_set():
                    self._ask()
                    lines.write(b"".join(self._answers()))

    def _ask(self) -> None:
        with contextlib.suppress(OSError):  # the LC is not there, or does not take it
            self._socket.sendto(repr(time.monotonic()).encode(), str(self.server))

    def _answers(self) -> list[bytes]:
        """A line for each request that was answered."""
        found = []
        with contextlib.suppress(OSError):  # nothing more
            while True:
                seconds = time.monotonic() - float(self._socket.recv(64))
                if seconds < OLDEST_ANSWER_SECONDS:
                    found.append(b'{"latency_seconds": %.6f}\n' % max(seconds, 1e-6))
                    self._written += 1
                    if self._garbled.is_set() and self._written % 10 == 0:
                        found[-1] = b'{"latency_seconds": null}\n'
        return found


class Endpoint:
    """Tells figures as JSON, as `latency: {kind: http}` reads them: good ones until it is told to tell others."""

    def __init__(self) -> None:
        self.figures: dict[str, Any] = {"tail": 0.002, "samples": 50, "rps": 50.0, "errors": 0.0}
        self._stalled_stamp: int | None = None
        self._stack = contextlib.ExitStack()
        self._port = self._stack.enter_context(answering(lambda _: (200, self._body())))

    @property
    def config(self) -> dict[str, object]:
        """The section `lc.latency`."""
        url = f"http://127.0.0.1:{self._port}/"
        keys = {"tail": "tail", "samples": "samples", "done_rps": "rps", "error_rps": "errors", "stamp": "stamp"}
        return {"kind": "http", "url": url, "timeout_seconds": 2.0, **keys}

    def stall(self) -> None:
        """Tell the figures of now for ever."""
        self._stalled_stamp = self._stamp()

    def resume(self) -> None:
        """Tell what there is to tell again."""
        self._stalled_stamp = None

    def close(self) -> None:
        """End it. Idempotent."""
        self._stack.close()

    def _body(self) -> bytes:
        stamp = self._stamp() if self._stalled_stamp is None else self._stalled_stamp
        return json.dumps({**self.figures, "stamp": stamp}).encode()

    @staticmethod
    def _stamp() -> int:
        return int(time.monotonic() * 20)
