"""Word to systemd: sd_notify(3) is one datagram to the socket that $NOTIFY_SOCKET names."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from rlctl.log.record import Tick
from rlctl.log.sentences import on_rein


def notify(state: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Tell the service manager something, such as `READY=1` or `STOPPING=1`: assignments, one per line.

    False without a service manager, or when it cannot be reached; a daemon goes on either way.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    # `@` stands for the abstract namespace, see unix(7).
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as channel:
            channel.sendto(state.encode(), address)
    except OSError:
        return False
    return True


class Heartbeat:
    """A recorder that says READY after the first tick and feeds the service's watchdog after every one.

    A tick reaches a recorder only when it was read, ruled on and written: a loop that hangs in any of these stops
    the heartbeat, and systemd restarts it (`WatchdogSec=`).
    """

    _ready = False

    def write(self, tick: Tick) -> None:
        """One tick was completed."""
        # READY only after a whole tick: `systemctl start` then returns when BE is under control.
        state = "WATCHDOG=1" if self._ready else "READY=1\nWATCHDOG=1"
        self._ready = True
        notify(f"{state}\nSTATUS=BE {tick.applied}{on_rein(tick.telemetry)}")
