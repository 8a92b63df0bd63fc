"""The `resources` section: what may be written, what is said of a host that lacks it, and groups that come later."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlctl.agents.managers.heracles_loops import Bandwidth, Power
from rlctl.config.sections import ResctrlSection, ResourcesSection
from rlctl.config.serve import describe, load_config
from rlctl.envs.errors import CgroupError, ConfigError, HostError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import Journal
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.host.cgroup.restore import restore
from rlctl.envs.host.resources.memory import HostMemorySensor
from rlctl.envs.host.resources.power import LcFrequency, Rapl
from rlctl.envs.host.resources.resctrl import ResctrlMonitor
from rlctl.envs.host.sensors.psi import Psi
from rlctl.envs.telemetry import Telemetry, Value
from rlctl.safety.memory_guards import MemoryBandwidthGuard, MemoryPressureGuard
from rlctl.serve.resources import LOOK_SECONDS, Caretaker, resource_sensors
from tests.doubles.cgroup_kernel import FakeKernel

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{be_memory_high_bytes: 4096}", "be_memory_high_bytes is 4096"),
        ("{be_memory_high_bytes: 4194304, be_memory_max_bytes: 2097152}", "BE would be killed, not slowed"),
        ("{be_io_weight: 0}", "be_io_weight is 0"),
        ("{be_io_weigth: 10}", "did you mean 'be_io_weight'"),
        ("{resctrl: {be_cache_ratio: 20}}", "be_cache_ratio is 20"),
        ("{resctrl: {be_bandwidth_percent: 10, be_bandwidth_megabytes_per_second: 10}}", "exclude each other"),
        ("{lc_memory_low_bytes: 2G}", "lc_memory_low_bytes"),
    ],
)
def test_a_slip_is_told_with_its_line(serve_yaml: Callable[..., Path], text: str, told: str) -> None:
    path = serve_yaml("policy:", f"resources: {text}\npolicy:")
    with pytest.raises(ConfigError, match=told) as caught:
        load_config(path)
    assert caught.value.line == path.read_text().splitlines().index(f"resources: {text}") + 1


def test_nothing_is_set_by_default(serve_yaml: Callable[..., Path]) -> None:
    config = load_config(serve_yaml())
    assert all(value in (None, False) for value in config.resources.model_dump().values())
    lines = describe(config).splitlines()
    assert "resources:  # default" in lines
    assert "  be_memory_high_bytes: null  # default" in lines


class Host:
    """A v2 host with an LC, and BE groups that a test may add to."""

    def __init__(self, folder: Path, kind: str = "v2") -> None:
        self.kernel = FakeKernel(folder, kind)
        self.state = folder / "state"
        self.layout = Layout.detect(self.kernel.root, self.kernel.proc)
        self.journal = Journal.open(self.state, self.kernel.proc)
        self.knobs = Knobs(self.journal, self.kernel)
        if kind == "v2":
            self.kernel.write(self.kernel.root / "cgroup.subtree_control", "+memory +io")
        self.lc, self.be = self.group("web"), [self.group("batch")]

    def group(self, name: str) -> Group:
        group = Group.create(self.layout, name, self.knobs)
        for one in (CgroupController.MEMORY, CgroupController.IO):
            folder = self.layout.mounts[one].path / name
            if not folder.exists():
                self.kernel.make_group(folder)
            group.paths[one] = folder
        return group

    def caretaker(self, **section: Any) -> Caretaker:
        return Caretaker(ResourcesSection(**section), lambda: [self.lc], lambda: tuple(self.be), self.knobs)

    def text(self, name: str, file: str) -> str:
        return (self.kernel.root / name / file).read_text().strip()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_section_is_in_effect_and_comes_back(host: Host) -> None:
    host.caretaker(
        lc_memory_min_bytes=MIB, lc_memory_low_bytes=2 * MIB, be_memory_high_bytes=3 * MIB, be_memory_max_bytes=4 * MIB
    ).begin()
    assert [host.text("web", f"memory.{one}") for one in ("min", "low", "high", "max")] == [
        *(str(MIB), str(2 * MIB)),
        *("max", "max"),
    ]
    assert [host.text("batch", f"memory.{one}") for one in ("min", "low", "high", "max")] == [
        *("0", "0"),
        *(str(3 * MIB), str(4 * MIB)),
    ]
    host.journal.close()
    assert restore(host.state, kernel=host.kernel, proc=host.kernel.proc).ok
    assert host.text("web", "memory.low") == "0"
    assert host.text("batch", "memory.high") == "max"


def test_several_lcs_below_one_parent_get_enough(host: Host) -> None:
    """A parent's protection is all that its children have: twice as much for two."""
    host.kernel.make_group(host.kernel.root / "slice")
    host.kernel.write(host.kernel.root / "slice/cgroup.subtree_control", "+memory")
    lcs = []
    for name in ("slice/web", "slice/cache"):
        host.kernel.make_group(host.kernel.root / name)
        lcs.append(Group(name, {CgroupController.MEMORY: host.kernel.root / name}, host.layout, host.knobs))
    for _ in range(2):
        section = ResourcesSection(lc_memory_low_bytes=2 * MIB)
        Caretaker(section, lambda: lcs, lambda: (), host.knobs).begin()
        assert host.text("slice", "memory.low") == str(4 * MIB)
        assert host.text("slice/cache", "memory.low") == str(2 * MIB)
    host.journal.close()
    assert restore(host.state, kernel=host.kernel, proc=host.kernel.proc).ok
    assert host.text("slice", "memory.low") == "0"


