"""What is said of a host before its first tick: what cannot be controlled, what cannot be read, what is not there."""

import logging
import os
import shutil
import threading
from dataclasses import replace

import pytest
from pydantic import ValidationError

from rlctl.cli import main
from rlctl.config.serve import OwnershipSection, load_config
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import ConfigError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import Journal, load
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.host.cgroup.ownership import Foreign
from rlctl.envs.host.cgroup.restore import restore
from rlctl.envs.host.cgroup.values import Quota
from rlctl.envs.host.sensors import of_groups
from rlctl.envs.host.sensors.of_groups import NO_CPUACCT, absent_readings, group_sensors
from rlctl.envs.workload import Weight
from rlctl.serve import workloads
from rlctl.serve.announce import lacking, tell_absent
from rlctl.serve.build import _Originals, build_live, unwritable
from rlctl.serve.dry_run import DryRun
from rlctl.serve.workloads import Workloads, raise_if_overlapping, why_uncontrolled
from tests.doubles.cgroup_kernel import FakeKernel
from tests.doubles.host import FakeHost
from tests.waiting import until

ACTUATORS = (CgroupController.CPU, CgroupController.CPUSET, CgroupController.FREEZER)


@pytest.fixture
def v1(tmp_path):
    kernel = FakeKernel(tmp_path, "v1")
    return Layout.detect(kernel.root, kernel.proc), Knobs(None, kernel)


def with_only(v1, *controllers):
    layout, knobs = v1
    whole = Group.create(layout, "walk-be", knobs)
    return Group("walk-be", {one: whole.paths[one] for one in controllers}, layout, knobs)


def test_be_group_with_quota_only_is_told(v1):
    layout, _ = v1
    said = why_uncontrolled(with_only(v1, CgroupController.CPU), layout)
    assert said.startswith(
        "BE group /walk-be has no freezer and no cpuset group: "
        "BE cannot be suspended or confined to CPUs; the quota is all there is ("
    )
    assert "freezer/walk-be" in said
    assert "\n" not in said


@pytest.mark.parametrize(("be", "code"), [("walk", 78), ("other", 0), ("absent", 0)])
def test_config_check_refuses_be_that_holds_lc(v1, be, code, serve_yaml, monkeypatch, capsys):
    layout, knobs = v1
    for name in ("walk", "walk/web", "other"):
        Group.create(layout, name, knobs)
    monkeypatch.setattr(workloads.Layout, "detect", lambda: layout)
    monkeypatch.setattr(workloads, "Knobs", lambda *_, **__: knobs)
    path = serve_yaml("path: /batch", f"path: /{be}")
    path.write_text(path.read_text().replace("path: /web", "path: /walk/web"))
    assert main(["config", "check", str(path)]) == code
    assert ("overlap: what limits one limits both" in capsys.readouterr().err) is (code == 78)


def test_be_that_holds_rlctl_itself_is_refused(v1):
    """Over one ssh connection `make &` and rlctl share a group: rlctl froze itself, its watchdog and the shell."""
    layout, knobs = v1
    web, batch = (Group.create(layout, name, knobs) for name in ("web", "batch"))
    procs = batch.directories[0] / "cgroup.procs"
    procs.write_text(f"{os.getpid()}\n")
    with pytest.raises(ConfigError, match="holds rlctl itself"):
        raise_if_overlapping([web], [batch])
    procs.write_text("4242\n")
    raise_if_overlapping([web], [batch])
    (web.directories[0] / "cgroup.procs").write_text("4242\n")
    with pytest.raises(ConfigError, match="process 4242 of an LC"):
        raise_if_overlapping([web], [batch])


def test_be_group_that_has_everything_is_not_mentioned(v1):
    assert why_uncontrolled(with_only(v1, *ACTUATORS), v1[0]) == ""


def test_dry_run_claims_only_what_is_controlled():
    host = FakeHost(Limits(cpus=2))
    host.controls = {"cpu"}
    plant = DryRun(host)
    assert plant.apply(Allocation(0.5, 1, frozen=True)) == Allocation(0.5, 2)


