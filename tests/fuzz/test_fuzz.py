"""The fuzzer runs, every target takes and refuses inputs, and what broke rlctl once breaks it no more."""

import json
import os
import runpy
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from rlctl.envs.allocation import Limits
from rlctl.envs.errors import CgroupError, ConfigError
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import JOURNAL, Entry, Journal, load
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.cgroup.restore import restore
from rlctl.envs.host.cgroup.values import number, quota_of, table
from rlctl.envs.host.decode import parse_cpus
from rlctl.envs.host.latency.figures import Figures, Reporter
from rlctl.envs.host.latency.prometheus import PrometheusDigest, PrometheusNames
from rlctl.envs.host.probe import probe_machine
from rlctl.envs.host.sensors.cpu import HostCpus, LcAlive
from rlctl.envs.host.sensors.kernel_file import Rate
from rlctl.envs.host.sensors.perf import PerfSensor
from rlctl.envs.host.topology import cpu_order
from rlctl.envs.sim.loads import from_config
from rlctl.envs.telemetry import Missing, Telemetry, Why
from rlctl.envs.testbed.traces import TraceError
from rlctl.envs.workload import SLO
from rlctl.envs.yaml_edge import parse_yaml
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield
from tests.doubles.cgroup_kernel import FakeKernel

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/fuzz"
INPUTS = 30
TARGETS = ("configuration", "bundles", "perf", "latency", "cgroup", "ticklog")


@pytest.mark.parametrize("target", TARGETS)
def test_some_inputs_break_nothing(target, tmp_path):
    out = tmp_path / "out"
    command = [SCRIPT, target, "--inputs", INPUTS, "--json", out, "--keep", tmp_path]
    with patch.object(sys, "argv", [str(word) for word in command]):
        code = runpy.run_path(str(SCRIPT), run_name="fuzz")["main"]()
    found = json.loads(out.read_text())["targets"][target]
    assert (found["findings"], found["inputs"], code) == ([], INPUTS, 0)
    assert found["outcomes"]["accepted"] > 1, "nothing is let in: then nothing behind the door was tried"
    assert INPUTS - found["outcomes"]["accepted"] > 1, "nothing was refused"


@pytest.mark.parametrize("text", ["a: !!int ''", "a: !!float ''", "a: !!timestamp x", "a: !!bool x"])
def test_tag_that_does_not_fit_is_one_line(text):
    with pytest.raises(ConfigError, match="is not valid YAML"):
        parse_yaml(text, "serve.yaml")


def test_number_that_python_cannot_print_is_one_line():
    with pytest.raises(ConfigError, match=r"serve.yaml:2: a number of 5002 digits"):
        parse_yaml(f"a: 1\nb: 0x{'f' * 5000}", "serve.yaml")


def test_a_megabyte_of_brackets_is_refused_at_once():
    with pytest.raises(ConfigError, match="nested too deeply"):
        parse_yaml("[" * (1 << 20), "serve.yaml")


def test_error_is_one_printable_line():
    said = str(ConfigError(f"unknown key 'a\nb\x1b[31m\ud800{'x' * 9000}'; remove it", "serve.yaml", 3))
    assert said.isprintable()
    assert len(said) < 2100
    assert said.startswith("serve.yaml:3: unknown key 'a b?[31m?xxx")
    assert said.endswith("x'; remove it"), "the way out is still told"


@pytest.mark.parametrize("value", [r'"\0"', r'"\ud800"', "!!binary /w=="])
def test_no_text_is_one_line_with_place(value):
    """It was taken, and broke `rlctl config show --json`, or the first opening of the path."""
    with pytest.raises(ConfigError, match=r"serve.yaml:2: bytes, NUL and halves"):
        parse_yaml(f"a: 1\nstate_directory: {value}", "serve.yaml")


@pytest.mark.parametrize(
    "load",
    [
        {"kind": []},
        {"kind": "diurnal", "mean_ratio": "0x1p3", "swing_ratio": 0.3, "period_seconds": 60},
        {"kind": "csv_replay", "path": 5},
    ],
)
def test_load_of_another_type_is_one_line(load):
    with pytest.raises(TraceError, match=r"kind: one of|of another type|a share from 0"):
        from_config(load)


