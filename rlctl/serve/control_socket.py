"""The socket at which people reach a running service, in threads of its own: a pause waits behind no other request.

The kernel says who is at the other end (SO_PEERCRED), and the socket's mode keeps everybody else away.
"""

from __future__ import annotations

import contextlib
import grp
import json
import logging
import os
import pwd
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlctl.envs.errors import ConfigError, HostError, PermissionMissing, RlctlError, in_one_line, printable

log = logging.getLogger("rlctl.serve")

SOCKET = "control.sock"
"""Below the state directory."""

READ_SECONDS = 2.0
ANSWER_SECONDS = 300.0
"""What a client waits for: some control periods, of which one may be a minute long."""

MOST_AT_ONCE = 8
"""Requests that are answered at the same time; each may wait for some control periods."""

MOST_BYTES = 1 << 16
MOST_LETTERS = 107
"""Of a socket's path: `sun_path` of unix(7), less the zero at its end."""
# `struct ucred` of unix(7): pid, uid, gid.
CREDENTIALS = struct.Struct("3i")

Answer = Callable[[Mapping[str, Any], str], Mapping[str, Any]]


class ControlSocket:
    """Takes requests from construction until `close`. A line of JSON is a request, a line of JSON its answer.

    Args:
        group: Its members may ask too, beside root and the service's own user.
        answer: What comes of a request, given who asks; it may raise RlctlError.

    Raises:
        ConfigError: There is no such group, or the path is too long for a socket.
        HostError: The socket cannot be made.
    """

    def __init__(self, path: Path, group: str | None, answer: Answer) -> None:
        self._path, self._answer = path, answer
        self._gid = check_socket(path, group)
        self._socket = _listening(path, self._gid)
        self._closing = False
        self._free = threading.BoundedSemaphore(MOST_AT_ONCE)
        self._thread = threading.Thread(target=self._run, name="rlctl-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and remove the socket. Idempotent."""
        if self._closing:
            return
        self._closing = True
        with contextlib.suppress(OSError):
            # This ends the accept that the thread waits in.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(READ_SECONDS)
        self._socket.close()
        with contextlib.suppress(OSError):  # such as of a disk that can be read only by now
            self._path.unlink()

    def _run(self) -> None:
        while not self._closing:
            try:
                peer, _ = self._socket.accept()
            except OSError as error:
                # No descriptor or memory is left; that may pass.
                if not self._closing:
                    log.error("a request waits, and is tried again: %s", in_one_line(error))
                    time.sleep(READ_SECONDS)
                continue
            # Beyond MOST_AT_ONCE requests wait in the kernel's queue; each thread costs memory and may wait for
            # ticks.
            self._free.acquire()
            try:
                threading.Thread(target=self._serve, args=(peer,), name="rlctl-request", daemon=True).start()
            except RuntimeError:
                # No thread can be started: answer in this one.
                self._serve(peer)

    def _serve(self, peer: socket.socket) -> None:
        try:
            # The peer may have gone.
            with peer, contextlib.suppress(OSError):
                peer.settimeout(READ_SECONDS)
                peer.sendall(json.dumps(self._reply(peer)).encode() + b"\n")
        finally:
            self._free.release()

    def _reply(self, peer: socket.socket) -> Mapping[str, Any]:
        try:
            who, allowed = self._peer(peer)
            # Read even from a peer without permission: a close with unread bytes discards the answer.
            line = read_line(peer, READ_SECONDS)
            if not allowed:
                log.warning("%s may not ask for anything", who)
                raise PermissionMissing(f"{who} may not: it takes root, or control.group of the configuration")
            return self._answer(*_request(line, who))
        except RlctlError as error:
            return {"ok": False, "said": str(error), "exit_code": error.exit_code}
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a request breaks, the next one is answered
            log.error("a request failed: %s", in_one_line(error))
            return {"ok": False, "said": "the request failed; see the log of rlctl", "exit_code": HostError.exit_code}

    def _peer(self, peer: socket.socket) -> tuple[str, bool]:
        """Who is at the other end, and whether they may ask."""
        # SO_PEERCRED: the kernel's word on who connected, which the peer cannot forge (unix(7)).
        told = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        pid, uid, gid = CREDENTIALS.unpack(told)
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = f"user {uid}"
        allowed = uid in (0, os.geteuid()) or (self._gid is not None and self._gid in _groups(name, gid))
        return f"{printable(name)} (pid {pid})", allowed


def check_socket(path: Path, group: str | None) -> int | None:
    """The number of the group; ConfigError: there is none, or the path is too long for a socket."""
    # bind would fail with a message that names no key of the configuration.
    if len(os.fsencode(path)) > MOST_LETTERS:
        raise ConfigError(f"state_directory: {path} is too long for a socket's name, {MOST_LETTERS} letters")
    return None if group is None else _gid(group)


def _request(line: bytes, who: str) -> tuple[Mapping[str, Any], str]:
    try:
        request = json.loads(line[:MOST_BYTES])
    except ValueError as error:
        raise ConfigError(f"no line of JSON of at most {MOST_BYTES} bytes") from error
    if not isinstance(request, dict):
        raise ConfigError("a request is an object")
    # `sudo` names the user behind it; only root's word for that counts.
    behind = request.get("behind")
    return request, f"{who} for {printable(str(behind))[:32]}" if behind and who.startswith("root ") else who


def read_line(peer: socket.socket, seconds: float) -> bytes:
    """What comes up to the end of a line, to the other end's close, or to more than a line may be.

    Raises:
        OSError: It did not come within so many seconds, in whatever pieces.
    """
    # One deadline for the whole line: a peer that sends a byte at a time cannot hold a thread for longer.
    line, ends = b"", time.monotonic() + seconds
    while not line.endswith(b"\n") and len(line) <= MOST_BYTES:
        peer.settimeout(max(ends - time.monotonic(), 0.001))
        if not (part := peer.recv(MOST_BYTES)):
            break
        line += part
    return line


def _listening(path: Path, gid: int | None) -> socket.socket:
    """A socket there that nobody but its owner, and this group, may connect to."""
    made = socket.socket(socket.AF_UNIX)
    try:
        with contextlib.suppress(FileNotFoundError):
            # A service that was killed left it; the state directory is ours now.
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        # The mode is right from the first moment: between bind and chmod another user could connect.
        before = os.umask(0o177)
        try:
            made.bind(str(path))
        finally:
            os.umask(before)
        if gid is not None:
            _give(path, gid)
        made.listen(8)
    except RlctlError:
        made.close()
        raise
    except OSError as error:
        made.close()
        raise HostError(f"{path}: no socket can be made there: {error.strerror or error}") from error
    return made


def _give(path: Path, gid: int) -> None:
    """Let the members of a group connect, too."""
    try:
        os.chown(path, -1, gid)
    except PermissionError as error:
        path.unlink()
        name = grp.getgrgid(gid).gr_name
        way_out = f"SupplementaryGroups={name} in the unit, or CAP_CHOWN"
        raise PermissionMissing(f"control.group: the socket may not be given to {name}: {way_out}") from error
    path.chmod(0o660)


def _gid(group: str) -> int:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise ConfigError(f"control.group: there is no group {group!r}") from error


def _groups(name: str, gid: int) -> list[int]:
    """The groups of a user; of one without a name the own group alone."""
    try:
        return os.getgrouplist(name, gid)
    except (KeyError, OSError):
        return [gid]
