"""The one thing of rlctl that listens: /metrics and /healthz, in a thread of their own.

A peer can ask for two pages and nothing else; it cannot make rlctl hold much, wait long, or spend CPU time that the
control loop needs: a request is small and answered within seconds or not at all, the oldest connection makes room for
the newest, and connections are taken at a bounded pace; what comes faster waits in the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import logging
import os
import socket
import ssl
import stat
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from rlctl.config.sections import MetricsSection
from rlctl.envs.errors import ConfigError, HostError, PermissionMissing, RlctlError
from rlctl.serve.metrics import Metrics

log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""From accepting a connection to having answered, TLS handshake included."""

MOST_CONNECTIONS = 16
MOST_REQUEST_BYTES = 8192
BACKLOG = 128
ACCEPT_PAUSE_SECONDS = 0.02
"""At most 50 connections a second: a flood costs a few percent of a CPU and no more."""

LEAST_TOKEN_BYTES = 16

_MORE = {401: "WWW-Authenticate: Bearer\r\n", 405: "Allow: GET, HEAD\r\n"}
_TEXT = "text/plain; charset=utf-8"

Answer = tuple[int, bytes, str]
"""Status, body, content type."""


class MetricsServer:
    """Serves metrics from construction until `close`.

    `/healthz` says whether ticks are completed, the last one at most `fresh_seconds` ago, and needs no token: kubelet
    has none. Certificate, key and token are read again when their files have changed, so that they may be rotated.

    Raises:
        ConfigError: There is no such address here, or the certificate, its key or the token is none.
        HostError: The port is taken.
        PermissionMissing: Not allowed to use that port or to read one of the files.
    """

    def __init__(self, metrics: Metrics, section: MetricsSection, fresh_seconds: float) -> None:
        self._metrics = metrics
        self._fresh_seconds = fresh_seconds
        self._secrets = _Secrets(section)
        self._socket = _listening(section)
        host, port = self._socket.getsockname()[:2]
        scheme = "http" if self._secrets.tls is None else "https"
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/metrics"
        self._attended: dict[asyncio.Task[None], None] = {}  # oldest first
        self._loop = asyncio.new_event_loop()
        self._accepting = self._loop.create_task(self._accept())
        self._thread = threading.Thread(target=self._run, name="rlctl-metrics", daemon=True)
        self._thread.start()
        log.info("metrics at %s", self.url)

    def close(self) -> None:
        """Stop listening and end the thread. Idempotent."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                self._loop.call_soon_threadsafe(self._accepting.cancel)
            self._thread.join(ANSWER_SECONDS)

    def _run(self) -> None:
        """The thread: whatever ends it, the control loop goes on."""
        loop = self._loop
        loop.set_exception_handler(lambda _loop, found: log.debug("metrics: %s", found.get("message")))
        try:
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(self._accepting)
        except Exception as error:  # noqa: BLE001 - a bug here costs the metrics, never the loop
            log.error("no more metrics until rlctl is started again: %r", error)
        finally:
            if tasks := tuple(self._attended):
                for task in tasks:
                    task.cancel()
                loop.run_until_complete(asyncio.wait(tasks))
            loop.close()
            self._socket.close()

    async def _accept(self) -> None:
        while True:
            with contextlib.suppress(OSError):  # the peer has left, or there are no descriptors left: try again
                peer, _ = await self._loop.sock_accept(self._socket)
                peer.setblocking(False)
                self._secrets.renew()
                if len(self._attended) >= MOST_CONNECTIONS:
                    next(iter(self._attended)).cancel()
                task = self._loop.create_task(self._attend(peer))
                self._attended[task] = None
                task.add_done_callback(self._attended.pop)
            await asyncio.sleep(ACCEPT_PAUSE_SECONDS)

    async def _attend(self, peer: socket.socket) -> None:
        """One connection, one request, one answer; a peer that breaks any rule is left."""
        reader = asyncio.StreamReader(MOST_REQUEST_BYTES, self._loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
        transport: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, peer, ssl=self._secrets.tls)
                writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
                writer.write(await self._reply(reader))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):  # ssl.SSLError is an OSError
            pass
        finally:
            peer.close() if transport is None else transport.abort()

    async def _reply(self, reader: asyncio.StreamReader) -> bytes:
        head_only = False
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            head_only = request.startswith(b"HEAD ")
            status, body, kind = self._answer(request)
        except asyncio.LimitOverrunError:
            status, body, kind = 431, b"the request is too long\n", _TEXT
        except asyncio.IncompleteReadError:
            raise
        except Exception as error:  # noqa: BLE001 - a bug in a metric costs the metrics, never the loop
            log.warning("metrics: %r", error)
            status, body, kind = 500, b"see the log of rlctl\n", _TEXT
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            f"{_MORE.get(status, '')}Connection: close\r\n\r\n"
        )
        return head.encode() + (b"" if head_only else body)

    def _answer(self, request: bytes) -> Answer:
        first, *lines = request.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return 400, b"no HTTP/1 request\n", _TEXT
        method, target, _ = words
        page = target.partition("?")[0]
        if page not in ("/metrics", "/healthz"):
            return 404, b"there are /metrics and /healthz\n", _TEXT
        if method not in ("GET", "HEAD"):
            return 405, b"GET and HEAD only\n", _TEXT
        if page == "/healthz":
            return self._health()
        if not self._admits(lines):
            return 401, b"needs a bearer token\n", _TEXT
        return 200, generate_latest(self._metrics), CONTENT_TYPE_PLAIN_0_0_4

    def _health(self) -> Answer:
        age = self._metrics.age_seconds()
        if age <= self._fresh_seconds:
            return 200, b"ok\n", _TEXT
        since = "no tick yet" if age == float("inf") else f"no tick for {age:.1f} s"
        return 503, f"{since}\n".encode(), _TEXT

    def _admits(self, headers: list[str]) -> bool:
        wanted = self._secrets.token
        if wanted is None:
            return True
        pairs = [line.partition(":") for line in headers]
        values = [value for name, _, value in pairs if name.lower() == "authorization"]
        scheme, _, token = (values[0] if len(values) == 1 else "").strip().partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode("latin-1"), wanted)


class _Secrets:
    """Certificate with key (`tls`), and `token`, as their files hold them; the last good ones while those are wrong."""

    def __init__(self, section: MetricsSection) -> None:
        self._section = section
        self._seen = self._look()
        self.tls, self.token = self._read()

    def renew(self) -> None:
        """Read them again if a file has changed; costs three `stat`."""
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self.tls, self.token = self._read()
        except RlctlError as error:
            log.error("the metrics' old certificate and token stay in effect: %s", error)
        else:
            log.info("the metrics' certificate and token are read again")

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        section = self._section
        return tuple(map(_stamp, (section.tls_certificate, section.tls_key, section.bearer_token_file)))

    def _read(self) -> tuple[ssl.SSLContext | None, bytes | None]:
        file = self._section.bearer_token_file
        return _tls(self._section), None if file is None else _token(file)


def check_files(section: MetricsSection) -> None:
    """Look at certificate, key and token as a start does, and raise what that would; nothing listens."""
    _Secrets(section)


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    """Tells a file from what it was before; links are followed, as Kubernetes exchanges a whole folder by one."""
    if path is not None:
        with contextlib.suppress(OSError):
            status = path.stat()
            return status.st_ino, status.st_mtime_ns, status.st_ctime_ns
    return None


def _token(path: Path) -> bytes:
    """The token in a file that not everybody may read."""
    with _named("bearer_token_file", path), path.open("rb") as file:
        status = os.fstat(file.fileno())
        token = file.read(4096).strip() if stat.S_ISREG(status.st_mode) else b""
    _refuse_public("bearer_token_file", path, status)
    if len(token) < LEAST_TOKEN_BYTES or len(token) >= 4096 or len(token.split()) != 1:
        raise ConfigError(
            f"metrics.bearer_token_file: {path} is not one line of {LEAST_TOKEN_BYTES} characters or more: "
            f"openssl rand -hex 32 > {path}"
        )
    return token


def _tls(section: MetricsSection) -> ssl.SSLContext | None:
    if section.tls_certificate is None or section.tls_key is None:
        return None
    for name, path in (("tls_certificate", section.tls_certificate), ("tls_key", section.tls_key)):
        with _named(name, path), path.open("rb"):
            pass
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(section.tls_certificate, section.tls_key, password=lambda: "")  # never asks a terminal
    except ssl.SSLError as error:
        why = error.reason or "no PEM file, or a key with a passphrase"
        raise ConfigError(
            f"metrics.tls_certificate, tls_key: {section.tls_certificate} and {section.tls_key} are no certificate and "
            f"its key ({why})"
        ) from error
    _refuse_public("tls_key", section.tls_key, section.tls_key.stat())
    return context


def _refuse_public(key: str, path: Path, status: os.stat_result) -> None:
    """A secret that everybody may read is none."""
    if status.st_mode & 0o007:
        raise ConfigError(f"metrics.{key}: everybody may use {path}: chmod o= {path}")


@contextlib.contextmanager
def _named(key: str, path: Path) -> Iterator[None]:
    """Say which key an unreadable file belongs to."""
    try:
        yield
    except PermissionError as error:
        raise PermissionMissing(f"metrics.{key}: {path}: {error.strerror}") from error
    except OSError as error:
        raise ConfigError(f"metrics.{key}: {path}: {error.strerror}") from error


def _listening(section: MetricsSection) -> socket.socket:
    host, port = section.address
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what ended just now keeps nobody waiting
        listener.bind((host, port))  # not socket.create_server, whose [::] would refuse IPv4
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _refusal(section.listen, error) from error
    listener.setblocking(False)
    return listener


def _refusal(listen: str, error: OSError) -> ConfigError | HostError | PermissionMissing:
    if error.errno == errno.EADDRINUSE:
        return HostError(f"metrics.listen: {listen} is in use: choose another port, or end what uses it (ss -ltnp)")
    if error.errno in (errno.EACCES, errno.EPERM):
        return PermissionMissing(f"metrics.listen: {listen}: {error.strerror}: take a port above 1023")
    return ConfigError(f"metrics.listen: {listen}: {error.strerror}")
