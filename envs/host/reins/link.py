"""The link's rein: BE's packets on one interface, held to what everybody else leaves of a rate.

What stands on the interface is in `rlctl.envs.host.network`. The journal has it before the kernel does, so that
`rlctl restore` takes it down after a crash. An interface with queues that somebody chose is refused as it is.

Some packets of BE escape. A socket keeps the group of its making, which a process that is moved to BE's group later
brings along. Packet sockets pass by netfilter, and pods on a macvlan or a device of their own pass by the host.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Self

from rlctl.envs.closing import Closing
from rlctl.envs.errors import CgroupGone, HostError, RlctlError, SensorError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import Entry, Journal
from rlctl.envs.host.events import Seldom
from rlctl.envs.host.latency.inet_diag import InetDiag
from rlctl.envs.host.latency.lc_sockets import NotTcp, find_ports
from rlctl.envs.host.network.interface import Interface, journal_path
from rlctl.envs.host.network.namespace import NetworkNamespace, sees_all_groups
from rlctl.envs.host.network.netlink import Netlink
from rlctl.envs.host.network.packet_rules import SocketGroup
from rlctl.envs.host.network.routes import Address, count_bytes, interface_towards, read_addresses
from rlctl.envs.host.network.shaper import BURST_BYTES, UNLIMITED, ForeignQdisc, Sent
from rlctl.envs.host.process import PROC

DEBT_SECONDS = 0.1
"""The longest time for which BE sends nothing to make up for what others sent beyond C before."""

MEND_SECONDS = 10.0
"""Queues that another program takes away are put back once in so long: who takes them away again means it."""

FIND_SECONDS = 5.0
"""How often networks of BE's own are looked for, as pods come and go within a group, and an interface not known yet."""

MOST_PEERS = 64
"""Whose routes are looked at."""

_log = logging.getLogger(__name__)


