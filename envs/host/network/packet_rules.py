"""nftables rules that give BE's packets the priority of BE's class, by the control group of the socket that sends them.

They are in a table of their own, `inet rlctl_7` for interface 7, as `nft` would write them:

| chain, at priority mangle | rule |
| --- | --- |
| output | `socket cgroupv2 level 2 "batch.slice/job" meta priority set 71c7:20` |
| forward | `ip saddr 10.88.0.5 meta priority set 71c7:20` |

A pod's packets have lost their socket when they leave its network namespace: they are told by the pod's address.

HTB takes a packet whose priority is the id of one of its classes straight there, also one that was put into a tunnel
on its way. Other interfaces see priority 0 in its low bits. Messages: linux/netfilter/nf_tables.h; numbers in
attributes are big-endian.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rlctl.envs.host.network.netlink import ACK, Message, Netlink, attribute, nest, text
from rlctl.envs.host.network.routes import Address

NETLINK_NETFILTER = 12

_NF_TABLES = 10
_NEW_TABLE, _DELETE_TABLE, _NEW_CHAIN, _NEW_RULE, _GET_RULE = 0, 2, 3, 6, 7
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_CREATE, _APPEND = 0x400, 0x800
_INET = 1  # NFPROTO_INET
_FORWARD, _LOCAL_OUT, _MANGLE = 2, 3, -150  # NF_INET_FORWARD, NF_INET_LOCAL_OUT, NF_IP_PRI_MANGLE
_PRIORITY, _FAMILY = 2, 15  # NFT_META_PRIORITY, NFT_META_NFPROTO
_NETWORK_HEADER = 1  # NFT_PAYLOAD_NETWORK_HEADER
_SOURCES = {4: (socket.AF_INET, 12, 4), 6: (socket.AF_INET6, 8, 16)}
"""By IP's version: protocol family, and where the source address is in the header."""
_CGROUP2 = 3  # NFT_SOCKET_CGROUPV2
_REGISTER = 1  # NFT_REG_1, of 16 bytes
_OUTPUT_CHAIN, _FORWARD_CHAIN = "output", "forward"


@dataclass(frozen=True, slots=True)
class SocketGroup:
    """A cgroup2 group whose sockets a rule is for, with all groups below it.

    Attributes:
        identity: The kernel's id, the inode of its directory; a group made anew has another.
        level: Its depth below the root of the hierarchy.
    """

    identity: int
    level: int


class PacketRules:
    """The table of one interface. Its methods raise OSError.

    Args:
        netfilter: A socket of NETLINK_NETFILTER in the interface's network namespace.
        index: The interface's number.
        priority: What BE's packets get.
    """

    def __init__(self, netfilter: Netlink, index: int, priority: int) -> None:
        self._netfilter, self._priority = netfilter, priority
        self._table = table_name(index)

    def replace(self, senders: Iterable[SocketGroup | Address]) -> None:
        """Have rules for these groups and sources and no others, from one packet to the next."""
        # To make a table before it is deleted is how nft makes it anew, whether or not there was one.
        table = text(1, self._table)
        messages = [
            _message(_NEW_TABLE, table, _CREATE),
            _message(_DELETE_TABLE, table),
            _message(_NEW_TABLE, table, _CREATE),
        ]
        for chain, hook in ((_OUTPUT_CHAIN, _LOCAL_OUT), (_FORWARD_CHAIN, _FORWARD)):
            place = nest(4, _number(1, hook), _number(2, _MANGLE))
            messages.append(_message(_NEW_CHAIN, table + text(3, chain) + place + text(7, "filter"), _CREATE))
        messages += [self._rule(sender) for sender in senders]
        self._commit(messages)

    def count(self) -> int:
        """How many rules there are."""
        wanted = text(1, self._table)
        try:
            return len(self._netfilter.dump(_NF_TABLES << 8 | _GET_RULE, _family(_INET) + wanted))
        except FileNotFoundError:
            return 0

    def remove(self) -> None:
        """Delete the table. Idempotent."""
        with contextlib.suppress(FileNotFoundError):
            self._commit([_message(_DELETE_TABLE, text(1, self._table))])

    def _rule(self, sender: SocketGroup | Address) -> Message:
        told_by = _of_group(sender) if isinstance(sender, SocketGroup) else _of_source(sender)
        chain = _OUTPUT_CHAIN if isinstance(sender, SocketGroup) else _FORWARD_CHAIN
        expressions = (
            *told_by,
            _expression("immediate", _number(1, _REGISTER), nest(2, attribute(1, struct.pack("=I", self._priority)))),
            _expression("meta", _number(2, _PRIORITY), _number(3, _REGISTER)),
        )
        body = text(1, self._table) + text(2, chain) + nest(4, *expressions)
        return _message(_NEW_RULE, body, _CREATE | _APPEND)

    def _commit(self, messages: list[Message]) -> None:
        """All of them or none (linux/netfilter/nfnetlink.h, "batch")."""
        *others, last = messages
        begin = Message(_BATCH_BEGIN, _family(socket.AF_UNSPEC, _NF_TABLES), 0)
        end = Message(_BATCH_END, _family(socket.AF_UNSPEC, _NF_TABLES), 0)
        self._netfilter.request(begin, *others, Message(last.kind, last.body, last.flags | ACK), end)


def _of_group(group: SocketGroup) -> Iterator[bytes]:
    yield _expression("socket", _number(1, _CGROUP2), _number(2, _REGISTER), _number(3, group.level))
    yield _equals(struct.pack("=Q", group.identity))


def _of_source(address: Address) -> Iterator[bytes]:
    family, offset, size = _SOURCES[address.version]
    yield _expression("meta", _number(2, _FAMILY), _number(1, _REGISTER))
    yield _equals(bytes([family]))
    place = (_number(2, _NETWORK_HEADER), _number(3, offset), _number(4, size))
    yield _expression("payload", _number(1, _REGISTER), *place)
    yield _equals(address.packed)


def table_name(index: int) -> str:
    """The name of an interface's table: by its number, for its name may have letters that nft takes for others."""
    return f"rlctl_{index}"


def _family(family: int, resource: int = 0) -> bytes:
    return struct.pack("=BB", family, 0) + struct.pack(">H", resource)


def _message(kind: int, body: bytes, flags: int = 0) -> Message:
    return Message(_NF_TABLES << 8 | kind, _family(_INET) + body, flags)


def _number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack(">i", value))


def _expression(name: str, *data: bytes) -> bytes:
    return nest(1, text(1, name), nest(2, *data))


def _equals(value: bytes) -> bytes:
    """Go on with the rule only where the register holds this."""
    return _expression("cmp", _number(1, _REGISTER), _number(2, 0), nest(3, attribute(1, value)))
