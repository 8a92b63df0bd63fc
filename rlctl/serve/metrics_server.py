"""/metrics and /healthz of a running rlctl, on the threading server of Python's library.

A peer can ask for two pages and nothing else. It cannot make rlctl hold much, wait long, or spend CPU time that the
control loop needs. A request that is not complete within seconds is left, and the oldest connection makes room for the
newest. Connections are taken at a bounded pace; what comes faster waits in the kernel.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import logging
import os
import socket
import socketserver
import ssl
import stat
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import IO, Any

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from rlctl.config.sections import MetricsSection
from rlctl.envs.errors import ConfigError, HostError, PermissionMissing, RlctlError
from rlctl.serve.metrics import Metrics

log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""Longest wait for a peer's next bytes, TLS handshake included."""

MOST_CONNECTIONS = 16
ACCEPT_PAUSE_SECONDS = 0.02
"""At most 50 connections a second: a flood costs a few percent of a CPU and no more."""

TEXT = "text/plain; charset=utf-8"


class MetricsServer:
    """Serves metrics in threads of its own, from construction until `close`.

    `/healthz` says whether ticks are completed, the last one at most `fresh_seconds` ago, and needs no token: kubelet
    has none. Certificate, key and token are read again when their files have changed.

    Raises:
        ConfigError: The certificate, its key or the token is not valid.
        HostError: The port is taken, or there is no such address here.
        PermissionMissing: Not allowed to use that port or to read one of the files.
    """

    def __init__(self, metrics: Metrics, section: MetricsSection, fresh_seconds: float) -> None:
        self._server = _Server(metrics, section, fresh_seconds)
        host, port = self._server.socket.getsockname()[:2]
        scheme = "http" if self._server.secrets.tls is None else "https"
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/metrics"
        self._thread = threading.Thread(target=self._server.serve_forever, name="rlctl-metrics", daemon=True)
        self._thread.start()
        log.info("metrics at %s", self.url)

    def close(self) -> None:
        """Stop listening and end the thread. Idempotent."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(ANSWER_SECONDS)
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    # A service that ended a moment ago does not block the port.
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, metrics: Metrics, section: MetricsSection, fresh_seconds: float) -> None:
        self.metrics, self.fresh_seconds = metrics, fresh_seconds
        self.secrets = Secrets(section)
        # Connections, the oldest first.
        self._connections: dict[socket.socket, None] = {}
        self.address_family = socket.AF_INET6 if ":" in section.address[0] else socket.AF_INET
        try:
            super().__init__(section.address, _Pages)
        except OSError as error:
            raise _refusal(section.listen, error) from error

    def get_request(self) -> tuple[socket.socket, Any]:
        """The next connection; its TLS handshake is left to its own thread, as a peer may never begin it."""
        # A bound on the accept rate bounds the CPU time that peers can take from the loop.
        time.sleep(ACCEPT_PAUSE_SECONDS)
        peer, address = super().get_request()
        # Looked at for each connection, so that a renewed certificate needs no restart.
        self.secrets.renew()
        peer.settimeout(ANSWER_SECONDS)
        if self.secrets.tls is not None:
            peer = self.secrets.tls.wrap_socket(peer, server_side=True, do_handshake_on_connect=False)
        # The oldest makes room: a peer that holds connections open cannot lock the scraper out.
        if len(self._connections) >= MOST_CONNECTIONS:
            # The connection may end by itself at this moment.
            with contextlib.suppress(OSError):
                next(iter(self._connections)).shutdown(socket.SHUT_RDWR)
        self._connections[peer] = None
        return peer, address

    def shutdown_request(self, request: Any) -> None:
        """Forget and close a connection."""
        self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the library's
        """A peer that broke off is no event; a bug in a page costs its answer, never the loop."""
        error = sys.exception()
        if not isinstance(error, OSError):
            log.warning("metrics: %r", error)


class _Pages(BaseHTTPRequestHandler):
    server: _Server
    # HTTP/1.0: one request a connection.
    protocol_version = "HTTP/1.0"

    # The name is the library's.
    def do_GET(self) -> None:
        """Answer one of the two pages."""
        page = self.path.partition("?")[0]
        if page == "/healthz":
            age = self.server.metrics.age_seconds()
            since = "no tick yet" if age == float("inf") else f"no tick for {age:.1f} s"
            fresh = age <= self.server.fresh_seconds
            self._answer(200 if fresh else 503, b"ok\n" if fresh else f"{since}\n".encode())
        elif page != "/metrics":
            self._answer(404, b"there are /metrics and /healthz\n")
        elif not self.server.secrets.admit(self.headers.get_all("authorization", [])):
            self._answer(401, b"needs a bearer token\n")
        else:
            try:
                body = generate_latest(self.server.metrics)
            except Exception as error:  # noqa: BLE001 - a bug in a metric costs its answer, never the loop
                log.warning("metrics: %r", error)
                self._answer(500, b"see the log of rlctl\n")
                return
            self._answer(200, body, CONTENT_TYPE_PLAIN_0_0_4)

    do_HEAD = do_GET  # noqa: N815 - likewise

    def _answer(self, status: int, body: bytes, kind: str = TEXT) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """No version of Python or of a library is told to strangers."""
        return "rlctl"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Peers write no lines into the service's log."""
        log.debug(format.replace("%s", "%r"), *args)