def test_groups_beyond_perf_have_no_counters_and_say(v1, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(of_groups, "perf_root", lambda: tmp_path / "perf_event")
    lc = with_only(v1, CgroupController.CPU)
    assert of_groups.perf_sensors(lc, [lc], 1.0) == []
    assert "neither the LC nor BE has a group below" in caplog.text


def test_readings_that_never_come_have_their_reason(v1, always, caplog):
    lc = with_only(v1, CgroupController.CPU)
    absent = absent_readings(lc, [lc], group_sensors(lc, [lc]), perf=False)
    assert absent["lc_cpus"] == f"the LC {NO_CPUACCT}"
    assert absent["lc_pressure_ratio"] == "the LC has no cgroup2 group"
    assert "host_cpus" not in absent
    assert all(absent.values())
    policy = always(lambda o: o.current)
    policy.needs = ("lc_cpus", "host_cpus")
    with caplog.at_level(logging.INFO, "rlctl.serve"):
        tell_absent(absent)
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    assert list(lacking(policy, absent)) == [f"policy always needs lc_cpus, which is missing: the LC {NO_CPUACCT}"]


def test_dry_run_knows_what_user_may_not_write(serve_yaml, monkeypatch, v1):
    layout, knobs = v1
    Group.create(layout, "batch", knobs)
    monkeypatch.setattr("rlctl.serve.build.Layout.detect", lambda: layout)
    monkeypatch.setattr("rlctl.serve.build.os.access", lambda path, _: "cfs_quota" not in str(path))
    assert [path.name for path in unwritable(load_config(serve_yaml()))] == ["cpu.cfs_quota_us"]


def test_dry_run_says_all_and_writes_nothing(serve_yaml, monkeypatch, v1, caplog):
    """The whole command over a captured tree: what lacks, what is missing, why BE stays, and what root is for."""
    layout, knobs = v1
    for name in ("web", "batch"):
        Group.create(layout, name, knobs)
    for controller in (CgroupController.CPUSET, CgroupController.FREEZER):
        shutil.rmtree(layout.mounts[controller].path / "batch")
    shutil.rmtree(layout.mounts[CgroupController.CPUSET].path / "web")
    root = layout.mounts[CgroupController.CPU].path.parent
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    monkeypatch.setattr("rlctl.serve.build.Layout.detect", lambda: layout)
    monkeypatch.setattr("rlctl.serve.build.os.access", lambda *_: False)
    monkeypatch.setattr("rlctl.serve.service.os.geteuid", lambda: 1000)
    monkeypatch.setattr("rlctl.commands.serve.log_to_stderr", lambda _: None)
    caplog.set_level(logging.INFO, logger="rlctl")
    path = serve_yaml("lc:\n", "tick_seconds: 0.05\nlc:\n")
    assert main(["serve", "--config", str(path), "--dry-run", "--duration", "0.15"]) == 0
    lines = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("BE group /batch has no freezer and no cpuset group") for line in lines)
    assert any("LC lc: its CPUs are not known, without a cpuset and a process" in line for line in lines), lines
    assert any("lc_pressure_ratio (the LC has no cgroup2 group)" in line for line in lines), lines
    assert any(line.startswith("no latency: /nowhere/access.log: No such file") for line in lines)
    assert lines[-1].startswith("would need root: user id 1000 may not write ")
    assert not any("frozen" in line and line.startswith(("BE ", "dry run: would set")) for line in lines)
    assert "dry run: would set quota of batch to 0.01 CPU" in lines
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


@pytest.fixture
def found(serve_yaml, v1):
    """The workloads, with this process as an LC that has no cpuset, as services of systemd are."""
    layout, knobs = v1
    for name in ("web", "batch"):
        Group.create(layout, name, knobs)
    shutil.rmtree(layout.mounts[CgroupController.CPUSET].path / "web")
    (layout.mounts[CgroupController.CPU].path / "web/cgroup.procs").write_text(f"{os.getpid()}\n")
    return Workloads.find(load_config(serve_yaml()), layout, knobs, make=False)


def test_lc_without_cpuset_has_its_processes_cpus(found):
    """Taken for one CPU their maximum load came out far too small."""
    assert found.lc_cpus() == (tuple(sorted(os.sched_getaffinity(0))), True)