@pytest.mark.parametrize("value", [float("nan"), 10**400])
def test_a_memory_that_cannot_be_is_not_resumed(value):
    limits = Limits(cpus=2)
    shield, telemetry = Shield(load_profile("responsive"), limits), Telemetry(0.0, 1.0)
    memory = Shield(load_profile("responsive"), limits).state
    assert shield.resume(memory, telemetry)
    assert not shield.resume({**memory, "growth-rate": {**memory["growth-rate"], "seen_seconds": value}}, telemetry)


@pytest.mark.parametrize("text", ["1_000", "01", "٣", "+5", "9" * 5000, "", "0x10", "1 2"])
def test_a_number_is_what_a_kernel_prints(text):
    with pytest.raises(CgroupError, match="is no number"):
        number(text, Path("cpu.weight"))
    with pytest.raises(CgroupError, match="no table"):
        table(f"frozen {text}", Path("cgroup.events"))


def test_cpus_in_another_script_are_none():
    with pytest.raises(ValueError, match="no list of CPUs"):
        parse_cpus("0-٣")


@pytest.mark.parametrize(("quota_us", "period_us"), [(0, 100_000), (-5, 100_000), (50_000, 0), (50_000, -1)])
def test_quota_that_cannot_be_is_no_tight_one(quota_us, period_us):
    with pytest.raises(CgroupError, match="is no quota"):
        quota_of(quota_us, period_us, Path("cpu.max"))


@pytest.mark.parametrize(("kind", "name"), [("v1", "cpu.cfs_quota_us"), ("v2", "cpu.max")])
def test_an_actuator_takes_an_absurd_quota_for_none(kind, name, tmp_path):
    kernel = FakeKernel(tmp_path, kind)
    group = Group.create(Layout.detect(kernel.root, kernel.proc), "be", Knobs(None, kernel))
    actuator = BeActuator([group], (1, 0), Limits(cpus=2), Knobs(None, kernel))
    (group.cpu.quota_files[0]).write_text("0 100000\n" if kind == "v2" else "0\n")
    assert group.cpu.quota_files[0].name == name
    assert actuator.read().quota_cpus == float("inf"), "BE is not taken for restricted"


def test_a_list_of_processes_that_is_none(tmp_path):
    (tmp_path / "cgroup.procs").write_text(f"12\n{'9' * 5000}\n")
    alive = LcAlive(tmp_path / "cgroup.procs")
    alive.read(0.0)
    assert alive.pids() == (12,)
    kernel = FakeKernel(tmp_path / "fake", "v2")
    group = Group.create(Layout.detect(kernel.root, kernel.proc), "be", Knobs(None, kernel))
    group.procs_file.write_text("max\n")
    with pytest.raises(CgroupError, match=r"cgroup\.procs: 'max' is no number"):
        group.pids()


def test_group_whose_name_is_no_utf8_is_found(tmp_path):
    kernel = FakeKernel(tmp_path, "v2")
    layout = Layout.detect(kernel.root, kernel.proc)
    Group.create(layout, os.fsdecode(b"b\xe9"), Knobs(None, kernel))
    (kernel.proc / "12").mkdir()
    (kernel.proc / "12/cgroup").write_bytes(b"0::/b\xe9\n")
    assert Group.of_process(layout, 12, Knobs(None, kernel), kernel.proc).exists()


def test_cpu_times_that_are_cut_short_are_missing():
    def times():
        raise TypeError("missing 10 required positional arguments")

    assert isinstance(HostCpus(times, host_cpus=2).read(1.0)["host_cpus"], Missing)


def test_cpu_times_that_are_no_numbers_are_missing():
    times = iter([1.0, float("nan"), 2.0])
    rate = Rate(most=2.0)
    assert all(isinstance(rate.update(now, next(times)), Missing) for now in (1.0, 2.0, 3.0))


