"""Energy by RAPL: what the packages draw, from /sys/class/powercap.

And how fast the LC's CPUs run, and how fast they are guaranteed to: Heracles takes BE cores away when both differ.

Zones nest: core and uncore are parts of their package, and are not added to it. Memory (`dram`) has a counter of its
own below the package but is not part of its energy; `psys` is the whole platform, packages included. Zones that another
driver offers a second time (intel-rapl-mmio) are left out.

The counters are root's (mode 0400) since CVE-2020-8694: with them one user could spy on another's keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlctl.envs.host.decode import parse_quantity, text_of
from rlctl.envs.host.sensors.kernel_file import Gauge, Rate, one_number
from rlctl.envs.telemetry import Missing, Reading, Value, Why

_ZONE = re.compile(r"intel-rapl:\d+(:\d+)?")
_MOST_WATTS = 1e5


@dataclass(frozen=True, slots=True)
class Zone:
    """An energy counter of the processor.

    Attributes:
        kind: `package` or `dram`.
        limit_watts: What the package may draw for long, its TDP as shipped; None if the kernel does not say.
    """

    folder: Path
    kind: str
    range_joules: float
    limit_watts: float | None


def rapl_zones(sys: Path = Path("/sys")) -> tuple[Zone, ...]:
    """The zones whose sum counts everything once."""
    found = []
    for folder in sorted((sys / "class/powercap").glob("intel-rapl:*")):
        if not _ZONE.fullmatch(folder.name):
            continue
        name, top = text_of(folder / "name"), folder.name.count(":") == 1
        kind = "package" if top and name.startswith("package") else "dram" if not top and name == "dram" else ""
        range_joules = parse_quantity(text_of(folder / "max_energy_range_uj"))
        if kind and not isinstance(range_joules, Why) and range_joules > 0.0:
            found.append(Zone(folder, kind, range_joules * 1e-6, _limit_watts(folder) if top else None))
    return tuple(found)


class Energy:
    """Joules that some zones used since this object was made; a counter may begin anew once between two readings."""

    def __init__(self, zones: Sequence[Zone]) -> None:
        self._counters = [_Counter(zone, Gauge(zone.folder / "energy_uj", _MICROJOULES)) for zone in zones]

    def joules(self) -> float | Missing:
        """The sum, or why one of them cannot be read."""
        total = 0.0
        for counter in self._counters:
            joules = counter.joules()
            if isinstance(joules, Missing):
                return joules
            total += joules
        return total if self._counters else Missing(Why.NOT_SUPPORTED, "no such RAPL zone")

    def close(self) -> None:
        """Close the kernel's files."""
        for counter in self._counters:
            counter.gauge.close()


_MICROJOULES = one_number(1e-6, "energy in microjoules")


@dataclass(slots=True)
class _Counter:
    zone: Zone
    gauge: Gauge
    _before: float | None = None
    _total: float = 0.0

    def joules(self) -> float | Missing:
        now, before = self.gauge.now(), self._before
        if isinstance(now, Missing):
            denied = now.why is Why.NO_PERMISSION
            return replace(now, detail=f"{now.detail}: root's only (CVE-2020-8694)") if denied else now
        self._before = now
        if before is not None:
            self._total += now - before if now >= before else now - before + self.zone.range_joules
        return self._total


class Rapl:
    """`package_watts`, and `power_ratio`: the packages' share of what they may draw for long."""

    name = "rapl"
    provides = ("package_watts", "power_ratio")

    def __init__(self, sys: Path = Path("/sys")) -> None:
        packages = [zone for zone in rapl_zones(sys) if zone.kind == "package"]
        self._energy, self._rate = Energy(packages), Rate(_MOST_WATTS)
        limits = [zone.limit_watts for zone in packages]
        self._limit_watts = sum(limit for limit in limits if limit) if packages and all(limits) else None

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """Watts since the previous call."""
        watts = self._rate.update(now_seconds, self._energy.joules())
        return {"package_watts": watts, "power_ratio": self._ratio(watts)}

    def close(self) -> None:
        """Close the kernel's files."""
        self._energy.close()

    def _ratio(self, watts: Reading) -> Reading:
        if isinstance(watts, Missing):
            return watts
        if self._limit_watts is None:
            return Missing(Why.NOT_SUPPORTED, "this kernel tells no long-term power limit of the packages")
        return Value(watts.value / self._limit_watts)


