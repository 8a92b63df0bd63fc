"""How fast the LC's CPUs run, and how fast they are guaranteed to: Heracles takes BE cores away when both differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from rlctl.envs.host.decode import measured
from rlctl.envs.host.sensors.kernel_file import KernelFile
from rlctl.envs.telemetry import Missing, Reading, Value, Why

__all__ = ["MOST_CPUS", "LcFrequency"]

MOST_CPUS = 8
"""CPUs looked at: a reading may interrupt the CPU that it is about."""

_GUARANTEED = (("cpufreq/base_frequency", 1e3), ("acpi_cppc/nominal_freq", 1e6))  # kHz (intel_pstate), MHz


class LcFrequency:
    """`lc_frequency_hertz` and `lc_frequency_ratio`, the share of the frequency without turbo.

    Of several CPUs the fastest counts, since an idle one shows what it ran at long ago, or its lowest.

    Args:
        cpus: The LC's.
        sys: Where sysfs is mounted.
    """

    name = "cpufreq"
    provides = ("lc_frequency_hertz", "lc_frequency_ratio")

    def __init__(self, cpus: Iterable[int], sys: Path = Path("/sys")) -> None:
        folders = [sys / f"devices/system/cpu/cpu{cpu}" for cpu in sorted(cpus)[:MOST_CPUS]]
        self._files = [KernelFile(folder / "cpufreq/scaling_cur_freq", most_bytes=64) for folder in folders]
        known = [hertz for folder in folders if (hertz := _guaranteed_hertz(folder)) is not None]
        self._guaranteed_hertz = max(known, default=None)

    @property
    def present(self) -> bool:
        """Whether the kernel tells of any of them."""
        return any(file.path.exists() for file in self._files)

    def read(self, now_seconds: float) -> Mapping[str, Reading]:  # noqa: ARG002 - the protocol's signature
        """Now."""
        hertz = self._hertz()
        if isinstance(hertz, Missing):
            return dict.fromkeys(self.provides, hertz)
        if self._guaranteed_hertz is None:
            ratio: Reading = Missing(Why.NOT_SUPPORTED, "this cpufreq driver tells no base frequency")
        else:
            ratio = Value(hertz / self._guaranteed_hertz)
        return {"lc_frequency_hertz": Value(hertz), "lc_frequency_ratio": ratio}

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()

    def _hertz(self) -> float | Missing:
        found: list[float] = []
        missing = Missing(Why.NOT_CONFIGURED, "the LC's CPUs are not known")
        for file in self._files:
            content = file.read()
            kilohertz = content if isinstance(content, Missing) else measured(content.strip())
            if isinstance(kilohertz, Missing):
                gone = kilohertz.why is Why.GONE  # the whole cpufreq folder: nobody scales this CPU's frequency
                missing = Missing(Why.NOT_SUPPORTED if gone else kilohertz.why, kilohertz.detail)
            elif isinstance(kilohertz, Why):
                missing = Missing(kilohertz, f"{file.path} holds no frequency")
            else:
                found.append(kilohertz * 1e3)
        return max(found) if found else missing


def _guaranteed_hertz(folder: Path) -> float | None:
    for name, unit_hertz in _GUARANTEED:
        try:
            value = measured((folder / name).read_text())
        except OSError:
            continue
        if not isinstance(value, Why) and value > 0.0:
            return value * unit_hertz
    return None
