"""A small HTTP server in a thread of its own: all of rlctl that listens, for metrics and, if configured, for latencies.

A peer can ask for the pages there are and nothing else; it cannot make rlctl hold much, wait long, or spend CPU time
that the control loop needs: a request is small and answered within seconds or not at all, the oldest connection makes
room for the newest, and connections are taken at a bounded pace; what comes faster waits in the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import logging
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from rlctl.config.listening import Listening
from rlctl.envs.errors import ConfigError, HostError, PermissionMissing, RlctlError
from rlctl.serve.secret_file import opened, refuse_public, secret_of

log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""From accepting a connection to having answered, TLS handshake included."""

MOST_CONNECTIONS = 16
MOST_HEAD_BYTES = 8192
BACKLOG = 128
ACCEPT_PAUSE_SECONDS = 0.02
"""At most 50 connections a second: a flood costs a few percent of a CPU and no more."""

TEXT = "text/plain; charset=utf-8"

Answer = tuple[int, bytes, str]
"""Status, body, content type."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a peer asks.

    Attributes:
        page: Without what follows a `?`.
        headers: By their names in lower case; one that came twice is left out.
        admitted: It came with the token, or none is needed.
        body: None where it is longer than is read.
    """

    method: str
    page: str
    headers: Mapping[str, str]
    body: bytes | None
    admitted: bool


Pages = Callable[[Request], Answer]

NOT_ADMITTED: Answer = 401, b"needs a bearer token\n", TEXT


class HttpServer:
    """Answers from construction until `close`.

    Certificate, key and token are read again when their files have changed, so that they may be rotated.

    Args:
        name: Of the section of the configuration, for messages.
        pages: Called in the thread, for each request.
        methods: All that a page may be asked by.
        most_body_bytes: Of a request; what is longer is refused unread.

    Raises:
        ConfigError: The certificate, its key or the token is none.
        HostError: The port is taken, or there is no such address here.
        PermissionMissing: Not allowed to use that port or to read one of the files.
    """

    def __init__(
        self, name: str, section: Listening, pages: Pages, methods: tuple[str, ...], most_body_bytes: int = 0
    ) -> None:
        self._name, self._pages, self._methods, self._most_body_bytes = name, pages, methods, most_body_bytes
        self._secrets = _Secrets(name, section)
        self._socket = _listening(name, section)
        host, port = self._socket.getsockname()[:2]
        scheme = "http" if self._secrets.tls is None else "https"
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        self._attended: dict[asyncio.Task[None], None] = {}  # oldest first
        self._loop = asyncio.new_event_loop()
        self._accepting = self._loop.create_task(self._accept())
        self._thread = threading.Thread(target=self._run, name=f"rlctl-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and end the thread. Idempotent."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                self._loop.call_soon_threadsafe(self._accepting.cancel)
            self._thread.join(ANSWER_SECONDS)

    def _run(self) -> None:
        """The thread: whatever ends it, the control loop goes on."""
        loop = self._loop
        loop.set_exception_handler(lambda _loop, found: log.debug("%s: %s", self._name, found.get("message")))
        try:
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(self._accepting)
        except Exception as error:  # noqa: BLE001 - a bug here costs the pages, never the loop
            log.error("no more %s until rlctl is started again: %r", self._name, error)
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
        reader = asyncio.StreamReader(MOST_HEAD_BYTES, self._loop)
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
            head = await reader.readuntil(b"\r\n\r\n")
            head_only = head.startswith(b"HEAD ")
            status, body, kind = await self._answer(head, reader)
        except asyncio.LimitOverrunError:
            status, body, kind = 431, b"the request is too long\n", TEXT
        except asyncio.IncompleteReadError:
            raise
        except Exception as error:  # noqa: BLE001 - a bug in a page costs its answer, never the loop
            log.warning("%s: %r", self._name, error)
            status, body, kind = 500, b"see the log of rlctl\n", TEXT
        more = {401: "WWW-Authenticate: Bearer\r\n", 405: f"Allow: {', '.join(self._methods)}\r\n"}.get(status, "")
        answer = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            f"{more}Connection: close\r\n\r\n"
        )
        return answer.encode() + (b"" if head_only else body)

    async def _answer(self, head: bytes, reader: asyncio.StreamReader) -> Answer:
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return 400, b"no HTTP/1 request\n", TEXT
        headers, method, page = _headers(lines), words[0], words[1].partition("?")[0]
        admitted = self._admits(headers)
        try:
            # what strangers send is not read
            body = await _body(reader, headers, self._most_body_bytes) if admitted and self._most_body_bytes else b""
        except ValueError:
            return 400, b"no HTTP/1 request\n", TEXT
        return self._pages(Request(method, page, headers, body, admitted))

    def _admits(self, headers: Mapping[str, str]) -> bool:
        wanted = self._secrets.token
        if wanted is None:
            return True
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode("latin-1"), wanted)


