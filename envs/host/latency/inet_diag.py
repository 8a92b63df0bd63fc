"""TCP sockets as the kernel lists them: NETLINK_SOCK_DIAG, with TCP_INFO of every connection of some ports.

Layouts: include/uapi/linux/inet_diag.h and tcp.h. The kernel filters by port (INET_DIAG_REQ_BYTECODE), so that other
services' connections cost nothing but the walk.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.errors import SensorError
from rlctl.envs.host.network.routes import Address

FAMILIES = (socket.AF_INET, socket.AF_INET6)
MOST_PORTS = 512

_NETLINK_SOCK_DIAG, _BY_FAMILY, _ERROR, _DONE = 4, 20, 2, 3
_REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ESTABLISHED, _LISTEN = 1 << 1, 1 << 10
_WITH_INFO, _INFO = 1 << 1, 2  # INET_DIAG_INFO as a bit of the request, and as an attribute
_BYTECODE, _PORT_IS, _JUMP = 1, 11, 1  # INET_DIAG_REQ_BYTECODE; INET_DIAG_BC_S_EQ and _JMP

# In 32-bit words of a message: nlmsghdr has 4, inet_diag_msg 18 more; then attributes, of which tcp_info is one.
_PORTS, _PEER, _COOKIE, _RECEIVE_QUEUE, _INODE, _ATTRIBUTES = 5, 10, 15, 18, 21, 22
_INFO_WORDS = {
    "unacked": 6, "received": 13, "sent": 11, "acked": 14, "advertised_mss": 21, "bytes_in": 32,
    "segments_in": 38, "segments_out": 39, "unsent": 36, "best_round_trip": 37,
}  # fmt: skip
_LEAST_INFO = 4 + 4 * (_INFO_WORDS["segments_out"] + 1)

_MONOTONIC_COARSE = 6  # linux/time.h; Python's `time` has no name for it

Words = NDArray[np.uint32]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Connections:
    """The established connections of a look, arrays of shape (n,) in the order of their cookies.

    Attributes:
        cookie: The kernel's name of a socket for as long as it lives.
        unread: Bytes that came and that the service has not read.
        unacked: Segments sent that the peer has not acknowledged.
        received, sent, acked: Milliseconds since data came, since data went out, since an acknowledgement came.
        advertised_mss: Largest segment that the peer may send.
        bytes_in, segments_in, segments_out: Counts since the connection began, modulo 2^32; of segments with data.
        unsent: Bytes that the service wrote and the kernel holds back, for the link or the peer takes no more.
        best_round_trip: Microseconds, of the last five minutes (tcp_min_rtt_wlen).
    """

    cookie: NDArray[np.uint64]
    unread: Numbers
    unacked: Numbers
    received: Numbers
    sent: Numbers
    acked: Numbers
    advertised_mss: Numbers
    bytes_in: Numbers
    segments_in: Numbers
    segments_out: Numbers
    unsent: Numbers
    best_round_trip: Numbers

    def __len__(self) -> int:
        return len(self.cookie)


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that listens; its inode is what /proc/PID/fd names."""

    port: int
    inode: int
    family: int


def jiffy_seconds() -> float:
    """The step of the kernel's time stamps: its coarse clock advances with each tick (1/HZ), and says so."""
    return time.clock_getres(_MONOTONIC_COARSE)


