"""How fast the LC's CPUs run, and how fast they are guaranteed to: Heracles takes BE cores away when both differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from rlctl.envs.host.decode import parse_quantity
from rlctl.envs.host.sensors.kernel_file import Gauge, one_number
from rlctl.envs.telemetry import Missing, Reading, Value, Why

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
