"""HTB on an interface, so that BE has what everybody else leaves of a rate, packet by packet (tc-htb(8)).

| class | rate | |
| --- | --- | --- |
| WHOLE | C | lends what is left of C |
| OTHERS, below it | without end | always sends by its own tokens; its bytes are charged to WHOLE all the same |
| BE, below it | next to nothing, with C as its ceiling | borrows from WHOLE |

So the rate holds BE alone: the LC is never delayed, also where it sends more than C. The kernel keeps an excess over C
as a debt of up to 60 s (`mbuffer` in net/sched/sch_htb.c), in which BE would have nothing: see `Shaper.forgive`.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.host.network.netlink import ACK, CREATE_NEW, Message, Netlink, attribute, attributes, nest, text

HANDLE = 0x71C7_0000
"""Ours, whichever rlctl made it: what has another handle is somebody else's."""
WHOLE, OTHERS, BE = HANDLE | 0x1, HANDLE | 0x10, HANDLE | 0x20

_NEW_QDISC, _DELETE_QDISC, _GET_QDISC = 36, 37, 38  # linux/rtnetlink.h
_GET_LINK = 18
_NEW_CLASS, _DELETE_CLASS, _GET_CLASS = 40, 41, 42
_ROOT, _INGRESS = 0xFFFF_FFFF, 0xFFFF_FFF1  # linux/pkt_sched.h; clsact has the latter's place too
_KIND, _OPTIONS, _STATISTICS = 1, 2, 7  # TCA_KIND, TCA_OPTIONS, TCA_STATS2
_PARAMETERS, _INIT, _DIRECT, _RATE64, _CEIL64 = 1, 2, 5, 6, 7  # TCA_HTB_*
_BASIC, _QUEUE = 1, 3  # TCA_STATS_*
_VERSION, _ETHERNET = 3, 1  # HTB's; TC_LINKLAYER_ETHERNET, without which it wants a table of 256 times
_PLACE = struct.Struct("=BxxxiIII")  # tcmsg: family, interface, handle, parent, info
_LINK = struct.Struct("=BxHiII")  # ifinfomsg: family, kind, interface, flags, change
_PARMS = struct.Struct("=BBHhHI BBHhHI IIIII")
_TICK_NS = 64  # PSCHED_SHIFT

UNLIMITED = 1.25e11
"""Bytes a second, ten times the fastest interface: its tokens never end."""
LEAST = 1000.0
"""Bytes a second of BE's own, for HTB has no rate 0, and the least that it is held to."""
BURST_BYTES = 65_536  # the kernel's largest packet: a class that may not send one whole sends none
_BURST_SECONDS = 1e-3  # timers of a fast link are late by so much
_QUANTUM_BYTES = 65_536
_LEAF_PACKETS = 1000  # as many as a plain interface queues; one without a queue of its own would give a leaf one
_AS_BEFORE = ("fq_codel", "fq")


@dataclass(frozen=True, slots=True)
class Sent:
    """Bytes that went out since the classes were made: all, and BE's; packets that wait in the others' queue."""

    whole_bytes: int
    be_bytes: int
    waiting: int


class ForeignQdisc(Exception):
    """An interface has a queueing discipline that somebody chose; its text names that."""


