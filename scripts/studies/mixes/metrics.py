"""The metrics of BarbequeRTRM's Table IV, from one run's time, energy and counters.

All are of class "the lower the better" but the instructions per cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rlctl.envs.telemetry import Missing, Reading, Value, Why


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric under the name by which the paper abbreviates it.

    Attributes:
        event: The perf event that counts it; empty for what is computed from others.
        scaled: Shown in thousands, millions ...; the others as they are.
    """

    name: str
    meaning: str
    event: str = ""
    scaled: bool = True
    more_is_better: bool = False


METRICS = (
    Metric("ctime", "completion time, s", scaled=False),
    Metric("power", "mean power, W", scaled=False),
    Metric("energy", "energy, J", scaled=False),
    Metric("task-clock", "CPU time, ms"),
    Metric("cpu-used", "CPUs utilised", scaled=False),
    Metric("ctx", "context switches", "context-switches"),
    Metric("mig", "CPU migrations", "cpu-migrations"),
    Metric("pf", "page faults", "page-faults"),
    Metric("cycles", "CPU cycles", "cycles"),
    Metric("fes", "front-end stalled cycles", "stalled-cycles-frontend"),
    Metric("fei", "front-end stalls, % of cycles", scaled=False),
    Metric("bes", "back-end stalled cycles", "stalled-cycles-backend"),
    Metric("bei", "back-end stalls, % of cycles", scaled=False),
    Metric("ins", "instructions", "instructions"),
    Metric("scpi", "stalled cycles per instruction", scaled=False),
    Metric("ipc", "instructions per cycle", scaled=False, more_is_better=True),
    Metric("b", "branches", "branches"),
    Metric("b-rate", "branches, M per second of CPU time", scaled=False),
    Metric("b-miss", "branch misses", "branch-misses"),
    Metric("b-miss-rate", "branch misses, % of branches", scaled=False),
    Metric("ghz", "effective processor speed, GHz", scaled=False),
)
"""In the order of the tables."""

_NOTHING = Missing(Why.NOT_COUNTED, "nothing was counted")


def metrics_of(seconds: float, energy_joules: Reading, counts: Mapping[str, Reading]) -> dict[str, Reading]:
    """All metrics of a run from counts by perf event; one that needs what is missing is missing for the same reason."""
    known: dict[str, Reading] = {metric.name: counts[metric.event] for metric in METRICS if metric.event}
    known |= {"ctime": Value(seconds), "energy": energy_joules, "wall": Value(seconds), "cpu": counts["task-clock"]}

    def ratio(above: str, below: str, factor: float = 1.0) -> Reading:
        return _combined(lambda a, b: factor * a / b, known[above], known[below])

    known["stalls"] = _combined(max, known["fes"], known["bes"])
    derived = {
        "power": ratio("energy", "wall"),
        "task-clock": _combined(lambda cpu, _: 1e3 * cpu, known["cpu"], known["wall"]),
        "cpu-used": ratio("cpu", "wall"),
        "fei": ratio("fes", "cycles", 100.0),
        "bei": ratio("bes", "cycles", 100.0),
        "scpi": ratio("stalls", "ins"),
        "ipc": ratio("ins", "cycles"),
        "b-rate": ratio("b", "cpu", 1e-6),
        "b-miss-rate": ratio("b-miss", "b", 100.0),
        "ghz": ratio("cycles", "cpu", 1e-9),
    }
    return {metric.name: {**known, **derived}[metric.name] for metric in METRICS}


def _combined(function: Callable[[float, float], float], first: Reading, second: Reading) -> Reading:
    if isinstance(first, Missing) or isinstance(second, Missing):
        return first if isinstance(first, Missing) else second
    try:
        return Value(function(first.value, second.value))
    except ZeroDivisionError:
        return _NOTHING
