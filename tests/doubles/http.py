"""An HTTP server on loopback that answers what a test wants."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # none answers any more when the block has ended

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # who asked has given up
            super().handle_error(request, client_address)


@contextlib.contextmanager
def answering(answer: Callable[[str], tuple[int, bytes]]) -> Iterator[int]:
    """A server until the end of the block; gives its port.

    Args:
        answer: Status and body for the path of a GET request; called in a thread of its connection.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 1.0  # of a connection that is kept

        def do_GET(self) -> None:
            status, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with _Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
