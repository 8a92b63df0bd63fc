"""The real perf of this machine; software events are enough."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlctl.envs.host.probe import probe_host
from rlctl.envs.host.sensors.perf import PerfSensor, perf_root
from rlctl.envs.telemetry import Missing, Value, Why
from tests.waiting import until

pytestmark = pytest.mark.host


@pytest.fixture
def root() -> Iterator[Path]:
    """The cgroup mount that perf uses, with two groups of ours."""
    found = perf_root()
    if found is None or shutil.which("perf") is None:
        pytest.skip("no perf, or no cgroup mount that it could use")
    names = [f"rlctl-test-perf-{os.getpid()}-{role}" for role in ("lc", "be")]
    try:
        for name in names:
            (found / name).mkdir()
    except OSError as error:
        pytest.skip(f"cannot make a group under {found}: {error.strerror}")
    yield found
    for name in names:
        (found / name).rmdir()


def name(role: str) -> str:
    return f"rlctl-test-perf-{os.getpid()}-{role}"


def test_busy_lc_is_counted_idle_be_not(root: Path) -> None:
    sensor = PerfSensor([name("lc")], [name("be")], root, interval_seconds=0.1)
    busy = subprocess.Popen([sys.executable, "-S", "-c", "import time\nwhile True: time.sleep(.001)"])
    try:
        (root / name("lc") / "cgroup.procs").write_text(str(busy.pid))

        def counted() -> bool:
            found = sensor.read(time.monotonic())["lc_context_switches"]
            if isinstance(found, Missing) and found.why is Why.NO_PERMISSION:
                pytest.skip(found.detail)
            return isinstance(found, Value) and found.value > 0.0

        until(counted)
        found = sensor.read(time.monotonic())
        idle = found["be_context_switches"]
        assert isinstance(idle, Missing)
        assert idle.why is Why.NOT_COUNTED
        cpi = found["cpi"]
        assert isinstance(cpi, Value) or cpi.why is not Why.MALFORMED
    finally:
        busy.kill()
        busy.wait()
        sensor.close()


ORPHAN = """
import os, sys
from rlctl.envs.host.sensors.perf_process import PerfChild
child = PerfChild(["perf", "stat", "-j", "-I", "60000", "-a", "-e", "task-clock"])
print(child.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_perf_dies_with_a_controller_that_was_killed(root: Path) -> None:
    """Its interval is a minute, so that it is the kernel that ends it and not a broken pipe."""
    killed = subprocess.run([sys.executable, "-c", ORPHAN], check=False, stdout=subprocess.PIPE, text=True)
    assert killed.returncode == -signal.SIGKILL
    pid = int(killed.stdout)
    deadline = time.monotonic() + 40.0
    while time.monotonic() < deadline and _runs(pid):
        time.sleep(0.02)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # nobody may reap orphans in a container


def test_the_doctor_can_ask_this_host() -> None:
    found = {capability.name: capability for capability in probe_host()}
    assert {"perf task-clock", "PSI", "schedstat", "cyclictest"} <= set(found)
    assert all(capability.reason and capability.disables for capability in found.values())
