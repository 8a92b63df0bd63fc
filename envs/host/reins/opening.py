"""Opens the reins that a host is to have; what it has not is said, and BE is held without it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from rlctl.envs.errors import RlctlError, in_one_line
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.journal import Journal
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.events import Events
from rlctl.envs.host.network.interface import is_interface
from rlctl.envs.host.reins.disk import DiskRein
from rlctl.envs.host.reins.link import LinkRein, find_interface, read_sent_bytes
from rlctl.envs.host.reins.link_share import LinkShare
from rlctl.envs.host.reins.reins import Reins, SharedRein
from rlctl.envs.reins import Rein


@dataclass(frozen=True, slots=True)
class LinkPlace:
    """Where the LC's answers leave.

    Attributes:
        interface: By name; None to find it by the route of the LC's traffic.
        lc_pids: The LC's processes.
        at_once: Put BE's class there now, and not only once the LC seems to wait for its link.
        namespace_pid: A process in its network namespace; None for the host's.
    """

    interface: str | None
    lc_pids: Sequence[int]
    at_once: bool = False
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
        Rein.LINK: partial(_open_link, actuator, link, journal),
        Rein.DISK: lambda: DiskRein.open(actuator.groups, knobs),
    }
    others, absent = dict[Rein, SharedRein](), dict[Rein, str]()
    for rein, make in makers.items():
        if rein in wanted:
            try:
                others[rein] = make()
            except RlctlError as error:
                absent[rein] = in_one_line(error)
    reins = Reins(actuator, others, events)
    reins.absent = absent
    return reins


def _open_link(actuator: BeActuator, place: LinkPlace, journal: Journal | None) -> LinkShare:
    pids = place.lc_pids
    name = find_interface(place.interface, pids, place.namespace_pid)
    share = LinkShare(
        lambda: LinkRein.open(name, pids, actuator.groups, journal, place.namespace_pid),
        partial(read_sent_bytes, name, place.namespace_pid),
    )
    # What a crashed predecessor has put there is taken over before BE's first tick.
    left = journal is not None and any(is_interface(entry.path) for entry in journal.entries)
    if place.at_once or left:
        share.prepare()
    return share
