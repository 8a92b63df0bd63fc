"""SIGKILL of a controller that holds BE on a link, before and after each of its messages to the kernel."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.errors import HostError, RlctlError, TestbedError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import Journal
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.cgroup.restore import restore
from rlctl.envs.host.network.interface import Interface
from rlctl.envs.host.network.namespace import NetworkNamespace
from rlctl.envs.host.network.netlink import Message, Netlink
from rlctl.envs.host.probe import probe_link
from rlctl.envs.host.reins.link import LinkRein
from rlctl.envs.testbed.namespace import require_tools
from rlctl.envs.testbed.network.link import TOOLS
from tests.envs.host.reins.wire import NAME, Wire, wire
from tests.faults.pace import Pace

RATE = 5e6
FOREIGN = f"tc qdisc add dev {NAME} root handle 9: tbf rate 10mbit burst 10kb latency 10ms"


@dataclass(frozen=True, slots=True)
class LinkKill:
    """One row of the matrix.

    Attributes:
        name: For `--only`.
        does: What is done, in a line.
        foreign: Somebody's own queues are on the interface, where a controller starts and is refused.
    """

    name: str
    does: str
    foreign: bool = False

    def lacks(self) -> str:
        """Why it cannot be here; empty if it can."""
        try:
            require_tools(TOOLS)
        except RlctlError as error:
            return str(error)
        found = probe_link(Layout.detect())
        return "" if found.present else found.reason

    def tried(self, pace: Pace, stop: threading.Event) -> tuple[float, str]:
        """Longest time that `restore` took in seconds, and what was tried.

        Raises:
            TestbedError: The interface is not as it was before.
        """
        group = Group.create(Layout.detect(), f"rlctl-faults-{os.getpid()}-{self.name}", Knobs(None))
        try:
            with wire() as side, tempfile.TemporaryDirectory() as folder:
                if self.foreign:
                    return _refuse(side, group, Path(folder))
                return _kill_everywhere(side, group, Path(folder), stop)
        finally:
            group.remove()


LINK_KILLS = (
    LinkKill("link-sigkill", "SIGKILL before and after each message of a controller that holds BE on a link"),
    LinkKill("link-foreign", "a controller starts where somebody's own queues are on the link", foreign=True),
)


def _refuse(side: Wire, group: Group, state: Path) -> tuple[float, str]:
    side.run(FOREIGN)
    before = _found(side)
    try:
        with Journal.open(state) as journal:
            LinkRein.open(NAME, (), [group], journal, side.here.pid).close()
        raise TestbedError("somebody's own queues were not refused")
    except HostError as error:
        restore(state)
        if (after := _found(side)) != before:
            raise TestbedError(f"the link is {after}, was {before}") from error
        return 0.0, str(error)


def _kill_everywhere(side: Wire, group: Group, state: Path, stop: threading.Event) -> tuple[float, str]:
    before, longest_seconds = _found(side), 0.0
    for moment in itertools.count():
        arguments = (str(moment), group.name, str(state), str(side.here.pid))
        done = subprocess.run([sys.executable, "-m", __name__, *arguments], capture_output=True, text=True, check=False)
        if stop.is_set() or done.returncode not in (0, -9):
            raise TestbedError(f"the controller ended with {done.returncode}: {done.stderr[-300:]}")
        began = time.monotonic()
        report = restore(state)
        longest_seconds = max(longest_seconds, time.monotonic() - began)
        if not report.ok or (after := _found(side)) != before:
            raise TestbedError(f"killed at moment {moment}: {report}; the link is {after}, was {before}")
        if done.returncode == 0:
            return longest_seconds, f"killed at {moment} moments: the link was as before each time"
    raise AssertionError


def _found(side: Wire) -> tuple[str, int]:
    """The queues on the wire, as tc prints them, and how many rules rlctl's table has."""
    with Interface.of_name(NetworkNamespace.of_process(side.here.pid), NAME) as interface:
        return side.run(f"tc qdisc show dev {NAME}"), interface.rules.count()


def _hold(moment: int, group_name: str, state: Path, namespace_pid: int) -> None:
    """All that a controller does to a link, until the moment has come."""
    moments, request = itertools.count(), Netlink.request

    def die_then() -> None:
        if next(moments) == moment:
            os.kill(os.getpid(), 9)

    def mortal_request(netlink: Netlink, *messages: Message) -> list[bytes]:
        die_then()
        answers = request(netlink, *messages)
        die_then()
        return answers

    setattr(Netlink, "request", mortal_request)  # noqa: B010 - mypy takes no method for another
    group = Group.open(Layout.detect(), group_name, Knobs(None))
    with Journal.open(state) as journal, LinkRein.open(NAME, (), [group], journal, namespace_pid) as rein:
        rein.hold(RATE)
        rein._interface.shaper.forgive()
        rein.follow([])
        rein.follow([group])
        rein.hold(None)


if __name__ == "__main__":
    _hold(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
