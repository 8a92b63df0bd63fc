"""`rlctl doctor` and `rlctl restore`: what is said of a host, and the exit code a script can go by."""

import json
from types import SimpleNamespace

import pytest

from rlctl.cli import main
from rlctl.commands import doctor
from rlctl.envs.host.cgroup import journal, kernel
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.kernel import KernelFiles
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Capability, Layout
from rlctl.envs.host.probe import probe_machine
from tests.doubles.cgroup_kernel import FakeKernel


def capabilities(without=()):
    names = (*doctor.SERVE_NEEDS, "perf cycles")
    return tuple(Capability(name, name not in without, f"reason of {name}", f"use of {name}") for name in names)


@pytest.fixture
def host(monkeypatch):
    """Pretends to be a host that lacks the given capabilities."""

    def lacks(*names):
        monkeypatch.setattr(doctor, "examine", lambda *_, **__: capabilities(names))
        monkeypatch.setattr(doctor, "Layout", SimpleNamespace(detect=lambda: SimpleNamespace(kind="hybrid")))

    return lacks


def test_a_host_that_lacks_only_comforts_can_serve(host, capsys):
    host("perf cycles")
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "no  perf cycles" in out
    assert "reason of perf cycles; disables use of perf cycles" in out


@pytest.mark.parametrize("need", doctor.SERVE_NEEDS)
def test_host_that_lacks_needs_is_1(need, host, capsys):
    host(need)
    assert main(["doctor", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["can_serve"] is False
    assert err == f"rlctl: error: serve cannot run here: {need}: reason of {need}\n"


def test_every_need_is_something_that_doctor_examines(tmp_path):
    names = {capability.name for capability in doctor.examine(tmp_path, proc=tmp_path, sys=tmp_path, cgroup=tmp_path)}
    assert set(doctor.SERVE_NEEDS) <= names


def test_empty_host_is_told_as_such(tmp_path):
    found = {capability.name: capability for capability in probe_machine(tmp_path, tmp_path, tmp_path / "a" / "b")}
    assert not found["several CPUs"].present
    assert not found["free memory"].present
    assert found["state directory"].present
    assert found["state directory"].reason.endswith("can be made")


def test_topology_and_memory_are_read_from_host_tree(tmp_path):
    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    write("devices/system/cpu/online", "0-3\n")
    write("devices/system/cpu/cpu0/topology/thread_siblings_list", "0,2\n")
    write("devices/system/node/online", "0-1\n")
    write("meminfo", "MemTotal: 9 kB\nMemAvailable:  1048576 kB\n")
    write("kernel/sched_ext/state", "enabled\n")
    write("kernel/sched_ext/root/ops", "lavd\n")
    found = {capability.name: capability for capability in probe_machine(tmp_path, tmp_path)}
    assert not found["kernel's scheduler"].present
    assert found["kernel's scheduler"].reason == "replaced by the scheduler lavd"
    assert found["several CPUs"].reason == "4 online"
    assert found["SMT"].reason.startswith("2 threads a core")
    assert found["NUMA"].present
    assert found["free memory"].reason == "1024 MB"


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """A file that a controller changed, and the state directory that remembers it."""
    monkeypatch.setattr(kernel, "group_devices", lambda: frozenset({tmp_path.stat().st_dev}))
    group = tmp_path / "batch"
    group.mkdir()
    knob, state = group / "cpu.cfs_quota_us", tmp_path / "state"
    knob.write_text("10\n")
    with journal.Journal.open(state) as opened:
        opened.record([journal.Entry(knob, "-1\n", KernelFiles().identity(group))])
    return knob, state


@pytest.fixture(autouse=True)
def left_records(tmp_path, monkeypatch):
    """Where testbeds have their records; not this machine's, which others may use."""
    folder = tmp_path / "testbeds"
    monkeypatch.setattr("rlctl.envs.testbed.leftovers.default_state_dir", lambda: folder)
    return folder


def test_dry_restore_tells_what_testbeds_left(left_records, tmp_path, capsys):
    left_records.mkdir()
    record = left_records / "testbed-1-x.jsonl"
    record.write_text('{"boot": "another"}\n')
    assert main(["restore", "--state", str(tmp_path), "--dry-run"]) == 0
    assert capsys.readouterr().out == "would remove what 1 testbeds have left behind\n"
    assert main(["restore", "--state", str(tmp_path), "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["would_clear_testbeds"] == [str(record)]
    assert record.exists()


def test_restore_lists_in_dry_run_and_changes_nothing(changed, capsys):
    knob, state = changed
    assert main(["restore", "--state", str(state), "--dry-run"]) == 0
    assert capsys.readouterr().out == f"would restore {knob} to '-1'\n"
    assert knob.read_text() == "10\n"


def test_after_reboot_restore_has_nothing_to_do(changed, capsys, monkeypatch):
    _, state = changed
    monkeypatch.setattr("rlctl.commands.restore.boot_id", lambda: "another")
    assert main(["restore", "--state", str(state), "--dry-run"]) == 0
    assert "would restore" not in capsys.readouterr().out


def test_second_restore_has_nothing_to_do(changed, capsys):
    knob, state = changed
    assert main(["restore", "--state", str(state), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["restored"] == [str(knob)]
    assert knob.read_text().strip() == "-1"
    assert main(["restore", "--state", str(state)]) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_restore_under_live_controller_is_75_unless_forced(changed, capsys):
    knob, state = changed
    with journal.Journal.open(state):
        assert main(["restore", "--state", str(state)]) == 75
        assert "in use by a running rlctl" in capsys.readouterr().err
        assert knob.read_text() == "10\n"
        assert main(["restore", "--state", str(state), "--force"]) == 0
    assert knob.read_text().strip() == "-1"


def test_restore_takes_the_directory_from_a_configuration(changed, serve_yaml, capsys):
    knob, state = changed
    assert main(["restore", "--config", str(serve_yaml(new=f"state_directory: {state}\n")), "--dry-run"]) == 0
    assert capsys.readouterr().out == f"would restore {knob} to '-1'\n"


def test_restore_without_a_journal_says_where_it_looked(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("rlctl.commands.arguments.STATE_DIR", tmp_path / "none")
    assert main(["restore", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert said == (
        f"no journal in {tmp_path / 'none'}; if the configuration sets state_directory, give --state or --config\n"
    )
    assert main(["restore", "--dry-run", "--state", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"no journal in {tmp_path}\n"


def test_doctor_names_no_command_that_does_not_exist(tmp_path):
    from rlctl.cli import COMMANDS

    found = doctor.examine(tmp_path, proc=tmp_path, sys=tmp_path, cgroup=tmp_path)
    named = {words.split()[0] for one in found for words in one.disables.split("`rlctl ")[1:]}
    assert {name.strip("`") for name in named} <= set(COMMANDS)


@pytest.fixture
def weighs(tmp_path, monkeypatch, host, serve_yaml):
    """Runs doctor on a configuration whose LC and BE are these groups; its exit code."""
    kernel = FakeKernel(tmp_path, "v2")

    def run(lc, be, *others):
        layout = Layout.detect(kernel.root, kernel.proc)
        for name in (lc, be, *others):
            Group.create(layout, name, Knobs(None, kernel))
        host()
        monkeypatch.setattr(doctor, "Layout", SimpleNamespace(detect=lambda: layout))
        config = serve_yaml("path: /web", f"path: /{lc}")
        config.write_text(config.read_text().replace("path: /batch", f"path: /{be}"))
        return main(["doctor", "--config", str(config)])

    return run


def test_doctor_tells_share_that_weights_give(weighs, capsys):
    assert weighs("system/lc", "batch/be") == 0
    assert "yes BE's CPU weight" in (out := capsys.readouterr().out)
    assert "50.00% of a CPU that the LC wants too, 0.99% under `rlctl serve`" in out


def test_doctor_names_group_that_voids_weights(weighs, capsys):
    assert weighs("system/lc", "users/be", "users/shell") == 0
    assert "no  BE's CPU weight" in (out := capsys.readouterr().out)
    assert "users" in out
    assert "set cpu.weight there to 1" in out
