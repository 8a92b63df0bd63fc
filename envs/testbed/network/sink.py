"""Takes uploads and counts what arrives: `python -I -S sink.py ADDRESS PORT`.

Says `ready` when it listens, and the number of bytes when it is asked to end (SIGTERM). It uses nothing outside the
standard library.
"""

from __future__ import annotations

import select
import signal
import socket
import sys
from typing import Any

MOST_BYTES = 1 << 20  # of one read


def main(arguments: list[str]) -> int:
    """Listen and count until the end is asked for; the arguments are those of the command line."""
    signal.signal(signal.SIGTERM, _end)
    counts = [0]
    try:
        serve(socket.create_server((arguments[0], int(arguments[1])), backlog=128), counts)
    except KeyboardInterrupt:
        print(counts[0], flush=True)
    return 0


def serve(listener: socket.socket, counts: list[int]) -> None:
    """Take every connection and throw away what comes over it; `counts[0]` is the bytes so far."""
    print("ready", flush=True)
    poll = select.epoll()
    connections: dict[int, socket.socket] = {}
    poll.register(listener, select.EPOLLIN)
    nowhere = bytearray(MOST_BYTES)
    while True:
        for number, _ in poll.poll():
            if number == listener.fileno():
                connection, _ = listener.accept()
                connections[connection.fileno()] = connection
                poll.register(connection, select.EPOLLIN)
                continue
            try:
                # With MSG_TRUNC the kernel drops a stream's bytes unread (tcp(7)): the client's CPU time is no matter.
                size = connections[number].recv_into(nowhere, MOST_BYTES, socket.MSG_TRUNC)
            except OSError:
                size = 0
            counts[0] += size
            if not size:
                connections.pop(number).close()


def _end(*_: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
