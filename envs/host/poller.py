"""The wait for the next tick, in short looks at what changes before it: requests, pressure on CPUs, foreign writes.

All of it happens in the loop's own thread, so that whoever answers a look never writes beside a tick.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from rlctl.envs.errors import in_one_line
from rlctl.envs.host.cgroup.ownership import Witness
from rlctl.envs.host.events import Seldom
from rlctl.envs.host.latency.newest import NOTHING, LatencySource, Newest
from rlctl.envs.host.latency.tcp import TcpSource
from rlctl.envs.host.sensors.psi import LcWaits, Psi
from rlctl.envs.host.sensors.sensor import Sensor
from rlctl.envs.workload import SLO

LOOK_SECONDS = 0.020
"""Between two looks: an LC that is overrun is some 10 ms late after as long, and fifty looks a second are cheap."""

CALM_SECONDS, CALM_RATIO = 0.060, 0.25
"""Between two looks while none saw a new request, or one that waits for that share of its target."""

CLOSE_SECONDS = 0.005
"""Between two looks once one of them was near a sign: a queue that fills reaches the target some looks later."""


@dataclass(frozen=True, slots=True)
class LcSample:
    """What is new of one LC.

    Attributes:
        waits: A task of it has waited for CPUs for long, see `LcWaits`.
    """

    newest: Newest = NOTHING
    waits: bool = False


@dataclass(frozen=True, slots=True)
class HostSample:
    """One look at the host between two ticks.

    Attributes:
        lcs: What is new of each LC.
        foreign: Another program has written to a knob of BE.
    """

    now_seconds: float
    lcs: Mapping[str, LcSample] = field(default_factory=dict)
    foreign: bool = False


class LcSources:
    """What can be looked at of an LC: its latency source, and its waiting for CPUs where the kernel tells of it.

    Args:
        sensors: Of the LC, as a live host has them.
    """

    def __init__(self, slo: SLO, sensors: Iterable[Sensor]) -> None:
        self.slo = slo
        self.source = next((one for one in sensors if isinstance(one, LatencySource)), None)
        self.waits = next((LcWaits(one) for one in sensors if isinstance(one, Psi)), None)

    def set_target(self, target_seconds: float) -> None:
        """Look as another target wants it from now on."""
        self.slo = replace(self.slo, target_seconds=target_seconds)
        if isinstance(self.source, TcpSource):
            self.source.target_seconds = target_seconds

    def __str__(self) -> str:
        pressure = "no pressure, for it has no cgroup2 group"
        if self.waits:
            why = self.waits.trigger.why
            pressure = f"its pressure on CPUs by {f'reading it ({why})' if why else 'a trigger of the kernel'}"
        return f"{self.source.name if self.source else 'no latency source'}, {pressure}"


class Poller:
    """Spends the wait for a tick, and looks meanwhile if somebody wants it to.

    Args:
        lcs: LCs by name.
        witness: Tells of foreign writes; None where nobody may write.
        sleep: Spends so many seconds; may return early, and true for good when it is to be left alone.

    Attributes:
        look: Takes every look, and tells whether the next one is wanted soon; None while nobody wants any, and then the
            wait is one sleep.
    """

    def __init__(
        self, lcs: Mapping[str, LcSources], witness: Witness | None, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self.lcs = lcs
        self.look: Callable[[HostSample], bool] | None = None
        self._witness, self._sleep = witness, sleep
        self._trouble = Seldom(logging.ERROR)
        self._poll = select.poll()
        if witness and witness.file is not None:
            self._poll.register(witness.file, select.POLLIN)
        for lc in lcs.values():
            if lc.waits and lc.waits.trigger.file is not None:
                self._poll.register(lc.waits.trigger.file, select.POLLPRI)

    def __str__(self) -> str:
        writes = "foreign writes" if self._witness and self._witness.watches else "no foreign writes"
        return "; ".join((*(f"{name}: {lc}" for name, lc in self.lcs.items()), writes))

    def sleep(self, seconds: float) -> None:
        """Spend so many seconds, looking. The last look is so early that its answer does not delay the tick."""
        end_seconds, next_seconds = time.monotonic() + seconds, LOOK_SECONDS
        while self.look and end_seconds - time.monotonic() > LOOK_SECONDS and not self._sleep(0.0):
            ready = dict(self._poll.poll(next_seconds * 1e3))
            try:
                sample = self._sample(ready)
                next_seconds = CLOSE_SECONDS if self.look(sample) else self._rest_seconds(sample)
                self._trouble.tell("")
            except Exception as error:  # noqa: BLE001 - the next tick looks for itself
                self._trouble.tell(f"looking between the ticks failed: {in_one_line(error)}")
                break
            if sample.foreign:  # whoever writes without end is answered as often as we look, and no more
                self._sleep(LOOK_SECONDS)
        self._sleep(max(end_seconds - time.monotonic(), 0.0))

    def close(self) -> None:
        """Let go of the kernel's triggers. Idempotent."""
        for lc in self.lcs.values():
            if lc.waits:
                self._drop(lc.waits)

    def _sample(self, ready: Mapping[int, int]) -> HostSample:
        now_seconds = time.monotonic()
        lcs = {name: self._of(lc, now_seconds, ready) for name, lc in self.lcs.items()}
        witness = self._witness
        return HostSample(now_seconds, lcs, bool(witness and witness.anybody(readable=witness.file in ready)))

    def _rest_seconds(self, sample: HostSample) -> float:
        for name, lc in sample.lcs.items():
            oldest_seconds = lc.newest.oldest_seconds or 0.0
            if lc.newest.latencies or lc.waits or oldest_seconds >= CALM_RATIO * self.lcs[name].slo.target_seconds:
                return LOOK_SECONDS
        return CALM_SECONDS

    def _of(self, lc: LcSources, now_seconds: float, ready: Mapping[int, int]) -> LcSample:
        waits = False
        if lc.waits:
            events = ready.get(lc.waits.trigger.file or -1, 0)
            if events & ~select.POLLPRI:  # the group is gone: its successor's counter is read
                self._drop(lc.waits)
            waits = lc.waits.high(now_seconds, told=bool(events & select.POLLPRI))
        return LcSample(lc.source.newest() if lc.source else NOTHING, waits)

    def _drop(self, waits: LcWaits) -> None:
        if waits.trigger.file is not None:
            self._poll.unregister(waits.trigger.file)
            waits.trigger.close()