def test_lc_that_pins_threads_has_all_their_cpus(found):
    """HAProxy and Seastar do: by the first thread alone BE came first to where the others run."""
    allowed, done = os.sched_getaffinity(0), threading.Event()
    first, last = min(allowed), max(allowed)
    thread = threading.Thread(target=lambda: (os.sched_setaffinity(0, {last}), done.wait()))
    try:
        thread.start()
        os.sched_setaffinity(0, {first})
        until(lambda: os.sched_getaffinity(thread.native_id) == {last})
        assert {first, last} <= set(found.lc_cpus()[0])
    finally:
        os.sched_setaffinity(0, allowed)
        done.set()
        thread.join()


def test_cpu_limit_of_lc_bounds_what_it_bears(serve_yaml, monkeypatch, v1):
    """`docker --cpus=2` on a large host: the load gate waited for a load that could never come."""
    layout, knobs = v1
    for name in ("web", "batch"):
        Group.create(layout, name, knobs)
    Group.open(layout, "web", knobs).cpu.set_quota(Quota.of_cpus(0.5))
    monkeypatch.setattr("rlctl.serve.build.Layout.detect", lambda: layout)
    (learned,) = build_live(load_config(serve_yaml(", max_load_rps: 480", "")), dry_run=True).learned
    assert learned.lc_cpus == 0.5


def test_no_cpu_is_bes_while_lcs_are_unknown(serve_yaml, monkeypatch, v1, caplog):
    """An LC that starts after rlctl: all of them were, and `feedforward` asked for everything."""
    layout, knobs = v1
    for name in ("web", "batch"):
        Group.create(layout, name, knobs)
    shutil.rmtree(layout.mounts[CgroupController.CPUSET].path / "web")
    monkeypatch.setattr("rlctl.serve.build.Layout.detect", lambda: layout)
    host = build_live(load_config(serve_yaml()), dry_run=True)
    assert (host.limits.exclusive_cpus, host.lc_cpus_known) == (0, False)
    assert "nothing that is learned of the host is kept; set its cpus" in caplog.text
    host.close()


def test_groups_that_the_configuration_selects_are_followed(serve_yaml, monkeypatch, v1):
    layout, knobs = v1
    for name in ("web", "batch-1"):
        Group.create(layout, name, knobs)
    monkeypatch.setattr("rlctl.serve.build.Layout.detect", lambda: layout)
    host = build_live(load_config(serve_yaml("path: /batch", 'path: "/batch-*"')), dry_run=True)
    host.read()
    assert host.events() == ()
    monkeypatch.setattr("rlctl.envs.host.following.LOOK_SECONDS", 0.0)
    Group.create(layout, "batch-2", knobs)
    host._follow(float("inf"))
    assert host.events() == ("group-appeared: BE group batch-2 has appeared: safe first, then its share",)
    host.close()


def test_foreign_write_is_answered_as_section_says():
    assert OwnershipSection().foreign is Foreign.REASSERT
    assert OwnershipSection(foreign="alarm").foreign is Foreign.ALARM
    for wrong in ({"foreign": "fight"}, {"most_backoff_seconds": 0}, {"other": 1}):
        with pytest.raises(ValidationError):
            OwnershipSection(**wrong)


@pytest.mark.parametrize(
    ("inherited", "applied", "freed"), [(True, False, False), (True, True, True), (False, False, True)]
)
def test_early_failure_sets_no_predecessors_be_free(tmp_path, monkeypatch, inherited, applied, freed):
    """Such as one whose port is taken."""
    put_back = []
    monkeypatch.setattr(_Originals, "_put_back", lambda self: put_back.append(self))
    originals = _Originals(tmp_path)
    originals.inherited = inherited
    with originals:
        if applied:
            originals.begin()
    assert bool(put_back) is freed


def restricted(layout, knobs, name):
    """A group as a crashed controller's watchdog holds it."""
    group = Group.create(layout, name, Knobs(None, knobs.kernel), also=(CgroupController.MEMORY,)).using(knobs)
    group.cpu.set_quota(Quota.of_cpus(0.5))
    group.freezer.order(True)
    group.cpu.set_weight(Weight.MINIMUM)
    return group


