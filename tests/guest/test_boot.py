"""What a test can rely on inside the guest: `scripts/guest -- python3 -m pytest -q tests/guest`."""

import os
import secrets
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.waiting import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.host,
    pytest.mark.guest,
]

CGROUP = Path("/sys/fs/cgroup")


def test_controllers_are_there_and_delegated() -> None:
    for name in ("cgroup.controllers", "cgroup.subtree_control"):
        assert {"cpu", "cpuset", "memory", "io", "pids"} <= set((CGROUP / name).read_text().split())


def test_pressure_is_measured() -> None:
    assert Path("/proc/pressure/cpu").read_text().startswith("some avg10=")


def test_two_cpus() -> None:
    assert os.sched_getaffinity(0) == {0, 1}


def test_localhost_resolves_and_answers() -> None:
    with socket.create_server(("localhost", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=PATIENCE_SECONDS).close()


def test_the_emulated_processors_sort() -> None:
    values = np.append(np.random.default_rng(1).uniform(size=54), np.inf)
    assert values[np.argsort(values)].tolist() == sorted(values)


def test_devices_and_writable_folders(tmp_path: Path) -> None:
    Path("/dev/null").write_text("gone")
    with Path("/dev/urandom").open("rb") as stream:
        assert len(stream.read(8)) == 8
    for folder in (tmp_path, Path.home(), Path("/dev/shm"), Path.cwd()):
        (folder / secrets.token_hex(4)).write_text("kept")


@pytest.mark.parametrize("name", ["sh", "sleep", "nproc", "taskset", "env"])
def test_small_programs(name: str) -> None:
    assert shutil.which(name)


def test_child_interpreter_has_the_packages() -> None:
    child = "import gymnasium, hypothesis, numpy, prometheus_client, psutil, pydantic, yaml; print(psutil.cpu_count())"
    answer = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True)
    assert answer.stdout == "2\n"
