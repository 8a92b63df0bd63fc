"""What the machine draws during a run: by RAPL, or else by its power meter; or why that is not known."""

from __future__ import annotations

import contextlib
import time
from typing import Self

from rlctl.envs.host.resources.node_power import NodePower, power_source
from rlctl.envs.host.resources.powercap import Energy, rapl_zones
from rlctl.envs.telemetry import Missing, Reading, Value, Why

INTERVAL_SECONDS = 1.0
"""Between two readings of a power meter; a board controller has none newer."""


class EnergyMeter:
    """Energy of spans of time, in joules. A context manager.

    RAPL counts packages and memory; a power meter, as in the paper, the whole machine, once a second, so that a run has
    to be of several seconds.
    """

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._rapl = Energy(rapl_zones())
        self._stack.callback(self._rapl.close)
        self._begun_seconds, self._before = 0.0, self._rapl.joules()
        self._power: NodePower | Missing = Missing(Why.NOT_CONFIGURED, "RAPL counts")
        if isinstance(self._before, Missing):
            source = power_source()
            if isinstance(source, Missing):
                self._power = Missing(source.why, f"{self._before.detail}; {source.detail}")
            else:
                self._power = NodePower(source[0], INTERVAL_SECONDS, source[1])
                self._stack.callback(self._power.close)

    def begin(self) -> None:
        """Begin a span of time."""
        self._begun_seconds, self._before = time.monotonic(), self._rapl.joules()

    def end(self) -> Reading:
        """Energy in joules since `begin`, or why it is not known."""
        now, seconds = self._rapl.joules(), time.monotonic() - self._begun_seconds
        if not isinstance(now, Missing) and not isinstance(self._before, Missing):
            return Value(now - self._before)
        if isinstance(self._power, Missing):
            return now if isinstance(now, Missing) and self._power.why is Why.NOT_CONFIGURED else self._power
        watts = self._power.read(time.monotonic())["node_watts"]
        if isinstance(watts, Missing):
            return watts
        if watts.age_seconds > seconds:
            return Missing(Why.NO_DATA, f"the power meter gave no reading within {seconds:.1f} s: measure longer runs")
        return Value(watts.value * seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
