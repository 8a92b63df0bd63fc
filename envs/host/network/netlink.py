"""Messages to the kernel and back (netlink(7)): requests that are acknowledged, dumps, nested attributes."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from rlctl.envs.closing import Closing

ACK, DUMP, CREATE_NEW = 0x4, 0x300, 0x600
"""Flags of a request: to be acknowledged, for all there are, and one that must not exist yet (linux/netlink.h)."""

_REQUEST = 0x1
_ERROR, _DONE = 2, 3
_NESTED, _KIND_MASK = 0x8000, 0x3FFF
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_TIMEOUT_SECONDS = 2.0
_MOST_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Message:
    """One message: its kind and flags, and what follows the header of netlink."""

    kind: int
    body: bytes
    flags: int = ACK


class Netlink(Closing):
    """A netlink socket of the network namespace of the thread that makes it. A context manager.

    Its methods raise OSError with the kernel's errno.

    Args:
        family: NETLINK_ROUTE and so on; `socket` has not all of their names.
    """

    def __init__(self, family: int) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family)
        self._socket.settimeout(_TIMEOUT_SECONDS)
        self._serial = 0

    def request(self, *messages: Message) -> list[bytes]:
        """Send messages at once, and wait until the last is acknowledged.

        Returns:
            Bodies of what the kernel said besides.
        """
        first = self._serial + 1
        self._socket.send(b"".join(map(self._encode, messages)))
        # The last that asks for a word gets the last word; of those before it only a refusal is told.
        last = first + max(place for place, message in enumerate(messages) if message.flags & ACK)
        answers, refused = [], 0
        for serial, kind, body in self._answers(first):
            if kind == _ERROR:
                refused = refused or _errno(body)
                if serial == last or refused in _FINAL:
                    break
            else:
                answers.append(body)
        if refused:
            raise OSError(refused, os.strerror(refused))
        return answers

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        """The bodies of all answers to one request for everything."""
        self._socket.send(self._encode(Message(kind, body, DUMP)))
        answers = []
        for _serial, answer_kind, answer in self._answers(self._serial):
            if answer_kind in (_ERROR, _DONE):
                # A dump's end may carry an errno too.
                if refused := _errno(answer):
                    raise OSError(refused, os.strerror(refused))
                break
            answers.append(answer)
        return answers

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self._socket.close()

    def _encode(self, message: Message) -> bytes:
        self._serial += 1
        size = _HEADER.size + len(message.body)
        return _HEADER.pack(size, message.kind, _REQUEST | message.flags, self._serial, 0) + message.body

    def _answers(self, first: int) -> Iterator[tuple[int, int, bytes]]:
        """Serial number, kind and body of each answer to the requests from that one on."""
        while True:
            data = self._socket.recv(_MOST_BYTES)
            offset = 0
            while offset + _HEADER.size <= len(data):
                size, kind, _flags, serial, _ = _HEADER.unpack_from(data, offset)
                if serial >= first:  # not of a request that was given up
                    yield serial, kind, data[offset + _HEADER.size : offset + size]
                offset += max(size + 3 & ~3, _HEADER.size)


# A batch that may not begin ends with one word, to its first message: EPERM, EOPNOTSUPP, EINVAL of nfnetlink_rcv.
_FINAL = (1, 95)


def _errno(body: bytes) -> int:
    return -struct.unpack_from("=i", body)[0] if len(body) >= 4 else 0


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, filled up to a multiple of four bytes."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def text(kind: int, value: str) -> bytes:
    """An attribute of a name."""
    return attribute(kind, os.fsencode(value) + b"\0")


def nest(kind: int, *inner: bytes) -> bytes:
    """An attribute that holds others."""
    return attribute(kind | _NESTED, b"".join(inner))


def attributes(data: bytes) -> dict[int, bytes]:
    """The attributes in a body or in an attribute, the last of each kind."""
    found, offset = {}, 0
    while offset + _ATTRIBUTE.size <= len(data):
        size, kind = _ATTRIBUTE.unpack_from(data, offset)
        found[kind & _KIND_MASK] = data[offset + _ATTRIBUTE.size : offset + size]
        offset += max(size + 3 & ~3, _ATTRIBUTE.size)
    return found
