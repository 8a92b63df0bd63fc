"""One interface as rlctl takes it and gives it back: its lock, its name in the journal, and how it is put back."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from rlctl.envs.closing import Closing
from rlctl.envs.errors import HostError, PermissionMissing
from rlctl.envs.host.network.namespace import NetworkNamespace
from rlctl.envs.host.network.netlink import Netlink
from rlctl.envs.host.network.packet_rules import NETLINK_NETFILTER, PacketRules
from rlctl.envs.host.network.shaper import BE, Shaper

INTERFACES = Path("/sys/class/net")
_QUEUES = "qdisc"

Key = tuple[int, int]
"""Numbers of an interface's network namespace and of the interface in it: names are used again."""

_held_here: set[Key] = set()


def journal_path(name: str) -> Path:
    """What a journal calls the queues of an interface. No such file exists; its original is that nothing was there."""
    return INTERFACES / name / _QUEUES


def is_interface(path: Path) -> bool:
    """Whether a journal's entry is of an interface and not of a file."""
    return path.name == _QUEUES and path.parent.parent == INTERFACES


class Interface(Closing):
    """An interface, with the messages to the kernel about it; a context manager.

    Args:
        namespace: Where it is. It is closed with this.

    Attributes:
        key: What names it in the journal.
        name: As it is called now.

    Raises:
        HostError: There is none of that number, or this kernel cannot tell BE's packets.
        PermissionMissing: It takes CAP_NET_ADMIN, or its namespace may not be entered.
    """

    def __init__(self, namespace: NetworkNamespace, index: int) -> None:
        self.namespace, self.key = namespace, (namespace.inode, index)
        try:
            self.name = namespace.run(lambda: socket.if_indextoname(index))
        except OSError:
            raise HostError(f"network interface {index} has gone") from None
        with ExitStack() as opened, self.refusing("tell BE's packets (nftables)"):
            make = namespace.run
            self._lock = opened.enter_context(make(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)))
            self._route = opened.enter_context(make(lambda: Netlink(socket.NETLINK_ROUTE)))
            self._netfilter = opened.enter_context(make(lambda: Netlink(NETLINK_NETFILTER)))
            self.shaper = Shaper(self._route, index)
            self.rules = PacketRules(self._netfilter, index, BE)
            self.rules.count()  # or a journal would have what nobody may put there, or back
            opened.pop_all()

    @classmethod
    def of_name(cls, namespace: NetworkNamespace, name: str) -> Self:
        """The interface of that name. Raises HostError where there is none."""
        try:
            index = namespace.run(lambda: socket.if_nametoindex(name))
        except OSError:
            raise HostError(f"there is no network interface {name!r}") from None
        return cls(namespace, index)

    def take(self) -> None:
        """Keep every other rlctl off it, until closed or until the process ends. HostError: another one has it."""
        try:
            # An abstract address belongs to a network namespace, and to its process until that ends (unix(7)).
            self._lock.bind(f"\0rlctl/interface/{self.key[1]}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise HostError(f"{self.name}: another running rlctl holds BE on this interface: stop it first") from None
        _held_here.add(self.key)

    def clear(self) -> bool:
        """Take down what is ours; False where there was nothing."""
        with self.refusing("take its queues back"):
            found = self.rules.count() > 0
            # The classes first: packets without a rule are everybody's, and so are all where there is no class.
            found = self.shaper.remove() or found
            self.rules.remove()
            return found

    @contextmanager
    def refusing(self, doing: str) -> Iterator[None]:
        """What the kernel refuses within, as HostError or PermissionMissing."""
        try:
            yield
        except PermissionError as error:
            raise PermissionMissing(f"{self.name}: cannot {doing}: it takes CAP_NET_ADMIN") from error
        except OSError as error:
            gone = error.errno in (errno.ENODEV, errno.ENXIO)
            reason = "the interface has gone" if gone else error.strerror or error
            raise HostError(f"{self.name}: cannot {doing}: {reason}") from error

    def close(self) -> None:
        """Let go of it; what stands on it stays. Idempotent."""
        if self._lock.fileno() >= 0 and self._lock.getsockname():
            _held_here.discard(self.key)
        for one in (self._lock, self._route, self._netfilter, self.namespace):
            one.close()


def put_back(key: Key) -> bool | None:
    """Take down what a journal says that rlctl has put on an interface; the kernel's own queues come back.

    Returns:
        Whether there was anything; None where the interface has gone, and all with it.

    Raises:
        HostError: Another running rlctl has the interface.
        PermissionMissing: It takes CAP_NET_ADMIN, or CAP_SYS_ADMIN for another namespace.
    """
    inode, index = key
    if (namespace := NetworkNamespace.find(inode)) is None:
        return None
    with namespace:
        if index not in namespace.run(lambda: [one for one, _ in socket.if_nameindex()]):
            return None
        with Interface(namespace, index) as interface:
            if key not in _held_here:  # by this process, which is done with it
                interface.take()
            return interface.clear()
