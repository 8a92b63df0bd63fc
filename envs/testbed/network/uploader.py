"""Sends blocks over many connections, for ever: `python -I -S uploader.py ADDRESS PORT N WORKERS compress|sendfile`.

A best-effort upload as backups and log shippers are: its CPU time is compression, its work what arrives. With sendfile
the kernel sends a file as it is, and next to no CPU time goes by. It is a file of its own in a bare interpreter, and
uses nothing outside the standard library. It says `ready` when it could begin, and begins at SIGUSR1: what it sends
while nobody has restricted it yet is in the link's queue for a second.
"""

from __future__ import annotations

import itertools
import os
import random
import select
import signal
import socket
import sys
import zlib
from collections.abc import Callable

BLOCK_BYTES = 65_536
BLOCKS = 16  # more than zlib's window of 32 kB can remember
LEVEL = 1


def blocks() -> list[bytes]:
    """Hexadecimal digits, the same at each call; level 1 makes three fifths of them, about 100 MB/s on a core."""
    dice = random.Random(1)
    return [dice.randbytes(BLOCK_BYTES // 2).hex().encode() for _ in range(BLOCKS)]


def main(arguments: list[str]) -> int:
    """Connect, share the connections out to the workers, and upload; the arguments are those of the command line."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    address, port, count, workers = arguments[0], *map(int, arguments[1:4])
    connections = [socket.create_connection((address, port)) for _ in range(count)]
    print("ready", flush=True)
    signal.sigwait({signal.SIGUSR1})
    worker = next((number for number in range(1, workers) if os.fork() == 0), 0)
    own = connections[worker::workers]
    feed(own, file_sender() if arguments[4] == "sendfile" else compressor(own))
    return 0


def feed(connections: list[socket.socket], send: Callable[[int], None]) -> None:
    """Let whichever connection takes data have some, until one is closed at its other end."""
    poll = select.epoll()
    for connection in connections:
        connection.setblocking(False)
        poll.register(connection, select.EPOLLOUT)
    while True:
        for number, _ in poll.poll():
            try:
                send(number)
            except BlockingIOError:
                pass
            except OSError:
                return


def compressor(connections: list[socket.socket]) -> Callable[[int], None]:
    """What sends a connection, by its number, the rest of its block, or of a new one, compressed."""
    by_number = {connection.fileno(): connection for connection in connections}
    rest = dict.fromkeys(by_number, b"")
    supply = itertools.cycle(blocks())

    def send(number: int) -> None:
        rest[number] = rest[number] or zlib.compress(next(supply), LEVEL)
        rest[number] = rest[number][by_number[number].send(rest[number]) :]

    return send


def file_sender() -> Callable[[int], None]:
    """What sends a connection, by its number, a piece of a file."""
    file = os.memfd_create("upload")
    os.write(file, b"".join(blocks()))

    def send(number: int) -> None:
        os.sendfile(number, file, 0, BLOCKS * BLOCK_BYTES)

    return send


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