def test_an_lc_that_is_restarted_is_protected_again(host: Host) -> None:
    """systemd removes a service's group with its last process, and the new one protects nothing."""
    caretaker = host.caretaker(lc_memory_low_bytes=2 * MIB)
    caretaker.begin()
    caretaker.read(0.0)
    host.kernel.remove_group(host.kernel.root / "web")
    caretaker.read(LOOK_SECONDS)
    host.kernel.make_group(host.kernel.root / "web")
    assert host.text("web", "memory.low") == "0"
    caretaker.read(2 * LOOK_SECONDS)
    assert host.text("web", "memory.low") == str(2 * MIB)


def test_lc_back_under_another_name_is_protected(host: Host) -> None:
    """As a container does, whose name has its id."""
    caretaker = host.caretaker(lc_memory_low_bytes=2 * MIB)
    caretaker.begin()
    host.lc = host.group("web-2")
    caretaker.read(0.0)
    assert host.text("web-2", "memory.low") == str(2 * MIB)


def test_be_group_that_comes_later_is_bounded_too(host: Host) -> None:
    caretaker = host.caretaker(be_memory_max_bytes=4 * MIB)
    caretaker.begin()
    assert caretaker.read(0.0) == {}
    host.be.append(host.group("batch-2"))
    caretaker.read(1.0)
    assert host.text("batch-2", "memory.max") == str(4 * MIB)
    assert host.text("batch", "memory.max") == str(4 * MIB)


