"""`rlctl serve` on this machine: its own control groups, a busy BE, a clean stop, everything as before."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from rlctl.envs.errors import RlctlError
from rlctl.envs.host.cgroup.layout import Controller, Layout
from rlctl.record import read_ticks

pytestmark = pytest.mark.host

ACTUATORS = (Controller.CPU, Controller.CPUSET, Controller.FREEZER)


@pytest.fixture
def groups():
    """An LC and a BE group in every v1 hierarchy that serve uses, each with a sleeping process: name, BE's folders."""
    mounts = usable_mounts()
    parent = f"rlctl-test-serve-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        for mount in sorted(mounts):
            for name in (parent, f"{parent}/lc", f"{parent}/be"):
                stack.enter_context(a_group(mount / name))
        for name in ("lc", "be"):
            child = stack.enter_context(a_sleeper())
            for mount in mounts:
                (mount / parent / name / "cgroup.procs").write_text(str(child.pid))
        yield parent, {mount / parent / "be" for mount in mounts}
        for mount in mounts:  # a frozen process does not die
            with contextlib.suppress(FileNotFoundError, PermissionError):
                (mount / parent / "be" / "freezer.state").write_text("THAWED")


def usable_mounts():
    layout = Layout.detect()
    try:
        mounts = {layout.mount(name) for name in (*ACTUATORS, Controller.CPUACCT)}
    except RlctlError as error:
        pytest.skip(str(error))
    if os.geteuid() != 0 or {mount.version for mount in mounts} != {1}:
        pytest.skip("needs root and the v1 controllers cpu, cpuacct, cpuset and freezer")
    return {mount.path for mount in mounts}


@contextlib.contextmanager
def a_group(group):
    group.mkdir()
    try:
        for knob in ("cpuset.cpus", "cpuset.mems"):
            if (group / knob).exists():
                (group / knob).write_text((group.parent / knob).read_text())
        yield
    finally:
        wait_for(lambda: removed(group))


def removed(group):
    with contextlib.suppress(OSError):  # EBUSY until the process is gone
        group.rmdir()
    return not group.exists()


@contextlib.contextmanager
def a_sleeper():
    child = subprocess.Popen(["sleep", "60"])
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def knobs(folders):
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares", "cpuset.cpus", "freezer.state")
    return {str(f / name): (f / name).read_text() for f in folders for name in names if (f / name).exists()}


def written(groups, tmp_path, more=""):
    path = tmp_path / "serve.yaml"
    path.write_text(
        f"""
tick_seconds: 0.2
lc:
  workload: {{kind: cgroup, path: /{groups}/lc}}
  slo: {{target_milliseconds: 10, max_load_rps: 100}}
  latency: {{kind: jsonl, path: {tmp_path}/requests.jsonl}}
be:
  workloads: [{{kind: cgroup, path: /{groups}/be}}]
policy: {{name: static}}
state_directory: {tmp_path}/state
log: {{directory: {tmp_path}/log}}
{more}
"""
    )
    return path


def has_ticks(path, count):
    return path.exists() and len(list(read_ticks(path))) >= count


def start(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "rlctl", "serve", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_blind_controller_freezes_be_and_a_signal_puts_everything_back(groups, tmp_path, number):
    parent, folders = groups
    before, ticks = knobs(folders), tmp_path / "log" / "ticks.jsonl"
    process = start("--config", written(parent, tmp_path), "--json")
    try:
        wait_for(lambda: process.poll() is not None or has_ticks(ticks, 3))
        during = knobs(folders)
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "FROZEN" in " ".join(during.values()), "no latency was ever seen, so BE may not run"
    assert knobs(folders) == before
    assert json.loads(out.splitlines()[-1])["event"] == "end"
    assert all(tick["applied"]["frozen"] for tick in read_ticks(ticks))


def test_after_a_crash_restore_puts_everything_back(groups, tmp_path):
    parent, folders = groups
    before, ticks = knobs(folders), tmp_path / "log" / "ticks.jsonl"
    process = start("--config", written(parent, tmp_path, "watchdog: {enabled: false}"))
    wait_for(lambda: process.poll() is not None or has_ticks(ticks, 1))
    process.kill()
    process.communicate(timeout=20)
    assert knobs(folders) != before
    words = [sys.executable, "-m", "rlctl", "restore", "--state", str(tmp_path / "state")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert knobs(folders) == before


def test_after_a_crash_that_nobody_sees_the_watchdog_puts_everything_back(groups, tmp_path):
    parent, folders = groups
    before, ticks = knobs(folders), tmp_path / "log" / "ticks.jsonl"
    process = start("--config", written(parent, tmp_path, "watchdog: {restore_after_seconds: 1}"))
    wait_for(lambda: process.poll() is not None or has_ticks(ticks, 1))
    process.kill()
    assert knobs(folders) != before
    _, err = process.communicate(timeout=20)  # the watchdog has the same stderr, and ends when it is done
    assert knobs(folders) == before, err
    assert not list((tmp_path / "state").glob("journal.jsonl"))


def test_a_hangup_exchanges_who_decides_and_a_mistake_changes_nothing(groups, tmp_path):
    parent, folders = groups
    before, ticks = knobs(folders), tmp_path / "log" / "ticks.jsonl"
    config = written(parent, tmp_path)
    right = config.read_text()
    process = start("--config", config)
    try:
        wait_for(lambda: process.poll() is not None or has_ticks(ticks, 2))
        for text, wanted in (
            (right.replace("static", "statik"), "static"),
            (right.replace("static", "frozen"), "frozen"),
        ):
            config.write_text(text)
            process.send_signal(signal.SIGHUP)
            so_far = len(list(read_ticks(ticks)))
            wait_for(lambda so_far=so_far: process.poll() is not None or has_ticks(ticks, so_far + 3))
            assert list(read_ticks(ticks))[-1]["policy"] == wanted
        process.terminate()
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "not reloaded, all stays as it was" in err
    assert "did you mean 'static'" in err
    assert "reloaded: policy frozen" in err
    assert knobs(folders) == before


def test_a_dry_run_writes_neither_knob_nor_file(groups, tmp_path):
    parent, folders = groups
    before, config = knobs(folders), written(parent, tmp_path)
    process = start("--config", config, "--dry-run", "--duration", "1")
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert "dry run: would set BE" in err
    assert "# default" in err
    assert knobs(folders) == before
    assert list(tmp_path.iterdir()) == [config]


def test_a_group_that_is_not_there_is_75_in_one_line(tmp_path):
    usable_mounts()
    process = start("--config", written("rlctl-test-absent", tmp_path))
    _, err = process.communicate(timeout=20)
    last = err.splitlines()[-1]
    assert process.returncode == 75, err
    assert last.startswith("rlctl: error: ")
    assert "rlctl-test-absent" in last
