"""Opens the reins that a host is to have; what it has not is said, and BE is held without it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from rlctl.envs.errors import RlctlError, in_one_line
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.journal import Journal
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.events import Events, Seldom
from rlctl.envs.host.network.interface import is_interface
from rlctl.envs.host.reins.disk import DiskRein
from rlctl.envs.host.reins.link import FIND_SECONDS, LinkRein, find_interface, read_sent_bytes
from rlctl.envs.host.reins.link_share import LinkShare
from rlctl.envs.host.reins.reins import Reins, SharedRein
from rlctl.envs.reins import Rein


@dataclass(frozen=True, slots=True)
class LinkPlace:
    """Where the LC's answers leave.

    Attributes:
        interface: By name; None to find it by the route of the LC's traffic.
        lc_pids: Tells the LC's processes.
        namespace_pid: A process in its network namespace; None for the host's.
    """

    interface: str | None
    lc_pids: Callable[[], Sequence[int]]
    namespace_pid: int | None = None


def open_reins(
    actuator: BeActuator,
    knobs: Knobs,
    wanted: Collection[Rein],
    link: LinkPlace,
    journal: Journal | None = None,
    events: Events | None = None,
) -> Reins:
    """The CPUs' rein and those of the wanted ones that this host has; nothing is held by these yet.

    Args:
        journal: Remembers what is put on an interface.
    """
    makers: dict[Rein, Callable[[], SharedRein]] = {
        Rein.LINK: lambda: _open_link(actuator, link, journal),
        Rein.DISK: lambda: DiskRein.open(actuator.groups, knobs),
    }
    others, absent = dict[Rein, SharedRein](), dict[Rein, RlctlError]()
    for rein, make in makers.items():
        if rein in wanted:
            try:
                others[rein] = make()
            except RlctlError as error:
                absent[rein] = error
    reins = Reins(actuator, others, events)
    reins.absent = absent
    return reins


def _open_link(actuator: BeActuator, place: LinkPlace, journal: Journal | None) -> LinkShare:
    traffic = _Traffic(place)
    share = LinkShare(
        lambda: LinkRein.open(traffic.interface, place.lc_pids(), actuator.groups, journal, place.namespace_pid),
        traffic.sent_bytes,
    )
    # What a crashed predecessor has put there is taken over before BE's first tick.
    left = journal is not None and any(is_interface(entry.path) for entry in journal.entries)
    if left and traffic.interface is not None:
        share.prepare()
    return share


class _Traffic:
    """What leaves by the interface of the LC's answers: one that is named, or is found as soon as the LC is called."""

    def __init__(self, place: LinkPlace) -> None:
        self._place, self._next_seconds, self._trouble = place, 0.0, Seldom(logging.INFO)
        self.interface = place.interface and find_interface(place.interface, (), place.namespace_pid)
        self._find()

    def sent_bytes(self) -> tuple[int, int] | None:
        """So much in all, of which nobody tells BE's; None as long as nobody knows it. HostError: it has gone."""
        self._find()
        return None if self.interface is None else (read_sent_bytes(self.interface, self._place.namespace_pid), 0)

    def _find(self) -> None:
        if self.interface is not None or time.monotonic() < self._next_seconds:
            return
        self._next_seconds = time.monotonic() + FIND_SECONDS
        try:
            self.interface = find_interface(None, self._place.lc_pids(), self._place.namespace_pid)
        except RlctlError as error:
            self._trouble.tell(f"BE cannot be held by the link yet: {in_one_line(error)}")
