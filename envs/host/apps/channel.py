"""The mode channel: a Unix socket that tells each application its working mode.

Who an application is the kernel says: the pid of SO_PEERCRED, and the group that this process is in. Nobody is
believed a name. The service never waits for a client: what does not fit into a client's buffer ends its connection,
and a client that comes back is told the mode of now.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from rlctl.envs.errors import HostError, PermissionMissing
from rlctl.envs.host.apps.told import parse_gap

__all__ = ["SOCKET", "ModeChannel", "peer_pid"]

log = logging.getLogger(__name__)

SOCKET = Path("/run/rlctl/mode.sock")

MOST_CLIENTS = 256
MOST_CLIENTS_EACH = 4
MOST_NEW = 32
"""New connections per call; the others wait in the kernel's queue, which is bounded too."""

MOST_LINE_BYTES = 64
READ_BYTES = 4096
"""Of one client per call: one that floods us is heard no faster than the others."""

SEND_BUFFER_BYTES = 4096

Identify = Callable[[int], str | None]
"""An application's name from the pid of one of its processes; None for a process of none."""


_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid


def peer_pid(end: socket.socket) -> int:
    """Pid of the process at the other end, as the kernel says; 0 in a pid namespace that we cannot look into.

    Raises:
        OSError: It is not connected.
    """
    told = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(told)[0])


class _Client:
    def __init__(self, connection: socket.socket, application: str) -> None:
        self.connection = connection
        self.application = application
        self.said = b""

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
        *lines, self.said = (self.said + some).split(b"\n")
        return lines if some and len(self.said) <= MOST_LINE_BYTES else None


class ModeChannel:
    """The service's end.

    Args:
        identify: Tells whose process a client is.
        path: Of the socket; everybody may connect, which gains a process of no application nothing.

    Attributes:
        gaps: Goal gaps in percent, by application, as last said by one that is still connected.

    Raises:
        HostError: Another service has the socket, or it cannot be made.
        PermissionMissing: The directory may not be written.
    """

    def __init__(self, identify: Identify, path: Path = SOCKET) -> None:
        self.gaps: dict[str, float] = {}
        self._path = path
        self._identify = identify
        self._clients: list[_Client] = []
        self._told: dict[str, str] = {}
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
        """Tell the applications whose line has changed.

        Args:
            lines: As `rlctl.envs.host.apps.told.mode_line` writes them, by application; others are left alone.
        """
        changed = {name: line for name, line in lines.items() if self._told.get(name) != line}
        self._told |= changed
        for client in tuple(self._clients):
            line = changed.get(client.application)
            if line is not None and not client.send(line):
                self._drop(client)

    def keep(self, names: Iterable[str]) -> None:
        """Forget all applications but these."""
        kept = frozenset(names)
        for client in [client for client in self._clients if client.application not in kept]:
            self._drop(client)
        self._told = {name: line for name, line in self._told.items() if name in kept}

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
            line = self._told.get(client.application)
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
        os.chmod(path, 0o666)  # noqa: S103 - the kernel says who connects, and strangers are told nothing
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
