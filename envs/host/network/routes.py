"""Interfaces by what is sent over them: where the kernel routes packets to an address (ip-route(8), `get`)."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections import Counter
from collections.abc import Iterable

from rlctl.envs.host.network.netlink import ACK, Message, Netlink, attribute, attributes, text

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_GET_ROUTE, _DESTINATION, _OUTPUT = 26, 1, 4  # RTM_GETROUTE, RTA_DST, RTA_OIF
_ADDRESS = struct.Struct("=BBBBI")  # ifaddrmsg: family, length of the prefix, flags, scope, interface
_GET_ADDRESS, _OWN, _LOCAL, _GLOBAL = 22, 1, 2, 0  # RTM_GETADDR, IFA_ADDRESS, IFA_LOCAL, RT_SCOPE_UNIVERSE
_LINK = struct.Struct("=BxHiII")  # ifinfomsg: family, kind, interface, flags, change
_GET_LINK, _NAME, _STATISTICS = 18, 3, 23  # RTM_GETLINK, IFLA_IFNAME, IFLA_STATS64
_LOOPBACK = 1  # LOOPBACK_IFINDEX in include/net/flow.h: the same in every namespace
_ROUTE = struct.Struct("=BBBBBBBBI")  # rtmsg


def interface_towards(route: Netlink, addresses: Iterable[Address]) -> int | None:
    """The index of the interface over which most of these are reached; None where none is, but by loopback.

    Args:
        route: A socket of NETLINK_ROUTE in the network namespace of the sender.
    """
    found = Counter(index for address in addresses if (index := _output(route, address)) not in (None, _LOOPBACK))
    return max(found, key=lambda index: (found[index], -index), default=None)


def read_addresses(route: Netlink) -> list[Address]:
    """The addresses that others than this host itself may send to."""
    found: list[Address] = []
    for body in route.dump(_GET_ADDRESS, _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
        scope, fields = _ADDRESS.unpack_from(body)[3], attributes(body[_ADDRESS.size :])
        if scope == _GLOBAL:
            found.append(ipaddress.ip_address(fields.get(_LOCAL) or fields[_OWN]))
    return found


def count_bytes(route: Netlink, name: str) -> int:
    """What an interface has sent since it was made. Raises OSError: ENODEV where there is none of that name."""
    answers = route.request(Message(_GET_LINK, _LINK.pack(0, 0, 0, 0, 0) + text(_NAME, name)))
    return int.from_bytes(attributes(answers[0][_LINK.size :])[_STATISTICS][24:32], "little")  # tx_bytes


def _output(route: Netlink, address: Address) -> int | None:
    plain = getattr(address, "ipv4_mapped", None) or address
    family = socket.AF_INET if plain.version == 4 else socket.AF_INET6
    body = _ROUTE.pack(family, plain.max_prefixlen, 0, 0, 0, 0, 0, 0, 0) + attribute(_DESTINATION, plain.packed)
    try:
        # A route is the answer, and no acknowledgement follows unless it was asked for.
        answers = route.request(Message(_GET_ROUTE, body, ACK))
    except OSError:
        return None
    found = attributes(answers[0][_ROUTE.size :]).get(_OUTPUT) if answers else None
    return int.from_bytes(found, "little") if found else None
