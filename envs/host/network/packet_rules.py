"""nftables rules that give BE's packets the priority of BE's class, by the control group of the socket that sends them.

As `nft` would write them, in a table of their own:

```
table inet rlctl_7 { chain output { type filter hook output priority mangle;
    oif 7 socket cgroupv2 level 2 "batch.slice/job" meta priority set 71c7:20 } }
```

HTB takes a packet whose priority is the id of one of its classes straight there. Messages: linux/netfilter/nf_tables.h;
numbers in attributes are big-endian.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from rlctl.envs.host.network.netlink import ACK, Message, Netlink, attribute, nest, text

NETLINK_NETFILTER = 12

_NF_TABLES = 10
_NEW_TABLE, _DELETE_TABLE, _NEW_CHAIN, _NEW_RULE, _GET_RULE = 0, 2, 3, 6, 7
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_CREATE, _APPEND = 0x400, 0x800
_INET = 1  # NFPROTO_INET
_LOCAL_OUT, _MANGLE = 3, -150  # NF_INET_LOCAL_OUT, NF_IP_PRI_MANGLE
_OIF, _PRIORITY = 5, 2  # NFT_META_*
_CGROUP2 = 3  # NFT_SOCKET_CGROUPV2
_REGISTER = 1  # NFT_REG_1, of 16 bytes
_CHAIN = "output"


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
        self._netfilter, self._index, self._priority = netfilter, index, priority
        self._table = table_name(index)

    def replace(self, groups: Iterable[SocketGroup]) -> None:
        """Have rules for these groups and no others, from one packet to the next."""
        # To make a table before it is deleted is how nft makes it anew, whether or not there was one.
        table, chain = text(1, self._table), text(3, _CHAIN)
        hook = nest(4, _number(1, _LOCAL_OUT), _number(2, _MANGLE))
        messages = [
            _message(_NEW_TABLE, table, _CREATE),
            _message(_DELETE_TABLE, table),
            _message(_NEW_TABLE, table, _CREATE),
            _message(_NEW_CHAIN, table + chain + hook + text(7, "filter"), _CREATE),
            *(self._rule(group) for group in groups),
        ]
        self._commit(messages)

    def count(self) -> int:
        """How many rules there are."""
        wanted = text(1, self._table) + text(2, _CHAIN)
        try:
            return len(self._netfilter.dump(_NF_TABLES << 8 | _GET_RULE, _family(_INET) + wanted))
        except FileNotFoundError:
            return 0

    def remove(self) -> None:
        """Delete the table. Idempotent."""
        with contextlib.suppress(FileNotFoundError):
            self._commit([_message(_DELETE_TABLE, text(1, self._table))])

    def _rule(self, group: SocketGroup) -> Message:
        expressions = (
            _expression("meta", _number(2, _OIF), _number(1, _REGISTER)),
            _equals(struct.pack("=I", self._index)),
            _expression("socket", _number(1, _CGROUP2), _number(2, _REGISTER), _number(3, group.level)),
            _equals(struct.pack("=Q", group.identity)),
            _expression("immediate", _number(1, _REGISTER), nest(2, attribute(1, struct.pack("=I", self._priority)))),
            _expression("meta", _number(2, _PRIORITY), _number(3, _REGISTER)),
        )
        body = text(1, self._table) + text(2, _CHAIN) + nest(4, *expressions)
        return _message(_NEW_RULE, body, _CREATE | _APPEND)

    def _commit(self, messages: list[Message]) -> None:
        """All of them or none (linux/netfilter/nfnetlink.h, "batch")."""
        *others, last = messages
        begin = Message(_BATCH_BEGIN, _family(socket.AF_UNSPEC, _NF_TABLES), 0)
        end = Message(_BATCH_END, _family(socket.AF_UNSPEC, _NF_TABLES), 0)
        self._netfilter.request(begin, *others, Message(last.kind, last.body, last.flags | ACK), end)


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