class LinkRein(Closing):
    """Holds BE on one interface. Use `open`.

    Its methods raise HostError where the interface has gone or another program has changed it; BE is not held there
    then. Once it is as it was, the next call goes on.

    Attributes:
        name: What the interface is called.
    """

    def __init__(self, interface: Interface, journal: Journal | None) -> None:
        self.name = interface.name
        self._interface, self._journal = interface, journal
        self._groups: tuple[Group, ...] = ()
        self._senders: tuple[SocketGroup | Address, ...] = ()
        self._found_seconds = -FIND_SECONDS
        self._rate = self._written = UNLIMITED
        self._total, self._be = 0, 0
        self._holds, self._last, self._removed = False, Sent(0, 0, 0), Seldom(logging.WARNING)
        self._last_seconds = self._mended_seconds = -MEND_SECONDS
        self._debt_seconds = self._allowed = 0.0  # bytes that C was good for since the last count, under rates before

    @classmethod
    def open(
        cls,
        interface: str | None,
        lc_pids: Sequence[int],
        be_groups: Sequence[Group],
        journal: Journal | None,
        namespace_pid: int | None = None,
    ) -> Self:
        """Put the classes on an interface, with BE free.

        Args:
            interface: Its name; None to find it by the route of the LC's traffic.
            lc_pids: The LC's processes, whose connections tell the route.
            journal: Remembers what is put there. None for a namespace that goes with all that is in it.
            namespace_pid: A process in whose network namespace the interface is; None for the host's.

        Raises:
            HostError: There is no such interface, no route, another rlctl has it, the kernel lacks a part, or BE's
                packets cannot be told from others'.
            PermissionMissing: It takes CAP_NET_ADMIN.
        """
        with contextlib.ExitStack() as failed:
            namespace = failed.enter_context(NetworkNamespace.of_host(namespace_pid))
            found = failed.enter_context(_find(namespace, interface, lc_pids))
            found.take()
            rein = cls(found, journal)
            rein.follow(be_groups, write=False)
            rein._take_over()
            failed.enter_context(rein)  # which clears away what holds nobody
            rein._set_up()
            failed.pop_all()
        return rein

    def sent_bytes(self) -> tuple[int, int]:
        """Bytes that the interface has sent since `open`, and BE's of them; call it in every tick."""
        self._look()
        return self._total, self._be

    def hold(self, bytes_per_second: float | None) -> None:
        """Leave BE what everybody else leaves of this rate; None: BE is free. Costs nothing where it is as before."""
        rate = UNLIMITED if bytes_per_second is None else bytes_per_second
        if rate != self._rate:
            now_seconds = time.monotonic()
            self._allowed += self._rate * (now_seconds - self._last_seconds)
            self._rate, self._last_seconds = rate, now_seconds
        if not self._holds:
            raise HostError(f"{self.name}: what holds BE's packets is not there")
        if rate != self._written:
            with self._interface.refusing("set BE's rate"):
                self._interface.shaper.set_rate(rate)
            self._written = rate

    def follow(self, be_groups: Iterable[Group], *, write: bool = True) -> None:
        """Hold the packets of these groups.

        Raises:
            HostError: A group's packets cannot be told from others'; those of the other groups are held all the same.
            PermissionMissing: So it is, for want of CAP_SYS_ADMIN.
        """
        self._groups, self._found_seconds = tuple(be_groups), time.monotonic()
        senders: list[SocketGroup | Address] = []
        refused: list[RlctlError] = []
        for group in self._groups:
            try:
                senders += _senders_of(group, self._interface.namespace.inode)
            except RlctlError as error:
                refused.append(error)
        if write and tuple(senders) != self._senders:
            with self._interface.refusing("tell BE's packets"):
                self._interface.rules.replace(senders)
        self._senders = tuple(senders)
        if refused:
            raise refused[0]

    def close(self) -> None:
        """Put the interface back as it was. Idempotent."""
        try:
            self._interface.clear()
        except RlctlError as error:
            _log.warning("%s", error)
        finally:
            self._interface.close()

    def _take_over(self) -> None:
        """Take down what a crashed rlctl left, if it is in this journal; then there is nothing but the kernel's own."""
        path, key = journal_path(self.name), self._interface.key
        known = self._journal is not None and any(
            (entry.path, entry.identity) == (path, key) for entry in self._journal.entries
        )
        if self._interface.shaper.is_ours():
            if not known:
                raise HostError(
                    f"{self.name}: another rlctl has left its queues on it: run `rlctl restore` with its state "
                    f"directory, or `tc qdisc del dev {self.name} root`"
                )
            self._interface.clear()
        if found := self._interface.shaper.foreign():
            raise HostError(_foreign(self.name, found))
        if self._journal is not None and not known:
            self._journal.record([Entry(path, "", key)])

    def _set_up(self) -> None:
        with self._interface.refusing("set up classes for BE's packets"):
            try:
                self._interface.shaper.make(self._rate)
                self._written = self._rate
            except ForeignQdisc as error:
                raise HostError(_foreign(self.name, str(error))) from None
            except FileNotFoundError as error:
                raise HostError(f"{self.name}: this kernel has no HTB (CONFIG_NET_SCH_HTB): {error}") from error
            self._interface.rules.replace(self._senders)
        self._last, self._last_seconds, self._debt_seconds = Sent(0, 0, 0), time.monotonic(), 0.0
        self._look()

    def _look(self) -> None:
        """Count what was sent; put back what another program took away."""
        with self._interface.refusing("look at its classes"):
            sent = self._interface.shaper.read_counts()
            rules = self._interface.rules.count()
        self._holds = held = sent is not None and rules == len(self._senders)
        if not held:
            if sent is None:
                self._mend()
            else:  # at once: a firewall that is loaded anew takes the rules away, and means nothing by it
                with self._interface.refusing("put back the rules that tell BE's packets"):
                    self._interface.rules.replace(self._senders)
            self._holds = True
        self._removed.tell("" if held else f"{self.name}: another program removed what holds BE's packets; it is back")
        if sent is not None:
            self._count(sent)
        if time.monotonic() - self._found_seconds > FIND_SECONDS:
            self.follow(self._groups)

    def _count(self, sent: Sent) -> None:
        before, now_seconds = self._last, time.monotonic()
        whole, be = sent.whole_bytes - before.whole_bytes, sent.be_bytes - before.be_bytes
        allowed = self._allowed + self._rate * (now_seconds - self._last_seconds)
        self._total, self._be = self._total + whole, self._be + be
        self._last, self._last_seconds, self._allowed = sent, now_seconds, 0.0
        if self._rate >= UNLIMITED:
            self._debt_seconds = 0.0
            return
        # The kernel's own account of WHOLE, which it does not bring up to date while nothing is sent.
        self._debt_seconds = max(self._debt_seconds + (whole - allowed) / self._rate, 0.0)
        # By one burst and one packet it may always be ahead.
        bearable = DEBT_SECONDS + 2.0 * BURST_BYTES / self._rate
        # Others may go on sending more than C: then BE has nothing, whatever the debt.
        if self._debt_seconds > bearable and whole - be < allowed and not sent.waiting:
            with self._interface.refusing("make its classes anew"):
                self._interface.shaper.forgive()
            self._last, self._debt_seconds = Sent(0, 0, 0), 0.0

    def _mend(self) -> None:
        """Put back the queues, unless somebody else's are there or it was done a moment ago."""
        with self._interface.refusing("look at its queues"):
            ours = self._interface.shaper.is_ours()
            foreign = "" if ours else self._interface.shaper.foreign()
        if foreign:
            raise HostError(_foreign(self.name, foreign))
        if time.monotonic() - self._mended_seconds < MEND_SECONDS:
            raise HostError(f"{self.name}: another program keeps removing the queues that hold BE")
        self._mended_seconds = time.monotonic()
        with self._interface.refusing("put back what holds BE"):
            self._interface.clear()
            self._set_up()


