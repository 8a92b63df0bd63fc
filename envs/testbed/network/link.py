"""A link with a provisioned rate: LC and BE on its one side, the client on the other, a token bucket in between.

```
namespace of LC and BE                                                  namespace of the client
  host (macvlan; HTB, if the kernel's answer is asked for) > uplink (veth; TBF: the provider's shaper) > client (veth)
```

What a provider shapes lies beyond the host, and tells nobody its rate. So the host's own queueing has an interface of
its own, in front of the bucket. A class there helps only as far as the rate that it was given is right.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from rlctl.envs.telemetry import Missing, Reading, Value, Why
from rlctl.envs.testbed.launch import Launcher
from rlctl.envs.testbed.namespace import Namespace, require_tools
from rlctl.envs.yaml_edge import Strict

HOST_ADDRESS, CLIENT_ADDRESS = "169.254.77.1", "169.254.77.2"  # RFC 3927: no router passes them on
LC_PORT, LOOPBACK = 7001, "127.0.0.1"
SINK_PORT = 7002

Command = tuple[str, ...]

TOOLS = {"ip": "iproute2", "tc": "iproute2", "sysctl": "procps"}
"""Debian's package of each program that makes links."""

_SENT = re.compile(r"^class htb (\S+) .*\n Sent (\d+) bytes", re.MULTILINE)

MOST_MBIT = 100_000.0
"""Beyond it the rate is a slip of the pen: no processor fills such a link through one token bucket."""

# A class must be narrower than the bucket behind it, or the queue forms in the bucket (tc-htb(8), LARTC 9.5.5.1).
HTB_RATIO = 0.95
# What is the LC's for certain. A class's own rate is served before anybody borrows, so BE has next to none of its own.
LC_RATIO = 0.98
# One packet of 64 kB at a time, or a class that was passed over sends its whole deficit at once.
QUANTUM_BYTES = 65_536
LEAF_PACKETS = 1000  # as many as a plain interface queues
LEAST_MBIT = 1.0  # HTB has no rate 0

LC_CLASS, BE_CLASS = "1:10", "1:20"


class LinkConfig(Strict):
    """A provisioned link between LC and BE on the one side and the client on the other, each in a namespace of its own.

    Attributes:
        rates: Pairs of a time (s since the beginning of a run) and the link's rate from then on (Mbit/s); the first is
            at 0.
        burst_kilobytes: Size of its token bucket: what may pass at the full speed of the machine.
        queue_milliseconds: Longest time in its queue; what comes in addition is dropped.
    """

    rates: tuple[tuple[float, float], ...]
    burst_kilobytes: int = Field(128, ge=64)  # the largest packet of the kernel has 64 kB
    queue_milliseconds: int = Field(50, ge=1)

    @model_validator(mode="after")
    def _is_a_link(self) -> Self:
        times, rates = [time for time, _ in self.rates], [rate for _, rate in self.rates]
        if not times or times[0] != 0.0 or sorted(set(times)) != times:
            raise ValueError(f"rates of a link at {times} s: the first is at 0, and each comes after the one before")
        for rate in rates:
            if not 1.0 <= rate <= MOST_MBIT:
                raise ValueError(f"a link of {rate:g} Mbit/s: 1 to {MOST_MBIT:g} are possible")
        return self

    def rate_mbit(self, t_seconds: float) -> float:
        """The rate in Mbit/s, so long after the beginning of a run."""
        return self.rates[bisect.bisect_right(self.rates, t_seconds, key=lambda pair: pair[0]) - 1][1]

    def shaper(self, verb: str, rate_mbit: float) -> Command:
        """The provider's token bucket, to `add` or to `change`."""
        bucket = ("rate", f"{rate_mbit:g}mbit", "burst", f"{self.burst_kilobytes}kb")
        return ("tc", "qdisc", verb, "dev", "uplink", "root", "tbf", *bucket, "latency", f"{self.queue_milliseconds}ms")

    def host_side(self, client_pid: int) -> Iterator[Command]:
        """Commands for the namespace of LC and BE; the other end of the pair goes to the client's."""
        yield FRESH_TCP
        yield ("ip", "link", "set", "lo", "up")
        yield ("ip", "link", "add", "uplink", "type", "veth", "peer", "name", "client", "netns", str(client_pid))
        yield ("ip", "link", "set", "uplink", "up")
        yield self.shaper("add", self.rate_mbit(0.0))
        yield ("ip", "link", "add", "link", "uplink", "name", "host", "type", "macvlan", "mode", "private")
        yield from _up("host", HOST_ADDRESS)