@pytest.fixture
def successor(serve_yaml, monkeypatch, tmp_path):
    """The host of a start after a crash, and the two groups that were BE then; only the second one is still."""
    kernel, state = FakeKernel(tmp_path, "v1", cpus=1), tmp_path / "state"
    layout = Layout.detect(kernel.root, kernel.proc)
    with Journal.open(state) as journal:
        groups = [restricted(layout, Knobs(journal, kernel), name) for name in ("web", "batch")]
    monkeypatch.setattr("rlctl.serve.build.Layout.detect", lambda: layout)
    for user in ("knobs", "restore"):
        monkeypatch.setattr(f"rlctl.envs.host.cgroup.{user}.KernelFiles", lambda: kernel)
    config = load_config(serve_yaml(", max_load_rps: 480", "")).model_copy(update={"state_directory": state})
    return build_live(config), *groups


def test_successor_frees_group_that_is_be_no_more(successor, tmp_path):
    """It stayed frozen for as long as the successor ran, be it the LC by now."""
    host, web, batch = successor
    (learned,) = host.learned
    host.close()
    assert learned.lc_cpus == 1.0, "of its own quota, not of the one that held it"
    assert (web.freezer.is_ordered(), web.cpu.quota().quota_us) == (False, None)
    assert (batch.freezer.is_ordered(), batch.cpu.quota().cpus) == (True, 0.5)
    assert batch.cpu.weight() == web.cpu.weight() > 2, "which a run without a weight of its own never writes"
    kept = {entry.path.parent.name for entry in load(tmp_path / "state").entries}
    assert kept == {"web", "batch"}, "the watchdog may yet freeze it again"


def test_freed_group_is_its_own_from_then_on(successor, tmp_path):
    """Weeks later an operator has set it, and it may be the LC; a second crash must not put it back once more."""
    host, web, batch = successor
    host.apply(host.limits.safe)
    assert {entry.path.parent.name for entry in load(tmp_path / "state").entries} == {"batch"}
    web.cpu.set_quota(Quota.of_cpus(0.25, 100_000))
    host.close()
    assert web.cpu.quota().cpus == 0.25
    assert (batch.freezer.is_ordered(), batch.cpu.quota().quota_us) == (False, None)


def test_nothing_of_be_nor_lc_protection_is_freed(serve_yaml, tmp_path):
    kernel = FakeKernel(tmp_path, "v2")
    layout, originals = Layout.detect(kernel.root, kernel.proc), _Originals(tmp_path / "state")
    with originals.journal as journal:
        knobs = Knobs(journal, kernel)
        groups = {name: restricted(layout, knobs, name) for name in ("web", "jobs", "jobs/1", "jobs/1/app", "jobs/2")}
        low = groups["web"].paths[CgroupController.MEMORY] / "memory.low"
        knobs.write(low, "4096")
        schemata = tmp_path / "resctrl/rlctl-lc/schemata"
        schemata.parent.mkdir(parents=True)
        for file, text in ((schemata, "L3:0=ff\n"), (schemata.with_name(".identity"), "99")):
            file.write_text(text)
        knobs.remember([schemata])
        found = Workloads.find(load_config(serve_yaml("path: /batch", 'path: "/jobs/*"')), layout, knobs, make=False)
        ((workload, be),) = found.each_be
        originals.free_others(replace(found, each_be=[(workload, be[:1])]), kernel)  # the second one was not seen
    assert [one.name for one in be] == ["jobs/1", "jobs/2"]
    assert [name for name, group in groups.items() if not group.freezer.is_ordered()] == ["web"]
    assert low.read_text() == "4096\n"
    assert not schemata.exists(), "the LC once kept half of the cache where `resources.resctrl` was taken out"


def test_writes_beside_forced_restore_are_put_back(tmp_path, monkeypatch, caplog):
    """Without a watchdog nobody tells the loop: BE kept its last settings, which the next start took for originals."""
    caplog.set_level(logging.INFO, logger="rlctl")
    kernel, state = FakeKernel(tmp_path, "v1"), tmp_path / "state"
    monkeypatch.setattr("rlctl.envs.host.cgroup.restore.KernelFiles", lambda: kernel)
    with _Originals(state) as originals:
        group = restricted(Layout.detect(kernel.root, kernel.proc), Knobs(originals.journal, kernel), "batch")
        assert restore(state, force=True).ok
        assert not group.freezer.is_ordered()
        group.freezer.order(True)
    assert not group.freezer.is_ordered()
    assert "the journal is gone" in caplog.text