def test_a_package_id_that_is_no_text(tmp_path):
    folder = tmp_path / "devices/system/cpu/cpu0/topology"
    folder.mkdir(parents=True)
    (folder.parents[1] / "online").write_text("0\n")
    (folder / "physical_package_id").write_bytes(b"\x80\n")
    assert cpu_order([0], sys=tmp_path) == (0,)


def test_a_bucket_in_another_script_is_none():
    digest = PrometheusDigest(PrometheusNames(histogram="s"), SLO(0.01, 0.95, 480.0))
    said = 's_bucket{le="0.005"} %d\ns_bucket{le="٣"} %d\ns_bucket{le="+Inf"} %d\n'
    digest((said % (0, 0, 0)).encode(), 1.0)
    figures = digest((said % (100, 100, 100)).encode(), 2.0)
    assert figures.tail_seconds <= 0.005


def test_absurd_mounts_and_memory_are_passed_over(tmp_path):
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text("30 1 0:30 / /sys/fs/cgroup/a\\000b rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "cgroups").write_text(f"cpu {'9' * 5000} 1 1\n")
    (tmp_path / "meminfo").write_text(f"MemAvailable: {'9' * 5000} kB\n")
    assert Layout.detect(tmp_path, tmp_path).kind == "none"
    assert "does not say" in str(probe_machine(tmp_path, tmp_path))


def test_figures_without_a_time_are_stale():
    figures = Figures(float("nan"), 1.0, 500, 0.004, 0.0, 300.0, 300.0)
    readings = Reporter("generator", SLO(0.01, 0.95, 480.0), 3.0).readings(figures, 10.0)
    assert all(isinstance(reading, Missing) for reading in readings.values())


def test_count_in_no_time_at_all_is_absurd(tmp_path):
    class Child:
        said = b"5e-324;2400000000;;cycles;lc;812500000;100.00;;\n"

        def read(self):
            said, self.said = self.said, b""
            return said

        def poll(self):
            return None

        def stop(self):
            pass

    (tmp_path / "lc").mkdir()
    sensor = PerfSensor(["lc"], [], tmp_path, events=["cycles"], start=lambda _: Child())
    reading = sensor.read(1.0)["lc_cycles"]
    assert isinstance(reading, Missing)
    assert reading.why is Why.ABSURD


def entry(original="max 100000\n"):
    return Entry(Path("/sys/fs/cgroup/be/cpu.max"), original, (31, 4711))


def test_damaged_journal_line_is_not_put_back(tmp_path):
    with Journal.open(tmp_path) as journal:
        journal.record([entry()])
    path = tmp_path / JOURNAL
    for old, new in ((b"max 100000", b"max 900000"), (b"4711", b"4712"), (b'"crc"', b'"crd"')):
        sound = path.read_bytes()
        header, line = sound.splitlines(keepends=True)
        path.write_bytes(header + line.replace(old, new))
        found = load(tmp_path)
        assert (found.entries, found.unreadable) == ((), (2,))
        path.write_bytes(sound)
    assert load(tmp_path).entries == (entry(),)


def test_journal_with_damaged_header_still_brings_originals_back(tmp_path):
    """It was taken for one of an earlier boot before: nothing came back, and the report said that all was well."""
    kernel = FakeKernel(tmp_path, "v2")
    group = Group.create(Layout.detect(kernel.root, kernel.proc), "be", Knobs(None, kernel))
    with Journal.open(tmp_path / "state", kernel.proc) as journal:
        BeActuator([group], (1, 0), Limits(cpus=2), Knobs(journal, kernel)).apply(Limits(cpus=2).minimum)
    path = tmp_path / "state" / JOURNAL
    path.write_bytes(path.read_bytes().replace(b"1111", b"1112", 1))
    report = restore(tmp_path / "state", kernel=kernel, proc=kernel.proc, patience_seconds=0.0)
    assert group.cpu.quota().quota_us is None
    assert not report.ok, "somebody has to look at it"
    assert "line 1 is unreadable" in str(report)
    with Journal.open(tmp_path / "state", kernel.proc) as journal:
        assert journal.entries, "a controller that starts keeps the originals too"