def classes(rate_mbit: float) -> Iterator[Command]:
    """HTB on the host's own interface: a class for what the LC answers, and one for the rest.

    Args:
        rate_mbit: Rate that the operator takes the link to have.
    """
    yield ROOT
    yield from class_rates("add", rate_mbit)
    yield from _leaves()


def class_rates(verb: Literal["add", "change"], rate_mbit: float) -> Iterator[Command]:
    """The rates of `classes`."""
    whole = HTB_RATIO * rate_mbit
    yield _class(verb, "1:", "1:1", whole, whole)
    yield _class(verb, "1:1", LC_CLASS, LC_RATIO * whole, whole, "prio", "0")
    yield _class(verb, "1:1", BE_CLASS, (1.0 - LC_RATIO) * whole, whole, "prio", "1")


def ceiling() -> Iterator[Command]:
    """HTB as Heracles has it (4.1): what the LC answers has no limit and no precedence, the rest has a ceiling.

    The ceiling begins at the least that there is, until the LC's bandwidth has been measured.
    """
    yield ROOT
    yield _class("add", "1:", LC_CLASS, MOST_MBIT, MOST_MBIT)
    yield _class("add", "1:", BE_CLASS, LEAST_MBIT, LEAST_MBIT)
    yield from _leaves()


ROOT: Command = ("tc", "qdisc", "replace", "dev", "host", "root", "handle", "1:", "htb", "default", "20")
"""What is in no other class is in BE_CLASS."""


# Or a run's connections would begin with the window that those of the run before ended with (tcp_metrics(8)).
FRESH_TCP: Command = ("sysctl", "-qw", "net.ipv4.tcp_no_metrics_save=1")

NO_CLASSES: Command = ("tc", "qdisc", "del", "dev", "host", "root")
"""Takes `classes` back."""


class Link:
    """The link, there from entry to exit, or until this process dies.

    Args:
        config: What was provisioned.
        launcher: Starts what holds the namespaces; in no control group.

    Attributes:
        host: The namespace of LC and BE.
        client: The namespace of whoever sends requests and takes uploads.
        limits_be: BE's class has a ceiling, see `limit_be`.
        told_ratio: What an operator who is told each change takes the link to have, as a share of it; None: is not.
    """

    limits_be = False
    told_ratio: float | None = None

    def __init__(self, config: LinkConfig, launcher: Launcher) -> None:
        self.config, self._launcher = config, launcher
        self.host, self.client = Namespace("namespace of LC and BE"), Namespace("namespace of the client")
        self._rate_mbit = config.rate_mbit(0.0)

    def __enter__(self) -> Self:
        """Make it.

        Raises:
            TestbedError: A program is not installed, or the kernel lacks a part (VETH, MACVLAN, NET_SCH_TBF).
            PermissionMissing: Not root.
        """
        require_tools(TOOLS)
        self.host.start(self._launcher)
        self.client.start(self._launcher)
        self.host.run(self.config.host_side(self.client.pid))
        self.client.run([FRESH_TCP, *_up("client", CLIENT_ADDRESS)])
        return self

    def __exit__(self, *_: object) -> None:
        """End both namespaces; with them goes all that is in them."""
        self.client.stop()
        self.host.stop()

    def set_rate_at(self, t_seconds: float) -> None:
        """Let the link have the rate that it has so long after the beginning of a run.

        Raises:
            TestbedError: The kernel does not take it.
        """
        rate_mbit = self.config.rate_mbit(t_seconds)
        if rate_mbit != self._rate_mbit:
            told = [] if self.told_ratio is None else class_rates("change", self.told_ratio * rate_mbit)
            self.host.run([self.config.shaper("change", rate_mbit), *told])
            self._rate_mbit = rate_mbit

    def divide(self, rate_ratio: float) -> None:
        """Give the LC a class of its own on the host's interface.

        Args:
            rate_ratio: Rate that the operator takes the link to have, as a share of the one that a run begins with.

        Raises:
            TestbedError: The kernel lacks a part (NET_SCH_HTB, NET_CLS_U32).
        """
        self.host.run(classes(rate_ratio * self.config.rate_mbit(0.0)))

    def limit_be(self) -> None:
        """Give the LC a class without a limit, and BE one whose ceiling `hold_be` sets.

        Raises:
            TestbedError: The kernel lacks a part (NET_SCH_HTB, NET_CLS_U32).
        """
        self.host.run(ceiling())
        self.limits_be = True

    def hold_be(self, rate_ratio: float) -> None:
        """Let BE send at this share of the rate that a run begins with, after `limit_be`."""
        mbit = max(rate_ratio * self.config.rate_mbit(0.0), LEAST_MBIT)
        self.host.run([_class("change", "1:", BE_CLASS, mbit, mbit)])

    def sent_bytes(self) -> Mapping[str, int]:
        """Bytes that each class has sent since it was made."""
        counts = self.host.run([("tc", "-s", "class", "show", "dev", "host")])
        return {name: int(count) for name, count in _SENT.findall(counts)}

    def unite(self) -> None:
        """Take the classes back."""
        self.limits_be, self.told_ratio = False, None
        self.host.run([NO_CLASSES])


