"""What this kernel and this process can do to an interface, tried in a network namespace of a moment's life."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from rlctl.envs.host.network.namespace import move_thread
from rlctl.envs.host.network.netlink import Netlink
from rlctl.envs.host.network.packet_rules import NETLINK_NETFILTER, PacketRules, SocketGroup
from rlctl.envs.host.network.shaper import BE, UNLIMITED, Shaper

_LOOPBACK = 1
_LACKS = (errno.ENOENT, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT)


def why_no_link() -> str:
    """What keeps BE's packets from being held on an interface here; empty if nothing does."""
    # A namespace that no process is in goes with all that is in it: here with the thread.
    with ThreadPoolExecutor(1, "rlctl-trial") as thread:
        return thread.submit(_try).result()


def _try() -> str:
    steps: tuple[tuple[str, Callable[[], object]], ...] = (
        ("CAP_SYS_ADMIN, or a kernel with NET_NS, to try it", lambda: move_thread(None)),
        ("HTB (CONFIG_NET_SCH_HTB)", _make_classes),
        ("nftables that tell sockets' groups (CONFIG_NFT_SOCKET, CONFIG_NF_TABLES_INET)", _make_rules),
    )
    for what, step in steps:
        try:
            step()
        except PermissionError as error:
            return f"takes CAP_NET_ADMIN and CAP_SYS_ADMIN ({error.strerror})"
        except OSError as error:
            return f"this kernel lacks {what}" if error.errno in _LACKS else f"{what}: {error.strerror}"
    return ""


def _make_classes() -> None:
    with Netlink(socket.NETLINK_ROUTE) as route:
        Shaper(route, _LOOPBACK).make(UNLIMITED)


def _make_rules() -> None:
    with Netlink(NETLINK_NETFILTER) as netfilter:
        PacketRules(netfilter, _LOOPBACK, BE).replace([SocketGroup(1, 1)])
