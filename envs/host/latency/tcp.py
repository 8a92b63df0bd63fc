"""Tail latency of a TCP service from the kernel alone: no exporter, no log, no change to the service.

A thread looks at the LC's connections: 50 times a second while a request waits for long, 16 times while none does,
and ten times while the LC is idle. It looks less often where that would cost more than it may.
What a look tells of requests is in `tcp_requests`, what a window of looks tells of their tail in `tcp_window`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from rlctl.envs.errors import ConfigError, HostError
from rlctl.envs.host.latency.figures import PROVIDES, Figures, ReportedSource, Reporter
from rlctl.envs.host.latency.inet_diag import InetDiag, jiffy_seconds
from rlctl.envs.host.latency.lc_sockets import ListeningPorts, enter_network_of, find_ports, socket_inodes, what_else
from rlctl.envs.host.latency.newest import NOTHING, Newest
from rlctl.envs.host.latency.tcp_requests import CLOSE_SECONDS, RequestTracker
from rlctl.envs.host.latency.tcp_window import TcpWindow
from rlctl.envs.telemetry import LC_IDLE, LC_LINK, Missing, Reading, Value, Why
from rlctl.envs.workload import SLO

log = logging.getLogger(__name__)

Pids = Callable[[], tuple[int, ...] | Missing]

LOOK_SECONDS, CALM_LOOK_SECONDS, IDLE_LOOK_SECONDS, MOST_LOOK_SECONDS = 0.02, 0.06, 0.1, 1.0
"""Between two looks: at best; while no request waits for `CALM_RATIO` of the target; while the LC is idle; at worst."""

PAIR_SECONDS = 1.0
"""So often, while requests come, the next look is a close one."""

CALM_RATIO, IDLE_SECONDS = 0.25, 1.0
"""The LC is idle once it has had no request for so long."""

FIND_SECONDS = 10.0
"""Between two searches for the LC's ports; a listing of its open files, a millisecond for a thousand."""

START_SECONDS = 2.0
"""The start waits so long for the first look."""

STALE_SECONDS = 3.0
TOLD_SECONDS, TOLD_RATIO = 10.0, 1.5
"""When the cost of looking is told first, and how much it rises before it is told again."""

COST_WEIGHT = 0.1

OVERLAPPING = (
    "several requests are in flight on one connection (HTTP/2, gRPC, pipelining), which the kernel's times do not tell "
    "apart; use `latency: {kind: prometheus}` (Envoy and OpenTelemetry have a histogram) or a log"
)


