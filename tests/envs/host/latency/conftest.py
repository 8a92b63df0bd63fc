"""An SLO, and an HTTP endpoint on loopback that says what the test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rlctl.envs.workload import SLO

Answer = Callable[[], tuple[int, bytes]]


class QuietServer(ThreadingHTTPServer):
    """Does not print a traceback when a client has stopped waiting."""

    def handle_error(self, *_: object) -> None:
        pass


@pytest.fixture
def slo() -> SLO:
    return SLO(target_seconds=0.010, quantile=0.95, max_load_rps=1000.0)


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], str]]:
    """Starts an endpoint; its URL is returned and it ends with the test."""
    servers: list[tuple[ThreadingHTTPServer, threading.Thread]] = []

    def start(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = answer()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = QuietServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}/metrics"

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()