def _limit_watts(folder: Path) -> float | None:
    """Of the long-term constraint: its largest value, which is the TDP, else the one that is set."""
    for name in folder.glob("constraint_[0-9]_name"):
        if text_of(name) == "long_term":
            stem = name.name.removesuffix("name")
            for file in (f"{stem}max_power_uw", f"{stem}power_limit_uw"):
                micro = parse_quantity(text_of(folder / file))
                if not isinstance(micro, Why) and micro > 0.0:
                    return micro * 1e-6
    return None


# CPUs looked at: a reading may interrupt the CPU that it is about.
MOST_CPUS = 8

_GUARANTEED = (("cpufreq/base_frequency", 1e3), ("acpi_cppc/nominal_freq", 1e6))  # kHz (intel_pstate), MHz


class LcFrequency:
    """`lc_frequency_hertz` and `lc_frequency_ratio`, the share of the frequency without turbo.

    Of several CPUs the fastest counts, since an idle one shows what it ran at long ago, or its lowest.
    """

    name = "cpufreq"
    provides = ("lc_frequency_hertz", "lc_frequency_ratio")

    def __init__(self, cpus: Iterable[int], sys: Path = Path("/sys")) -> None:
        folders = [sys / f"devices/system/cpu/cpu{cpu}" for cpu in sorted(cpus)[:MOST_CPUS]]
        parse = one_number(1e3, "frequency in kHz")
        self._frequencies = [Gauge(folder / "cpufreq/scaling_cur_freq", parse) for folder in folders]
        known = [hertz for folder in folders if (hertz := _guaranteed_hertz(folder)) is not None]
        self._guaranteed_hertz = max(known, default=None)

    @property
    def present(self) -> bool:
        """Whether the kernel tells of any of them."""
        return any(gauge.path.exists() for gauge in self._frequencies)

    def read(self, now_seconds: float) -> Mapping[str, Reading]:  # noqa: ARG002 - the protocol's signature
        """The frequencies as they are now."""
        hertz = self._hertz()
        if isinstance(hertz, Missing):
            return dict.fromkeys(self.provides, hertz)
        if self._guaranteed_hertz is None:
            ratio: Reading = Missing(Why.NOT_SUPPORTED, "this cpufreq driver tells no base frequency")
        else:
            ratio = Value(hertz / self._guaranteed_hertz)
        return {"lc_frequency_hertz": Value(hertz), "lc_frequency_ratio": ratio}

    def close(self) -> None:
        """Close the kernel's files."""
        for gauge in self._frequencies:
            gauge.close()

    def _hertz(self) -> float | Missing:
        known: list[float] = []
        missing = Missing(Why.NOT_CONFIGURED, "the LC's CPUs are not known")
        for gauge in self._frequencies:
            hertz = gauge.now()
            if not isinstance(hertz, Missing):
                known.append(hertz)
            elif hertz.why is Why.GONE:  # the whole cpufreq folder: nobody scales this CPU's frequency
                missing = replace(hertz, why=Why.NOT_SUPPORTED)
            else:
                missing = hertz
        return max(known) if known else missing


def _guaranteed_hertz(folder: Path) -> float | None:
    for name, unit_hertz in _GUARANTEED:
        try:
            value = parse_quantity((folder / name).read_text())
        except OSError:
            continue
        if not isinstance(value, Why) and value > 0.0:
            return value * unit_hertz
    return None
