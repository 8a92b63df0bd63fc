"""The mode channel: a Unix socket that tells each application its working mode.

Who an application is the kernel says: the pid of SO_PEERCRED, and the group that this process is in. Nobody is
believed a name. The service never waits for a client: what does not fit into a client's buffer ends its connection,
and a client that comes back learns the mode of now.

Service to application, a line per change: `mode 2 threads 4 millicpus 1500 memory 0`. Further pairs of words may
follow in a later version. Application to service: `gap 12.5`, percent of its goal that it falls short of it, negative
when it does better. The C header and the Python client speak it too.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import socket
import stat
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from rlctl.envs.applications import Placement, WorkingMode
from rlctl.envs.errors import HostError, PermissionMissing

log = logging.getLogger(__name__)

SOCKET = Path("/run/rlctl/mode.sock")

MOST_CLIENTS = 256
MOST_CLIENTS_EACH = 4
# New connections per call; the others wait in the kernel's queue, which is bounded too.
MOST_NEW = 32

MOST_LINE_BYTES = 64
# Of one client per call: one that floods us is heard no faster than the others.
READ_BYTES = 4096

SEND_BUFFER_BYTES = 4096

MOST_GAP_PERCENT = 100.0
_GAP = re.compile(rb"gap (-?[0-9]{1,3}(?:\.[0-9]{1,6})?)")

Identify = Callable[[int], str | None]
"""An application's name from the pid of one of its processes; None for a process of none."""


_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid


def mode_line(placement: Placement, mode: WorkingMode) -> str:
    """The line for an application, with the newline."""
    millicpus = round(placement.cpus * 1000.0)
    return f"mode {placement.mode} threads {mode.threads} millicpus {millicpus} memory {mode.memory_bytes}\n"


def parse_gap(line: bytes) -> float | None:
    """The goal gap that a line says, in percent; None if it is no such line or says more than there can be."""
    match = _GAP.fullmatch(line)
    gap = float(match[1]) if match else MOST_GAP_PERCENT + 1.0
    return gap if abs(gap) <= MOST_GAP_PERCENT else None


def peer_pid(end: socket.socket) -> int:
    """Pid of the process at the other end, as the kernel says; 0 in a pid namespace that we cannot look into."""
    credentials = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[0])


class _Client:
    def __init__(self, connection: socket.socket, application: str) -> None:
        self.connection = connection
        self.application = application
        self.received = b""

    def send(self, line: str) -> bool:
        """Without waiting; False when it is to be dropped."""
        data = line.encode()
        try:
            return self.connection.send(data, socket.MSG_NOSIGNAL) == len(data)
        except OSError:
            return False

    def lines(self) -> list[bytes] | None:
        """Whole lines that have come; None when it is to be dropped: it left, or says what is no line."""
        try:
            some = self.connection.recv(READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        *lines, self.received = (self.received + some).split(b"\n")
        return lines if some and len(self.received) <= MOST_LINE_BYTES else None


class ModeChannel:
    """The service's end of the socket.

    Args:
        path: Of the socket; everybody may connect, which gains a process of no application nothing.

    Attributes:
        gaps: Goal gaps in percent, by application; the last one of each that is still connected.

    Raises:
        HostError: Another service has the socket, or it cannot be made.
        PermissionMissing: The directory may not be written.
    """

    def __init__(self, identify: Identify, path: Path = SOCKET) -> None:
        self.gaps: dict[str, float] = {}
        self._path = path
        self._identify = identify
        self._clients: list[_Client] = []
        self._lines: dict[str, str] = {}
        self._socket: socket.socket | None = _listening(path)
        self._inode = os.stat(path).st_ino

    def poll(self) -> None:
        """Take new clients and hear all of them; never waits."""
        self._accept()
        for client in tuple(self._clients):
            if (lines := client.lines()) is None:
                self._drop(client)
                continue
            for gap in map(parse_gap, lines):
                if gap is not None:
                    self.gaps[client.application] = gap

    def tell(self, lines: Mapping[str, str]) -> None:
        """Tell applications whose line, by name and as `mode_line` writes it, has changed; others are left alone."""
        changed = {name: line for name, line in lines.items() if self._lines.get(name) != line}
        self._lines |= changed
        for client in tuple(self._clients):
            line = changed.get(client.application)
            if line is not None and not client.send(line):
                self._drop(client)

    def keep(self, names: Iterable[str]) -> None:
        """Forget all applications but these."""
        remaining = frozenset(names)
        for client in [client for client in self._clients if client.application not in remaining]:
            self._drop(client)
        self._lines = {name: line for name, line in self._lines.items() if name in remaining}

    def close(self) -> None:
        """End all connections and remove the socket, if it is still ours. Idempotent."""
        listening, self._socket = self._socket, None
        if listening is None:
            return
        listening.close()
        while self._clients:
            self._drop(self._clients[-1])
        with contextlib.suppress(OSError):
            if os.stat(self._path).st_ino == self._inode:
                self._path.unlink()

    def _accept(self) -> None:
        for _ in range(MOST_NEW):
            try:
                if self._socket is None:
                    return
                connection, _ = self._socket.accept()
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.ECONNABORTED):
                    log.warning("%s: %s", self._path, error.strerror)
                return
            client = self._client(connection)
            if client is None:
                connection.close()
                continue
            self._clients.append(client)
            line = self._lines.get(client.application)
            if line is not None and not client.send(line):
                self._drop(client)

    def _client(self, connection: socket.socket) -> _Client | None:
        """A connection that is an application's; one too many of it takes its oldest one's place."""
        connection.setblocking(False)
        try:
            pid = peer_pid(connection)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        except OSError:
            return None
        name = self._identify(pid) if pid > 0 else None
        if name is None:
            return None
        own = [client for client in self._clients if client.application == name]
        if len(own) >= MOST_CLIENTS_EACH:
            self._drop(own[0])
        return _Client(connection, name) if len(self._clients) < MOST_CLIENTS else None

    def _drop(self, client: _Client) -> None:
        client.connection.close()
        self._clients.remove(client)
        if not any(other.application == client.application for other in self._clients):
            self.gaps.pop(client.application, None)


def _listening(path: Path) -> socket.socket:
    fresh = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        _remove_dead(path)
        fresh.bind(os.fspath(path))
        os.chmod(path, 0o666)  # noqa: S103 - the kernel says who connects, and strangers learn nothing
        fresh.listen(MOST_NEW)
    except PermissionError as error:
        fresh.close()
        raise PermissionMissing(f"{path}: {error.strerror}: run as root, or name another socket") from error
    except OSError as error:
        fresh.close()
        raise HostError(f"{path}: no mode channel there: {error.strerror or error}") from error
    except BaseException:
        fresh.close()
        raise
    return fresh


def _remove_dead(path: Path) -> None:
    """Remove the socket of a service that ended without; never anything else."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise HostError(f"{path}: is there and is no socket: name another, or remove it")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
        except BlockingIOError:
            raise HostError(f"{path}: another service has it: stop that one first") from None
        else:
            raise HostError(f"{path}: another service has it: stop that one first")