class Shaper:
    """The classes of one interface. Its methods raise OSError; ENODEV says that the interface has gone.

    Args:
        route: A socket of NETLINK_ROUTE in the interface's network namespace.
        index: The interface's number.
    """

    def __init__(self, route: Netlink, index: int) -> None:
        self._route, self._index = route, index
        self._rate = UNLIMITED

    def make(self, rate: float) -> None:
        """Put the classes on an interface that has the kernel's own queues.

        Raises:
            ForeignQdisc: It has others.
        """
        if found := self.foreign():
            raise ForeignQdisc(found)
        glob = attribute(_INIT, struct.pack("=IIIII", _VERSION, 10, OTHERS & 0xFFFF, 0, 0))
        options = nest(_OPTIONS, glob, attribute(_DIRECT, struct.pack("=I", _LEAF_PACKETS)))
        try:
            self._route.request(
                self._message(_NEW_QDISC, HANDLE, _ROOT, text(_KIND, "htb") + options, ACK | CREATE_NEW)
            )
        except FileExistsError:
            raise ForeignQdisc(self.foreign() or "one that came just now") from None
        self._make_classes(rate)

    def foreign(self) -> str:
        """What somebody has put on the interface, ours included; empty where there are the kernel's own queues."""
        # The kernel's own have handle 0, below a multi-queue root as well. What filters at entry or exit is no queue.
        for place, kind in self._qdiscs():
            _, _, handle, parent, _ = place
            if handle and parent != _INGRESS:
                return f"{kind} {handle >> 16:x}:"
        return ""

    def is_ours(self) -> bool:
        """Whether the root is the one that an rlctl put there."""
        return any(place[2:4] == (HANDLE, _ROOT) and kind == "htb" for place, kind in self._qdiscs())

    def set_rate(self, rate: float) -> None:
        """Change C, in bytes a second."""
        self._rate = max(rate, LEAST)
        messages = (self._class(WHOLE, 0), self._class(BE, 0))
        self._route.request(*messages)

    def read_counts(self) -> Sent | None:
        """What the classes sent, by one dump; None where they are not there."""
        found = {}
        for body in self._route.dump(_GET_CLASS, _PLACE.pack(0, self._index, 0, HANDLE, 0)):
            statistics = attributes(attributes(body[_PLACE.size :]).get(_STATISTICS, b""))
            sent_bytes = int.from_bytes(statistics.get(_BASIC, b"")[:8], "little")
            waiting = int.from_bytes(statistics.get(_QUEUE, b"")[:4], "little")
            found[_PLACE.unpack_from(body)[2]] = sent_bytes, waiting
        if not {WHOLE, OTHERS, BE} <= found.keys():
            return None
        return Sent(found[WHOLE][0], found[BE][0], found[OTHERS][1])

    def forgive(self) -> None:
        """Let go of the debt of WHOLE, by making the classes anew; all counts begin at 0.

        Others' packets go out without a class meanwhile. Those that wait in a class are lost: see `Sent.waiting`.
        """
        for handle in (BE, OTHERS, WHOLE):
            with contextlib.suppress(FileNotFoundError):
                self._route.request(self._message(_DELETE_CLASS, handle, 0))
        self._make_classes(self._rate)

    def remove(self) -> bool:
        """Take ours away, so that the kernel's own queues come back; False where there is nothing of ours."""
        if not self.is_ours():
            return False
        with contextlib.suppress(FileNotFoundError):
            self._route.request(self._message(_DELETE_QDISC, HANDLE, _ROOT))
        return True

    def _qdiscs(self) -> list[tuple[tuple[int, ...], str]]:
        answers = self._route.dump(_GET_QDISC, _PLACE.pack(0, self._index, 0, 0, 0))
        there = [(_PLACE.unpack_from(body), attributes(body[_PLACE.size :])) for body in answers]
        qdiscs = [(place, found[_KIND].rstrip(b"\0").decode()) for place, found in there if place[1] == self._index]
        if not qdiscs:  # one that was never up is not listed; one that has gone is refused here
            self._route.request(Message(_GET_LINK, _LINK.pack(0, 0, self._index, 0, 0)))
        return qdiscs

    def _make_classes(self, rate: float) -> None:
        self._rate = max(rate, LEAST)
        self._route.request(*[self._class(handle, CREATE_NEW) for handle in (WHOLE, OTHERS, BE)])
        # The others' queue is of the kind that the interface had, where that kind has no settings that we lack.
        usual = Path("/proc/sys/net/core/default_qdisc")
        with contextlib.suppress(OSError):
            if (kind := usual.read_text().strip()) in _AS_BEFORE:
                self._route.request(self._message(_NEW_QDISC, 0, OTHERS, text(_KIND, kind), ACK | CREATE_NEW))
                self._leaf(BE)
                return
        self._leaf(OTHERS)
        self._leaf(BE)

    def _leaf(self, parent: int) -> None:
        limit = attribute(_OPTIONS, struct.pack("=I", _LEAF_PACKETS))
        self._route.request(self._message(_NEW_QDISC, 0, parent, text(_KIND, "pfifo") + limit, ACK | CREATE_NEW))

    def _class(self, handle: int, flags: int) -> Message:
        own = {WHOLE: self._rate, OTHERS: UNLIMITED, BE: LEAST if self._rate < UNLIMITED else UNLIMITED}[handle]
        ceiling = UNLIMITED if handle == OTHERS else self._rate
        rates = []
        for rate in (own, ceiling):
            rates += [0, _ETHERNET, 0, 0, 0, min(int(rate), 0xFFFF_FFFF)]
        # BE's own bucket is next to nothing, or its first packets would be beyond C.
        ticks = [1 if own == LEAST else _ticks(own), _ticks(ceiling)]
        parameters = _PARMS.pack(*rates, *ticks, _QUANTUM_BYTES, 0, int(handle == BE))
        options = nest(
            _OPTIONS,
            attribute(_PARAMETERS, parameters),
            attribute(_RATE64, struct.pack("=Q", int(own))),
            attribute(_CEIL64, struct.pack("=Q", int(ceiling))),
        )
        parent = HANDLE if handle == WHOLE else WHOLE
        return self._message(_NEW_CLASS, handle, parent, text(_KIND, "htb") + options, ACK | flags)

    def _message(self, kind: int, handle: int, parent: int, body: bytes = b"", flags: int = ACK) -> Message:
        return Message(kind, _PLACE.pack(socket.AF_UNSPEC, self._index, handle, parent, 0) + body, flags)


def _ticks(rate: float) -> int:
    """A bucket's depth as the kernel wants it, in time at this rate: a class without end never empties one of 1 s."""
    seconds = 1.0 if rate >= UNLIMITED else max(BURST_BYTES / rate, _BURST_SECONDS)
    return min(int(seconds * 1e9 / _TICK_NS), 0xFFFF_FFFF)