class InetDiag:
    """A netlink socket of the network namespace of the thread that makes it.

    Raises:
        SensorError: The kernel does not answer, now or later.
    """

    def __init__(self, timeout_seconds: float = 1.0) -> None:
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
        except OSError as error:
            raise SensorError(f"NETLINK_SOCK_DIAG: {error.strerror or error}") from error
        self._socket.settimeout(timeout_seconds)
        self._buffer, self._serial = bytearray(1 << 18), 0

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self._socket.close()

    def connections(self, ports: Sequence[int], families: Iterable[int] = FAMILIES) -> Connections:
        """Every established connection to one of these local ports."""
        columns = [
            _columns(rows) for family in families for rows in self._dump(family, _ESTABLISHED, _WITH_INFO, ports)
        ]
        if not columns:
            return Connections(np.empty(0, np.uint64), *[np.empty(0, np.int64)] * 11)
        both = np.concatenate(columns, axis=1)
        cookie = both[0].astype(np.uint64) | both[1].astype(np.uint64) << np.uint64(32)
        order = np.argsort(cookie)
        return Connections(cookie[order], *both[2:, order])

    def listeners(self) -> list[Listener]:
        """All sockets that listen in this network namespace."""
        found = []
        for family in FAMILIES:
            for rows in self._dump(family, _LISTEN, 0, ()):
                ports = rows[:, _PORTS].copy().view(">u2")[::2]
                pairs = zip(ports.tolist(), rows[:, _INODE].tolist(), strict=True)
                found += [Listener(port, inode, family) for port, inode in pairs]
        return found

    def peers(self, ports: Sequence[int], families: Iterable[int] = FAMILIES) -> set[Address]:
        """The addresses at the other end of every established connection to one of these local ports."""
        words = {socket.AF_INET: 1, socket.AF_INET6: 4}
        return {
            ipaddress.ip_address(row[_PEER : _PEER + words[family]].tobytes())
            for family in map(socket.AddressFamily, families)
            for rows in self._dump(family, _ESTABLISHED, 0, ports)
            for row in rows
        }

    def _dump(self, family: int, states: int, extensions: int, ports: Sequence[int]) -> Iterator[Words]:
        """Messages of one dump, those of one length together, as rows of words."""
        self._serial += 1
        body = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, extensions, states) + _port_filter(ports)
        header = struct.pack("=IHHII", 16 + len(body), _BY_FAMILY, _REQUEST_DUMP, self._serial, 0)
        try:
            self._socket.send(header + body)
            while True:
                size = self._socket.recv_into(self._buffer)
                if struct.unpack_from("=I", self._buffer, 8)[0] != self._serial:
                    continue  # of a dump that was given up
                rows, done = _rows(self._buffer, size)
                yield from rows
                if done:
                    return
        except OSError as error:
            why = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
            lacks = "; load the module tcp_diag" if error.errno == errno.ENOENT else ""
            raise SensorError(f"the kernel does not list TCP sockets (tcp_diag): {why}{lacks}") from error


def _port_filter(ports: Sequence[int]) -> bytes:
    """The request's attribute that keeps sockets of these local ports; empty for all.

    Each port is a comparison and, behind it, a jump to the end; a comparison that fails goes on behind the jump. The
    last one that fails goes beyond the end, which rejects.
    """
    code = b""
    for place, port in enumerate(reversed(ports)):
        compare = struct.pack("=BBHHH", _PORT_IS, 8, 12, 0, port)
        code = compare + (struct.pack("=BBH", _JUMP, 4, len(code) + 4) if place else b"") + code
    return struct.pack("=HH", 4 + len(code), _BYTECODE) + code if code else b""


def _rows(buffer: bytearray, size: int) -> tuple[list[Words], bool]:
    """The messages of one datagram, as in `_dump`, and whether the dump ends with them."""
    length, kind = struct.unpack_from("=IH", buffer)
    words = np.frombuffer(buffer, np.uint32, size // 4)
    if kind == _BY_FAMILY and size % length == 0:
        table = words.reshape(-1, length // 4)
        if (table[:, 0] == length).all():
            return [table.copy()], False
    rows: list[Words] = []
    offset = 0
    while offset + 16 <= size:
        length, kind = struct.unpack_from("=IH", buffer, offset)
        if kind in (_ERROR, _DONE):
            if code := -struct.unpack_from("=i", buffer, offset + 16)[0]:
                raise OSError(code, "refused" if code != errno.ENOENT else "no such handler")
            return rows, True
        rows.append(words[None, offset // 4 : (offset + length) // 4].copy())
        offset += max(length + 3 & ~3, 16)
    return rows, False


def _columns(rows: Words) -> Numbers:
    """Cookie (two halves) and the other fields of `Connections`, shape (13, rows)."""
    at = _ATTRIBUTES
    while at < rows.shape[1]:
        length, kind = int(rows[0, at]) & 0xFFFF, int(rows[0, at]) >> 16
        if kind == _INFO:
            break
        at += max(length + 3 >> 2, 1)
    else:
        return np.empty((13, 0), np.int64)  # a socket that ended while it was listed
    if length < _LEAST_INFO:
        raise SensorError("this kernel's TCP_INFO has no counts of segments with data: it takes Linux 4.6")
    if (rows[:, at] != rows[0, at]).any():
        return np.concatenate([_columns(row[None]) for row in rows], axis=1)
    places = [_COOKIE, _COOKIE + 1, _RECEIVE_QUEUE, *(at + 1 + word for word in _INFO_WORDS.values())]
    return rows[:, places].T.astype(np.int64)