def _headers(lines: list[str]) -> dict[str, str]:
    pairs = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    times = Counter(name for name, _ in pairs)
    return {name: value for name, value in pairs if times[name] == 1}


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str], most_bytes: int) -> bytes | None:
    """What follows the head; None where it is longer than it may be.

    Raises:
        ValueError: A length that is none.
    """
    if headers.get("transfer-encoding", "").lower() != "chunked":
        length = int(headers.get("content-length", "0"))
        if length < 0:
            raise ValueError("a negative length")
        return await reader.readexactly(length) if length <= most_bytes else None
    body = b""
    while length := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        if not 0 < length <= most_bytes - len(body):
            return None
        body += (await reader.readexactly(length + 2))[:-2]
    await reader.readuntil(b"\r\n")  # what ends it; what is left unread at the end would reset the connection
    return body


class _Secrets:
    """Certificate with key (`tls`), and `token`, as their files hold them; the last good ones while those are wrong."""

    def __init__(self, name: str, section: Listening) -> None:
        self._name, self._section = name, section
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
        except (OSError, RlctlError) as error:  # a file may go between two looks at it
            log.error("%s: the old certificate and token stay in effect: %s", self._name, error)
        else:
            log.info("%s: certificate and token are read again", self._name)

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        section = self._section
        return tuple(map(_stamp, (section.tls_certificate, section.tls_key, section.bearer_token_file)))

    def _read(self) -> tuple[ssl.SSLContext | None, bytes | None]:
        file, key = self._section.bearer_token_file, f"{self._name}.bearer_token_file"
        return _tls(self._name, self._section), None if file is None else secret_of(key, file)


def check_files(name: str, section: Listening) -> None:
    """Look at certificate, key and token as a start does, and raise what that would; nothing listens."""
    _Secrets(name, section)


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    """Tells a file from what it was before; links are followed, as Kubernetes exchanges a whole folder by one."""
    if path is not None:
        with contextlib.suppress(OSError):
            status = path.stat()
            return status.st_ino, status.st_mtime_ns, status.st_ctime_ns
    return None


def _tls(section_name: str, section: Listening) -> ssl.SSLContext | None:
    if section.tls_certificate is None or section.tls_key is None:
        return None
    for name, path in (("tls_certificate", section.tls_certificate), ("tls_key", section.tls_key)):
        with opened(f"{section_name}.{name}", path):
            pass
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(section.tls_certificate, section.tls_key, password=lambda: "")  # never asks a terminal
    except ssl.SSLError as error:
        why = error.reason or "no PEM file, or a key with a passphrase"
        raise ConfigError(
            f"{section_name}.tls_certificate, tls_key: {section.tls_certificate} and {section.tls_key} are no "
            f"certificate and its key ({why})"
        ) from error
    refuse_public(f"{section_name}.tls_key", section.tls_key, section.tls_key.stat())
    return context


def _listening(name: str, section: Listening) -> socket.socket:
    host, port = section.address
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what ended just now keeps nobody waiting
        listener.bind((host, port))  # not socket.create_server, whose [::] would refuse IPv4
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _refusal(f"{name}.listen", section.listen, error) from error
    listener.setblocking(False)
    return listener


def _refusal(key: str, listen: str, error: OSError) -> ConfigError | HostError | PermissionMissing:
    if error.errno == errno.EADDRINUSE:
        return HostError(f"{key}: {listen} is in use: choose another port, or end what uses it (ss -ltnp)")
    if error.errno in (errno.EACCES, errno.EPERM):
        return PermissionMissing(f"{key}: {listen}: {error.strerror}: take a port above 1023")
    if error.errno == errno.EADDRNOTAVAIL:  # at boot perhaps not yet
        return HostError(f"{key}: {listen}: no such address here: is the interface up?")
    return ConfigError(f"{key}: {listen}: {error.strerror}")
