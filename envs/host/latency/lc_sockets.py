"""Where an LC listens: its network namespace, and the TCP ports of its own sockets there."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.errors import HostError, SensorError
from rlctl.envs.host.latency.inet_diag import MOST_PORTS, InetDiag
from rlctl.envs.host.network.namespace import move_thread
from rlctl.envs.host.process import PROC

_SOCKET = re.compile(r"socket:\[(\d+)\]")


class NotTcp(HostError):
    """The LC has no TCP port that could be watched: it serves by something else, or not yet."""


@dataclass(frozen=True, slots=True)
class ListeningPorts:
    """Local TCP ports of an LC, and the address families (AF_INET, AF_INET6) of their sockets."""

    ports: tuple[int, ...]
    families: tuple[int, ...]

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.ports[:8])) + (", ..." if len(self.ports) > 8 else "")
        return f"port{'s' if len(self.ports) > 1 else ''} {shown}"


def enter_network_of(pid: int, proc: Path = PROC) -> bool:
    """Move the calling thread into a process's network namespace, for good; whether that is another one.

    Raises:
        SensorError: The process has gone, or this process lacks CAP_SYS_ADMIN.
    """
    theirs = proc / str(pid) / "ns/net"
    try:
        if os.readlink(theirs) == os.readlink(proc / "thread-self/ns/net"):
            return False
        with theirs.open("rb") as namespace:
            move_thread(namespace.fileno())
    except OSError as error:
        raise SensorError(f"network namespace of process {pid}: {error.strerror}") from error
    return True


def find_ports(
    diag: InetDiag, pids: Iterable[int], configured: Sequence[int] = (), proc: Path = PROC
) -> ListeningPorts:
    """The ports that an LC listens on, of the configured ones if there are any.

    Raises:
        NotTcp: It listens on none; says what else it has.
        SensorError: The kernel does not answer.
    """
    everything = diag.listeners()
    inodes = set[int]() if configured else socket_inodes(pids, proc)
    found = [one for one in everything if (one.port in configured if configured else one.inode in inodes)]
    ports = tuple(sorted({one.port for one in found}))
    if not ports:
        if configured:
            raise NotTcp(f"no socket listens on TCP port {', '.join(map(str, configured))} where the LC runs")
        raise NotTcp(f"the LC listens on no TCP port{what_else(inodes, pids, proc)}")
    if len(ports) > MOST_PORTS:
        raise NotTcp(f"the LC listens on {len(ports)} TCP ports, more than {MOST_PORTS}; name those that count")
    return ListeningPorts(ports, tuple(sorted({one.family for one in found})))


def socket_inodes(pids: Iterable[int], proc: Path = PROC) -> set[int]:
    """Inodes of all sockets that these processes hold; of one that ends meanwhile none."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in os.scandir(proc / str(pid) / "fd"):
                with contextlib.suppress(OSError):
                    if match := _SOCKET.fullmatch(os.readlink(entry.path)):
                        inodes.add(int(match[1]))
    return inodes


def what_else(inodes: set[int], pids: Iterable[int], proc: Path = PROC) -> str:
    """What an LC has beside or in place of a TCP port, which TCP_INFO says nothing of."""
    pid = next(iter(pids), 0)
    kinds = []
    # proc_net(5): the inode is field 10 of a line of udp, 7 of unix, whose field 4 marks what listens (__SO_ACCEPTCON).
    for name, table, field in (("UDP", "udp", 9), ("UDP", "udp6", 9), ("a UNIX socket", "unix", 6)):
        with contextlib.suppress(OSError):
            for line in (proc / str(pid) / "net" / table).read_text(errors="replace").splitlines()[1:]:
                words = line.split()
                listens = table != "unix" or int(words[3], 16) & 0x10000
                if len(words) > field and words[field].isdecimal() and int(words[field]) in inodes and listens:
                    kinds.append(name)
    kinds = list(dict.fromkeys(kinds))
    if kinds:
        return f": it serves by {' and '.join(kinds)}, of which the kernel keeps no request times"
    return "" if inodes else " (it has no socket at all yet, or its files may not be read)"