class Secrets:
    """Certificate with key (`tls`) and token, as their files hold them; the last good ones while those are wrong.

    Raises:
        ConfigError: One of the files is not what its key says.
        PermissionMissing: One of them may not be read.
    """

    def __init__(self, section: MetricsSection) -> None:
        self._section = section
        self._stamps = self._stamp_files()
        self.tls, self._token = self._read()

    def admit(self, authorizations: list[str]) -> bool:
        """Whether a request with these `Authorization` headers may see the metrics."""
        if self._token is None:
            return True
        if len(authorizations) != 1:
            return False
        scheme, _, token = authorizations[0].partition(" ")
        # Constant time: the time of a comparison must not tell how much of a token was right.
        return scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode("latin-1"), self._token)

    def renew(self) -> None:
        """Read the files again if one has changed; costs three `stat`."""
        stamps = self._stamp_files()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self.tls, self._token = self._read()
        except (OSError, RlctlError) as error:
            # A file may go between two looks at it.
            log.error("metrics: the old certificate and token stay in effect: %s", error)
        else:
            log.info("metrics: certificate and token are read again")

    def _stamp_files(self) -> tuple[tuple[int, int, int] | None, ...]:
        section = self._section
        return tuple(map(_stamp, (section.tls_certificate, section.tls_key, section.bearer_token_file)))

    def _read(self) -> tuple[ssl.SSLContext | None, bytes | None]:
        file = self._section.bearer_token_file
        return _tls_context(self._section), None if file is None else secret_of("metrics.bearer_token_file", file)


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    """Tells a file from what it was before; links are followed, as Kubernetes exchanges a whole folder by one."""
    if path is not None:
        with contextlib.suppress(OSError):
            status = path.stat()
            return status.st_ino, status.st_mtime_ns, status.st_ctime_ns
    return None


def _tls_context(section: MetricsSection) -> ssl.SSLContext | None:
    certificate, key = section.tls_certificate, section.tls_key
    if certificate is None or key is None:
        return None
    for name, path in (("tls_certificate", certificate), ("tls_key", key)):
        with open_regular(f"metrics.{name}", path):
            pass
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Older versions have been deprecated since RFC 8996.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Never asks a terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError as error:
        why = error.reason or "not a PEM file, or a key with a passphrase"
        raise ConfigError(
            f"metrics.tls_certificate, tls_key: {certificate} and {key} are not a certificate and its key ({why})"
        ) from error
    refuse_public("metrics.tls_key", key, key.stat())
    return context


def _refusal(listen: str, error: OSError) -> ConfigError | HostError | PermissionMissing:
    if error.errno == errno.EADDRINUSE:
        return HostError(f"metrics.listen: {listen} is in use: choose another port, or end what uses it (ss -ltnp)")
    if error.errno in (errno.EACCES, errno.EPERM):
        return PermissionMissing(f"metrics.listen: {listen}: {error.strerror}: take a port above 1023")
    # At boot the address may come later.
    if error.errno == errno.EADDRNOTAVAIL:
        return HostError(f"metrics.listen: {listen}: no such address here: is the interface up?")
    return ConfigError(f"metrics.listen: {listen}: {error.strerror}")


LEAST_TOKEN_BYTES = 16


def secret_of(key: str, path: Path) -> bytes:
    """The secret in a file that not everybody may read.

    Args:
        key: Of the configuration, for messages.
    """
    # fstat of the open file: the path may lead elsewhere by the time of a second look.
    with open_regular(key, path) as file:
        status, secret = os.fstat(file.fileno()), file.read(4096).strip()
    refuse_public(key, path, status)
    if len(secret) < LEAST_TOKEN_BYTES or len(secret) >= 4096 or len(secret.split()) != 1:
        least = f"one line of {LEAST_TOKEN_BYTES} characters or more"
        raise ConfigError(f"{key}: {path} is not {least}: openssl rand -hex 32 > {path}")
    return secret


@contextlib.contextmanager
def name_errors(key: str, path: Path) -> Iterator[None]:
    """Say which key an unreadable file belongs to."""
    try:
        yield
    except PermissionError as error:
        raise PermissionMissing(f"{key}: {path}: {error.strerror}") from error
    except OSError as error:
        raise ConfigError(f"{key}: {path}: {error.strerror}") from error


@contextlib.contextmanager
def open_regular(key: str, path: Path) -> Iterator[IO[bytes]]:
    """A regular file that the configuration names; a FIFO in its place is not waited for."""
    # O_NONBLOCK: opening a FIFO without a writer would wait for ever.
    with (
        name_errors(key, path),
        open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file,
    ):
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ConfigError(f"{key}: {path}: is no regular file")
        yield file


def refuse_public(key: str, path: Path, status: os.stat_result) -> None:
    """A secret that everybody may read is none."""
    # The last three bits are those of everybody: read, write, execute.
    if status.st_mode & 0o007:
        raise ConfigError(f"{key}: everybody may use {path}: chmod o= {path}")
