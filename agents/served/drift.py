"""Whether a learned policy runs on a host like those that it learned on.

Two things are found without a model of what is normal. A sensor that this host lacks and no training host lacked: the
network gets a 0 with a flag that was never set so in training. And a number beyond its feature's range: it is clipped,
so the network gets the range's end whatever the number is. Both are mistakes in a configuration more often than rare
hosts: a target in the wrong unit, a `max_load_rps` that is too small, a perf group that is not the LC's.

Not found are numbers within the ranges in combinations that training never had: bundles do not hold which those are.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rlctl.agents.served.card import Card
from rlctl.envs.errors import in_one_line
from rlctl.envs.observation import FEATURES, Observation
from rlctl.envs.telemetry import Missing, Why

SENSORS: Mapping[str, str] = MappingProxyType(
    {"cpi": "cpi", "cpu_per_request": "lc_cpu_seconds_per_request", "lc_cpus": "lc_cpus", "be_cpus": "be_cpus"}
)
"""Features whose absence counts, and the Telemetry field behind each. Latency and load are not among them: without
these the shield holds BE at the safe allocation, whoever decides."""

IDLE = frozenset({Why.NO_DATA, Why.NOT_COUNTED})
"""Missing since the LC did nothing, as in any quiet night: the sensor is there."""

LOW, HIGH = -1.0, 1.0

ENDS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {"latency": (LOW,), "stretch": (LOW,), "load": (HIGH,), "cpi": (LOW, HIGH), "cpu_per_request": (LOW, HIGH)}
)
"""Features, and the ends of their ranges that no training host was at for long. The other ends and features are reached
in every run: BE frozen or with everything, an LC that is overloaded or has no load."""

_PLACES = MappingProxyType({feature.name: place for place, feature in enumerate(FEATURES)})


class Drift:
    """Compares ticks with what a policy was trained on.

    Args:
        card: The policy's. One that names no training hosts says nothing of their sensors: then none is held to be
            strange.
    """

    def __init__(self, card: Card) -> None:
        lacked = {name for plant in card.plants for name in plant.absent}
        self._always_there = {name: field for name, field in SENSORS.items() if card.plants and name not in lacked}

    def strange(self, observation: Observation) -> str:
        """What of this tick training never had, in a few words; empty when nothing. Never raises."""
        try:
            return ", ".join([*self._lost(observation), *_clipped(observation)])
        except Exception as error:  # noqa: BLE001 - readings that cannot even be looked at are unlike any training
            return in_one_line(error)

    def _lost(self, observation: Observation) -> list[str]:
        readings = ((name, getattr(observation.telemetry, field)) for name, field in self._always_there.items())
        return [f"no {name}" for name, one in readings if isinstance(one, Missing) and one.why not in IDLE]


def _clipped(observation: Observation) -> list[str]:
    if not observation.frames:
        return []
    seen = observation.frames[-1].values(observation.tick_seconds)
    return [f"{name} beyond its range" for name, ends in ENDS.items() if float(seen[_PLACES[name]]) in ends]
