"""Energy, power, frequency and free memory, on trees as servers have them; this host's own where it has some."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.host.resources.memory import HostMemorySensor
from rlctl.envs.host.resources.power import Energy, LcFrequency, Rapl, rapl_zones
from rlctl.envs.telemetry import Missing, Value, Why

RANGE_UJ = 262_143_328_850
SERVER = {
    # zone: name, what it counted in microjoules
    "intel-rapl": ("", None),
    "intel-rapl:0": ("package-0", 0),
    "intel-rapl:0:0": ("core", 0),
    "intel-rapl:0:1": ("dram", 0),
    "intel-rapl:1": ("package-1", 0),
    "intel-rapl:1:0": ("dram", 0),
    "intel-rapl:2": ("psys", 0),
    "intel-rapl-mmio:0": ("package-0", 0),
}


def put(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """A /sys with two packages of 100 W each."""
    for zone, (name, counted) in SERVER.items():
        folder = tmp_path / "class/powercap" / zone
        put(folder / "name", name)
        if counted is not None:
            put(folder / "energy_uj", counted)
            put(folder / "max_energy_range_uj", RANGE_UJ)
        if name.startswith("package"):
            put(folder / "constraint_0_name", "long_term")
            put(folder / "constraint_0_max_power_uw", 100_000_000)
            put(folder / "constraint_0_power_limit_uw", 120_000_000)
            put(folder / "constraint_1_name", "short_term")
            put(folder / "constraint_1_max_power_uw", 250_000_000)
    return tmp_path


def count(sys: Path, **joules: float) -> None:
    for zone, amount in joules.items():
        put(
            sys / "class/powercap" / zone.replace("p", "intel-rapl:").replace("_", ":") / "energy_uj", int(amount * 1e6)
        )


def test_packages_and_memory_are_counted_once(server: Path) -> None:
    assert [(zone.folder.name, zone.kind) for zone in rapl_zones(server)] == [
        ("intel-rapl:0", "package"),
        ("intel-rapl:0:1", "dram"),
        ("intel-rapl:1", "package"),
        ("intel-rapl:1:0", "dram"),
    ]
    rapl = Rapl(server)
    assert all(isinstance(one, Missing) for one in rapl.read(0.0).values())
    count(server, p0=100.0, p0_0=60.0, p0_1=8.0, p1=60.0, p1_0=4.0, p2=500.0)
    found = rapl.read(2.0)
    assert found == {"package_watts": Value(80.0), "power_ratio": Value(0.4)}
    rapl.close()


def test_a_counter_that_begins_anew_goes_on(server: Path) -> None:
    top = RANGE_UJ * 1e-6
    count(server, p0=top - 30.0, p1=0.0)
    energy = Energy([zone for zone in rapl_zones(server) if zone.kind == "package"])
    assert energy.joules() == 0.0
    count(server, p0=20.0, p1=1.0)
    assert energy.joules() == pytest.approx(51.0, abs=1e-3)
    energy.close()


@given(st.lists(st.integers(0, RANGE_UJ - 1), min_size=2, max_size=20))
def test_energy_only_grows(tmp_path_factory: pytest.TempPathFactory, counted: list[int]) -> None:
    sys = tmp_path_factory.mktemp("sys")
    folder = sys / "class/powercap/intel-rapl:0"
    for name, text in (("name", "package-0"), ("max_energy_range_uj", RANGE_UJ), ("energy_uj", 0)):
        put(folder / name, text)
    energy, before = Energy(rapl_zones(sys)), 0.0
    for one in counted:
        put(folder / "energy_uj", one)
        now = energy.joules()
        assert isinstance(now, float)
        assert now >= before
        before = now
    energy.close()


def test_a_counter_for_root_only_says_so(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlctl.envs.host.sensors.kernel_file import KernelFile

    def refused(self: KernelFile) -> Missing:
        return Missing(Why.NO_PERMISSION, f"{self.path}: Permission denied")

    monkeypatch.setattr(KernelFile, "read", refused)
    watts = Rapl(server).read(0.0)["package_watts"]
    assert isinstance(watts, Missing)
    assert watts.why is Why.NO_PERMISSION
    assert "CVE-2020-8694" in watts.detail


def test_without_known_limit_watts_have_no_share(server: Path) -> None:
    (server / "class/powercap/intel-rapl:1/constraint_0_name").write_text("peak_power\n")
    rapl = Rapl(server)
    rapl.read(0.0)
    count(server, p0=10.0, p1=10.0)
    found = rapl.read(1.0)
    assert found["package_watts"] == Value(20.0)
    assert isinstance(found["power_ratio"], Missing)
    rapl.close()


def test_set_limit_stands_in_for_tdp(server: Path) -> None:
    for zone in ("intel-rapl:0", "intel-rapl:1"):
        put(server / "class/powercap" / zone / "constraint_0_max_power_uw", 0)
    assert {zone.limit_watts for zone in rapl_zones(server) if zone.kind == "package"} == {120.0}


def test_no_rapl_is_missing_and_nothing_raises(tmp_path: Path) -> None:
    found = Rapl(tmp_path).read(0.0)
    assert {one.why for one in found.values() if isinstance(one, Missing)} == {Why.NOT_SUPPORTED}
    assert len(found) == len(Rapl.provides)


def test_lcs_frequency_is_that_of_its_fastest_cpu(tmp_path: Path) -> None:
    for cpu, kilohertz in ((0, 800_000), (1, 2_600_000), (2, 3_500_000)):
        put(tmp_path / f"devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq", kilohertz)
        put(tmp_path / f"devices/system/cpu/cpu{cpu}/cpufreq/base_frequency", 2_000_000)
    frequency = LcFrequency((0, 1), tmp_path)
    assert frequency.present
    assert frequency.read(0.0) == {"lc_frequency_hertz": Value(2.6e9), "lc_frequency_ratio": Value(1.3)}
    put(tmp_path / "devices/system/cpu/cpu1/cpufreq/scaling_cur_freq", "<unknown>")
    assert frequency.read(1.0)["lc_frequency_hertz"] == Value(0.8e9)
    frequency.close()


def test_amd_tells_base_frequency_elsewhere(tmp_path: Path) -> None:
    put(tmp_path / "devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", 1_000_000)
    bare = LcFrequency((0,), tmp_path)
    assert isinstance(bare.read(0.0)["lc_frequency_ratio"], Missing)
    bare.close()
    put(tmp_path / "devices/system/cpu/cpu0/acpi_cppc/nominal_freq", 2000)
    amd = LcFrequency((0,), tmp_path)
    assert amd.read(0.0)["lc_frequency_ratio"] == Value(0.5)
    amd.close()


def test_a_guest_has_no_frequency(tmp_path: Path) -> None:
    frequency = LcFrequency((0, 1), tmp_path)
    assert not frequency.present
    found = frequency.read(0.0)["lc_frequency_hertz"]
    assert isinstance(found, Missing)
    assert found.why is Why.NOT_SUPPORTED


SAID = """
    Instantaneous power reading:                   220 Watts
    Minimum during sampling period:                 18 Watts
    Maximum during sampling period:                438 Watts
    Average power reading over sample period:      214 Watts
    IPMI timestamp:                           Sun Nov 22 04:00:00 2026
    Sampling period:                          00000001 Seconds.
    Power reading state is:                   activated
"""


def test_free_memory_and_the_hosts_pressure(tmp_path: Path) -> None:
    put(tmp_path / "meminfo", "MemTotal:       16384 kB\nMemFree:         1024 kB\nMemAvailable:    2048 kB")
    put(tmp_path / "pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\nfull avg10=0.00 total=0")
    memory = HostMemorySensor(tmp_path)
    assert memory.read(0.0)["memory_available_bytes"] == Value(2048 * 1024.0)
    put(tmp_path / "pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0.00 total=0")
    assert memory.read(2.0)["host_memory_pressure_ratio"] == Value(0.25)
    memory.close()


def test_a_kernel_without_psi_is_told_as_such(tmp_path: Path) -> None:
    put(tmp_path / "meminfo", "MemTotal: 1 kB")
    found = HostMemorySensor(tmp_path).read(0.0)
    assert {one.why for one in found.values() if isinstance(one, Missing)} == {Why.NOT_SUPPORTED}
    assert len(found) == len(HostMemorySensor.provides)


@pytest.mark.host
def test_this_host_has_memory() -> None:
    memory = HostMemorySensor()
    found = memory.read(time.monotonic())["memory_available_bytes"]
    memory.close()
    assert isinstance(found, Value)
    assert found.value > 1 << 20
