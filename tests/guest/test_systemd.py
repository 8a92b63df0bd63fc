"""Units of a real systemd, adopted by their names by `rlctl.service` as it ships, itself a unit of that systemd.

`scripts/guest --systemd -- python3 -m pytest -q tests/guest/test_systemd.py`
"""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doubles.tick_logs import read_ticks
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = [
    pytest.mark.host,
    pytest.mark.guest,
]

SHIPPED, UNITS = Path(__file__).parents[2] / "configs/deploy", Path("/run/systemd/system")
CGROUP, LOG = Path("/sys/fs/cgroup"), Path("/var/log/rlctl/ticks.jsonl")
KNOBS = ("cpu.max", "cpu.weight", "cpuset.cpus", "cgroup.freeze")
GROUPS = ("system.slice/nginx.service", "batch.slice")
PORT = 8080

NGINX = f"""\
pid /run/nginx.pid;
events {{}}
http {{ server {{ listen 127.0.0.1:{PORT}; access_log off; keepalive_requests 1000000; return 200 "well"; }} }}
"""
CLIENT = f"""
import http.client, time
while True:
    try:
        peer = http.client.HTTPConnection("127.0.0.1", {PORT})
        while True:
            peer.request("GET", "/")
            peer.getresponse().read()
            time.sleep(0.1)
    except OSError:
        time.sleep(0.1)
"""
FILES = {
    # As docs/howto/own-service.md has it: so systemd gives both the files that rlctl writes.
    "batch.slice": "[Slice]\nCPUWeight=100\nAllowedCPUs=0-1\n",
    "batch.service": "[Service]\nSlice=batch.slice\nExecStart=/bin/sh -c 'while :; do :; done'\n",
    "nginx.service.d/guest.conf": "[Service]\nCPUWeight=100\nAllowedCPUs=0-1\n",
    # The emulated processors are many times slower: of the unit as it ships only its limits of time are longer.
    "rlctl.service.d/guest.conf": "[Service]\nTimeoutStartSec=300\nWatchdogSec=120\nTimeoutStopSec=120\nExecStart=\n"
    f"ExecStart={sys.executable} -m rlctl serve --config /etc/rlctl/serve.yaml\nWorkingDirectory={SHIPPED.parents[1]}\n"
    "ProtectHome=read-only\n",
}


def systemctl(*words):
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    if done.returncode:
        told = subprocess.run(
            ["journalctl", "-b", "-n", "40", "-o", "cat"], capture_output=True, text=True, check=False
        )
        raise AssertionError(f"systemctl {' '.join(words)}: {done.stderr}\n{told.stdout}")
    return done.stdout.strip()


def show(unit, name):
    return systemctl("show", unit, "--property", name, "--value")


def knobs():
    return {f"{group}/{knob}": (CGROUP / group / knob).read_text() for group in GROUPS for knob in KNOBS}


def ticks():
    return list(read_ticks(LOG)) if LOG.exists() else []


@contextlib.contextmanager
def requests():
    with subprocess.Popen([sys.executable, "-S", "-c", CLIENT]) as client:
        try:
            yield
        finally:
            client.kill()


@pytest.fixture
def units():
    if Path("/proc/1/comm").read_text().strip() != "systemd":
        pytest.skip("systemd is not the first process here: scripts/guest --systemd")
    for name in ("rlctl.service", "rlctl-restore.service", "rlctl.slice"):
        (UNITS / name).parent.mkdir(parents=True, exist_ok=True)
        (UNITS / name).write_text((SHIPPED / name).read_text())
    for name, text in FILES.items():
        (UNITS / name).parent.mkdir(parents=True, exist_ok=True)
        (UNITS / name).write_text(text)
    Path("/etc/nginx/nginx.conf").write_text(NGINX)
    words = ["init", "--lc", "nginx.service", "--be", "batch.slice", "--target", "500ms"]
    systemctl("daemon-reload")
    systemctl("start", "nginx.service", "batch.service")
    written = subprocess.run([sys.executable, "-m", "rlctl", *words], capture_output=True, text=True, check=False)
    assert written.returncode == 0, written.stderr
    Path("/etc/rlctl").mkdir(exist_ok=True)
    Path("/etc/rlctl/serve.yaml").write_text(written.stdout)
    yield
    systemctl("stop", "rlctl.service", "batch.service", "nginx.service")


def test_units_are_adopted_followed_and_left(units):
    before = knobs()

    def is_watched(since):
        return any(one["ts"] > since and "value" in one["readings"]["tail_latency_seconds"] for one in ticks())

    with requests():
        systemctl("start", "rlctl.service")  # returns at READY, which comes after a shielded tick
        assert (show("rlctl.service", "Type"), show("rlctl.service", "ActiveState")) == ("notify", "active")
        until(lambda: is_watched(0.0))
        assert knobs() != before
        fed = int(show("rlctl.service", "WatchdogTimestampMonotonic"))
        until(lambda: int(show("rlctl.service", "WatchdogTimestampMonotonic")) > fed)
        first = show("nginx.service", "MainPID")
        systemctl("restart", "nginx.service")
        assert show("nginx.service", "MainPID") != first
        restarted = ticks()[-1]["ts"]
        until(lambda: is_watched(restarted + 2.0))
        assert show("rlctl.service", "NRestarts") == "0"
        until(lambda: knobs() != before)
        systemctl("stop", "rlctl.service")
    assert show("rlctl.service", "Result") == "success"
    assert knobs() == before