class TcpSource(ReportedSource):
    """The SLO's quantile over the requests on the LC's TCP connections.

    Args:
        pids: The LC's processes now.
        ports: Local ports that count; by default those on which the LC's own sockets listen.
        cpu_ratio: Share of a core that the looks may cost.

    Raises:
        ConfigError: The target is below what the kernel's time stamps can tell.
        HostError: The LC listens on no TCP port, the kernel does not answer, or its network cannot be entered.
    """

    provides = (*PROVIDES, LC_IDLE, "lc_saturated_ratio", LC_LINK)

    ends_at_ticks = False

    def __init__(
        self, slo: SLO, pids: Pids, *, ports: Sequence[int] = (), window_seconds: float = 1.0, cpu_ratio: float = 0.02
    ) -> None:
        jiffy = jiffy_seconds()
        if slo.target_seconds < 2.0 * jiffy:
            raise ConfigError(
                f"a target of {slo.target_seconds * 1e3:g} ms is below two jiffies, {2e3 * jiffy:g} ms at this "
                f"kernel's HZ={1.0 / jiffy:.0f}: `kind: tcp` cannot judge it; use another latency source"
            )
        self.name = "tcp"
        self._pids, self._configured, self._cpu_ratio = pids, tuple(ports), cpu_ratio
        self._late_one_in = 1.0 / (1.0 - slo.quantile)
        self._tracker = RequestTracker(self._late_one_in)
        self._window_seconds = window_seconds
        self._window = TcpWindow(window_seconds, slo.quantile, jiffy)
        self._reporter = Reporter(self.name, slo, STALE_SECONDS)
        self._lock = threading.Lock()
        self._trouble: Missing | None = Missing(Why.NO_DATA, "no look yet")
        self._error: HostError | None = None
        self._home = 0
        self._diag: InetDiag | None = None
        self._listening: ListeningPorts | None = None
        self.target_seconds, self._asked_seconds, self._seen_seconds = slo.target_seconds, -math.inf, -math.inf
        self._cost_seconds = self._interval_seconds = self._paired_seconds = 0.0
        self._rest_seconds = LOOK_SECONDS
        self._told_ratio, self._opened_seconds = 0.0, time.monotonic()
        self._started, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="rlctl-tcp", daemon=True)
        self._thread.start()
        self._started.wait(START_SECONDS)
        self._raise_error()

    def __str__(self) -> str:
        share = self._cost_seconds / max(self._interval_seconds, 1e-9)
        looks = f"{1.0 / max(self._interval_seconds, 1e-9):.0f} looks a second of {self._cost_seconds * 1e3:.2g} ms"
        return f"TCP_INFO of the LC's {self._listening or 'ports'}: {looks}, {share:.1%} of a core"

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """The window's figures as readings, with whether the LC is idle and how much of the time it is saturated."""
        with self._lock:
            figures: Figures | Missing = self._trouble or self._window.figures()
            saturated, waiting = self._window.saturated_ratio, self._window.waiting
            link = self._window.link_ratio
        readings = dict(self._reporter.readings(figures, now_seconds))
        if isinstance(figures, Missing):
            return readings | dict.fromkeys((LC_IDLE, "lc_saturated_ratio", LC_LINK), figures)
        age = max(now_seconds - figures.end_seconds, 0.0)
        whole = figures.window_seconds >= 0.5 * self._window_seconds
        idle = figures.samples == 0 and not waiting and whole
        return readings | {
            LC_IDLE: Value(float(idle), age), "lc_saturated_ratio": Value(saturated, age), LC_LINK: Value(link, age),
        }  # fmt: skip

    def newest(self) -> Newest:
        """The oldest waiting request at this moment."""
        with self._lock:
            if self._trouble is not None:
                return NOTHING
            return Newest(oldest_seconds=self._window.oldest_seconds, seen_seconds=self._seen_seconds)

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._stop.set()
        self._thread.join(2.0)

    def _raise_error(self) -> None:
        if self._error is not None:
            self.close()
            raise self._error

    def _run(self) -> None:
        found_seconds = -math.inf
        while not self._stop.is_set():
            began_seconds, cost_seconds = time.monotonic(), 0.0
            try:
                if self._diag is None or began_seconds - found_seconds >= FIND_SECONDS or self._home_ended():
                    self._find()
                    found_seconds = began_seconds
                cost_seconds = self._look()
                self._error = None
            except HostError as error:
                self._leave_network()
                self._error = error
                self._forget(Missing(Why.NO_DATA, str(error)))
            except Exception as error:  # whatever the kernel says, the thread must live
                log.debug("a look at TCP sockets failed", exc_info=True)
                self._trouble = Missing(Why.MALFORMED, f"TCP sockets: {error}")
            self._started.set()
            self._pause(began_seconds, cost_seconds)
        self._leave_network()

    def _home_ended(self) -> bool:
        """Whether the process has ended in whose network the sockets are listed: its successor may have another."""
        pids = self._pids()
        return not isinstance(pids, Missing) and self._home not in pids

    def _find(self) -> None:
        """Make a socket in the LC's network namespace, and find the LC's ports there."""
        pids = self._pids()
        if isinstance(pids, Missing) or not pids:
            raise HostError("the LC has no process")
        self._home = pids[0]
        if enter_network_of(self._home):
            self._leave_network()
        self._diag = self._diag or InetDiag()
        listening = find_ports(self._diag, pids, self._configured)
        if listening != self._listening:
            self._listening = listening
            # An LC that is called there alone looks idle.
            if "UNIX" in (others := what_else(socket_inodes(pids), pids)):
                log.warning("the LC is judged by its TCP %s alone%s", listening, others)
            self._forget(Missing(Why.NO_DATA, "no look yet"))

    def _leave_network(self) -> None:
        if self._diag is not None:
            self._diag.close()
        self._diag = None

    def _forget(self, trouble: Missing) -> None:
        with self._lock:
            self._trouble = trouble
            self._tracker = RequestTracker(self._late_one_in)
            self._window.clear()

    def _look(self) -> float:
        """One look; the CPU time that it took."""
        assert self._listening is not None
        assert self._diag is not None
        began_seconds = time.thread_time()
        connections = self._diag.connections(self._listening.ports, self._listening.families)
        look = self._tracker.see(time.monotonic(), connections)
        with self._lock:
            self._window.add(look)
            self._seen_seconds = look.at_seconds
            overlapping = self._tracker.overlapping
            if look.ages.size or look.requests:
                self._asked_seconds = look.at_seconds
            if look.at_seconds - self._asked_seconds > IDLE_SECONDS:
                self._rest_seconds = IDLE_LOOK_SECONDS
            else:
                calm = look.ages.max(initial=0.0) < CALM_RATIO * self.target_seconds
                self._rest_seconds = CALM_LOOK_SECONDS if calm else LOOK_SECONDS
            self._trouble = Missing(Why.NOT_SUPPORTED, OVERLAPPING) if overlapping else None
        return time.thread_time() - began_seconds

    def _pause(self, began_seconds: float, cost_seconds: float) -> None:
        """Wait for the next look: so long that the looks cost no more than they may."""
        self._cost_seconds += COST_WEIGHT * (cost_seconds - self._cost_seconds) if self._cost_seconds else cost_seconds
        interval = min(max(self._cost_seconds / self._cpu_ratio, self._rest_seconds), MOST_LOOK_SECONDS)
        self._interval_seconds = interval if self._diag else MOST_LOOK_SECONDS
        ratio, open_seconds = self._cost_seconds / self._interval_seconds, began_seconds - self._opened_seconds
        if open_seconds > TOLD_SECONDS and self._diag and ratio > TOLD_RATIO * self._told_ratio:
            self._told_ratio = ratio
            log.info("%s", self)
        if began_seconds - self._paired_seconds >= PAIR_SECONDS and self._rest_seconds < IDLE_LOOK_SECONDS:
            self._paired_seconds, interval = began_seconds, 0.5 * CLOSE_SECONDS
        else:
            interval = began_seconds + self._interval_seconds - time.monotonic()
        self._stop.wait(max(interval, 0.0))