def find_interface(interface: str | None, lc_pids: Sequence[int], namespace_pid: int | None = None) -> str:
    """Name of the interface that `LinkRein.open` would take, with the errors that it has before it writes anything."""
    with NetworkNamespace.of_host(namespace_pid) as namespace, _find(namespace, interface, lc_pids) as found:
        if (there := found.shaper.foreign()) and not found.shaper.is_ours():
            raise HostError(_foreign(found.name, there))
        return found.name


def read_sent_bytes(interface: str, namespace_pid: int | None = None) -> int:
    """What an interface has sent, with no class on it; arguments as of `LinkRein.open`. HostError: it has gone."""
    with (
        NetworkNamespace.of_host(namespace_pid) as namespace,
        namespace.run(lambda: Netlink(socket.NETLINK_ROUTE)) as route,
    ):
        try:
            return count_bytes(route, interface)
        except OSError as error:
            raise HostError(f"{interface}: cannot read what it has sent: {error.strerror}") from error


def _foreign(name: str, found: str) -> str:
    return (
        f"{name} has queues that somebody chose ({found}), which are left alone, and BE's packets are not held: "
        f"take them away (`tc qdisc del dev {name} root`), or name another interface"
    )


def _find(namespace: NetworkNamespace, name: str | None, lc_pids: Sequence[int]) -> Interface:
    if name is not None:
        return Interface.of_name(namespace, name)
    peers = _peers(lc_pids)
    with namespace.run(lambda: Netlink(socket.NETLINK_ROUTE)) as route:
        index = interface_towards(route, list(peers)[:MOST_PEERS])
    if index is None:
        # Not the default route's: nothing says that the LC's answers take it.
        where = "only from this host" if peers else "from nowhere yet"
        raise HostError(f"the LC is called {where}: name the interface that its answers take (be.link), if any")
    return Interface(namespace, index)


def _peers(lc_pids: Sequence[int]) -> set[Address]:
    """Who has a connection to the LC, in its own network namespace."""
    if not lc_pids:
        return set()
    with NetworkNamespace.of_process(lc_pids[0]) as theirs:
        diag = theirs.run(InetDiag)
    with contextlib.closing(diag), contextlib.suppress(NotTcp):
        listening = find_ports(diag, lc_pids)
        return diag.peers(listening.ports, listening.families)
    return set()


def _senders_of(group: Group, namespace_inode: int) -> Iterator[SocketGroup | Address]:
    """What tells a group's packets: its sockets, and the addresses of networks of its own.

    Raises:
        HostError: Nothing does.
        PermissionMissing: Such a network may not be entered.
    """
    places = [(group.layout.mounts[one], path) for one, path in group.paths.items()]
    found = [(mount.path, path) for mount, path in places if mount.version == 2]
    if not found:
        raise HostError(
            f"BE group {group.name} is in no cgroup2 hierarchy, which tells its packets: have it in that as well "
            "(on a hybrid host below /sys/fs/cgroup/unified)"
        )
    root, path = found[0]
    # One process of each network.
    networks: dict[int, int] = {}
    with contextlib.suppress(CgroupGone):
        for pid in sorted(group.pids()):
            with contextlib.suppress(OSError):  # it has ended
                networks.setdefault(os.stat(PROC / str(pid) / "ns/net").st_ino, pid)
    if sees_all_groups():
        with contextlib.suppress(OSError):  # a group that was removed sends nothing
            yield SocketGroup(path.stat().st_ino, len(path.relative_to(root).parts))
    elif not networks or namespace_inode in networks:
        raise HostError(
            f"BE group {group.name} cannot be told from others in a cgroup namespace of rlctl's own: run its container "
            "privileged, or with the host's (`docker run --cgroupns=host`)"
        )
    for inode, pid in networks.items():
        if inode != namespace_inode:
            with contextlib.suppress(SensorError):
                yield from _addresses_of(pid)


def _addresses_of(pid: int) -> list[Address]:
    """The addresses of a process's network namespace, in an order that stays."""
    with NetworkNamespace.of_process(pid) as own, own.run(lambda: Netlink(socket.NETLINK_ROUTE)) as route:
        return sorted(read_addresses(route), key=lambda address: (address.version, address.packed))