def test_a_limit_that_was_refused_is_tried_again(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A v1 limit below the present use is EBUSY: BE's memory once had none for the whole run, nor an LC protection."""
    write, reasons = host.kernel.write, [errno.EBUSY, errno.EBUSY, errno.EINVAL]

    def refusing(path: Path, text: str) -> None:
        if reasons and path.name.startswith("memory."):
            raise OSError(reasons[0], os.strerror(reasons[0]))
        write(path, text)

    monkeypatch.setattr(host.kernel, "write", refusing)
    caretaker = host.caretaker(be_memory_max_bytes=4 * MIB, lc_memory_low_bytes=MIB)
    caretaker.begin()
    for look in range(4):
        caretaker.read(look * LOOK_SECONDS)
        del reasons[:1]
    assert (host.text("batch", "memory.max"), host.text("web", "memory.low")) == (str(4 * MIB), str(MIB))
    told = [one for one in caplog.messages if "be_memory_max_bytes is not in effect" in one]
    assert len(told) == 2, "once a reason"
    host.kernel.write(host.kernel.root / "batch/memory.max", "max")
    caretaker.read(9 * LOOK_SECONDS)
    assert host.text("batch", "memory.max") == "max", "what another program writes stays"


def test_what_host_lacks_is_one_warning_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    host = Host(tmp_path, "v1")
    section = {"lc_memory_low_bytes": MIB, "be_memory_max_bytes": 4 * MIB, "resctrl": ResctrlSection()}
    with caplog.at_level(logging.WARNING, logger="rlctl"):
        host.caretaker(**section).begin()
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("resources.lc_memory_low_bytes is not in effect: ")
    assert "cgroup v1 protects no memory" in lines[0]
    assert host.text("memory/batch", "memory.limit_in_bytes") == str(4 * MIB), "the rest is in effect"
    with pytest.raises(CgroupError, match=r"resources\.lc_memory_low_bytes: .*\(and resources.strict is set\)"):
        host.caretaker(strict=True, **section).begin()


def test_a_group_that_is_gone_is_no_warning(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    for file in ("memory.high", "memory.max"):
        (host.kernel.root / "batch" / file).unlink()
    host.kernel.remove_group(host.kernel.root / "batch")
    host.caretaker(be_memory_max_bytes=4 * MIB).begin()
    assert not [one for one in caplog.records if "be_memory_max_bytes" in one.getMessage() and "removed" in one.message]


def test_ungathered_tasks_are_tried_again(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once resctrl was off for good after one EMFILE, and newcomers had the whole cache."""
    tried: list[list[int]] = []

    def gather(lc: list[int], be: list[int]) -> int:
        tried.append(be)
        if len(tried) == 2:
            raise CgroupError("tasks: Too many open files")
        return 0

    made = SimpleNamespace(make=lambda: None, gather=gather, divide=lambda *_: None)
    monkeypatch.setattr("rlctl.serve.resources.Classes", lambda knobs: made)
    caretaker = host.caretaker(resctrl=ResctrlSection())
    caretaker.begin()
    for look in range(1, 4):
        caretaker.read(look * LOOK_SECONDS)
    assert len(tried) == 4
    assert len([one for one in caplog.messages if "Too many open files" in one]) == 1


def test_originals_that_cannot_be_journalled_end_the_start(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write whose original is not known could never be taken back."""

    def full(*_: object, **__: object) -> None:
        raise HostError("No space left on device")

    monkeypatch.setattr(Journal, "record", full)
    with pytest.raises(HostError, match="No space left"):
        host.caretaker(be_memory_max_bytes=4 * MIB).begin()
    assert host.text("batch", "memory.max") == "max"


def test_a_dry_run_writes_nothing(host: Host) -> None:
    host.knobs = Knobs(None, host.kernel, dry_run=True)
    host.caretaker(be_memory_max_bytes=4 * MIB, lc_memory_low_bytes=MIB).begin()
    assert host.text("batch", "memory.max") == "max"


def test_every_host_tells_its_free_memory() -> None:
    sensors = resource_sensors(ResourcesSection(dram_peak_bytes_per_second=1e9), (0,))
    names = [sensor.name for sensor in sensors]
    assert names[0] == "host-memory"
    assert "resctrl" in names, "asked for, so that its absence has a reason in the log of ticks"
    for sensor in sensors:
        assert set(sensor.read(0.0)) == set(sensor.provides)
        sensor.close()


def test_managers_and_guards_find_readings_by_name() -> None:
    """One spelling apart and a loop would be off for ever, without a word."""
    provided = {name for one in (HostMemorySensor, Rapl, LcFrequency, ResctrlMonitor, Psi) for name in one.provides}
    readings = {name: Value(0.5) for name in provided}
    assert Bandwidth.read(readings) == Bandwidth(0.5, 0.5)
    assert Power.read(readings) == Power(0.5, 0.5)
    telemetry = Telemetry(0.0, 0.010, counters=readings)
    for guard in (MemoryPressureGuard, MemoryBandwidthGuard):
        assert guard.reading(telemetry) == Value(0.5)
