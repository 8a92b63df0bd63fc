"""Compresses blocks and sends them over many connections, for ever: `python -I -S uploader.py ADDRESS PORT N WORKERS`.

A best-effort upload as backups and log shippers are: its CPU time is compression, its work what arrives. It is a file
of its own in a bare interpreter, and uses nothing outside the standard library. It says `ready` when it could
begin, and begins at SIGUSR1: what it sends while nobody has restricted it yet is in the link's queue for a second.
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
    address, port, count, workers = arguments[0], *map(int, arguments[1:])
    connections = [socket.create_connection((address, port)) for _ in range(count)]
    print("ready", flush=True)
    signal.sigwait({signal.SIGUSR1})
    worker = next((number for number in range(1, workers) if os.fork() == 0), 0)
    upload(connections[worker::workers])
    return 0


def upload(connections: list[socket.socket]) -> None:
    """Feed whichever connection takes data, until one is closed at its other end."""
    poll = select.epoll()
    by_number = {connection.fileno(): connection for connection in connections}
    rest = dict.fromkeys(by_number, b"")
    for number, connection in by_number.items():
        connection.setblocking(False)
        poll.register(number, select.EPOLLOUT)
    supply = itertools.cycle(blocks())
    while True:
        for number, _ in poll.poll():
            data = rest[number] or zlib.compress(next(supply), LEVEL)
            try:
                rest[number] = data[by_number[number].send(data) :]
            except BlockingIOError:
                rest[number] = data
            except OSError:
                return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