def _class(verb: str, parent: str, name: str, rate_mbit: float, most_mbit: float, *priority: str) -> Command:
    rates = ("rate", f"{rate_mbit:.3f}mbit", "ceil", f"{most_mbit:.3f}mbit")
    shape = ("burst", "64kb", "cburst", "64kb", "quantum", str(QUANTUM_BYTES))
    return ("tc", "class", verb, "dev", "host", "parent", parent, "classid", name, "htb", *rates, *priority, *shape)


def _leaves() -> Iterator[Command]:
    """A queue for each class, and what puts the LC's answers into theirs."""
    for name in (LC_CLASS, BE_CLASS):
        yield ("tc", "qdisc", "add", "dev", "host", "parent", name, "pfifo", "limit", str(LEAF_PACKETS))
    match = ("match", "ip", "sport", str(LC_PORT), "0xffff")
    yield ("tc", "filter", "add", "dev", "host", "parent", "1:", "protocol", "ip", "u32", *match, "flowid", LC_CLASS)


def _up(interface: str, address: str) -> Iterator[Command]:
    yield ("ip", "address", "add", f"{address}/30", "dev", interface)
    yield ("ip", "link", "set", interface, "up")


class LinkUse:
    """Bandwidth since the tick before as a share of the rate that a run begins with, while BE's class has a ceiling.

    Heracles' network loop has to measure it.

    That rate is told, as it was to the published system; of one that changes nobody hears.
    """

    name = "link"
    provides = ("link_ratio", "lc_link_ratio")

    def __init__(self, link: Link) -> None:
        self._link = link
        self._last: tuple[float, int, int] | None = None

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """Both shares; missing in the first tick, and none without a ceiling, for it takes a program to ask."""
        if not self._link.limits_be:
            self._last = None
            return {}
        sent = self._link.sent_bytes()
        now = (now_seconds, sent[LC_CLASS], sent[BE_CLASS])
        last, self._last = self._last, now
        if last is None or now_seconds <= last[0]:
            return dict.fromkeys(self.provides, Missing(Why.NO_DATA, "the first tick"))
        whole_bytes = self._link.config.rate_mbit(0.0) * 1e6 / 8.0 * (now[0] - last[0])
        lc, be = ((after - before) / whole_bytes for before, after in zip(last[1:], now[1:], strict=True))
        return {"link_ratio": Value(lc + be), "lc_link_ratio": Value(lc)}

    def close(self) -> None:
        """The link belongs to the testbed."""
