"""Real containers of Podman and containerd by their names: adopted, started anew in mid-run, and left as they were.

The LC's latency comes from the kernel, out of the container's own network namespace. Debian: `apt-get install
--no-install-recommends podman containerd runc`.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from rlctl.cli import main
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.containers import CONTAINERD_TASKS, ByContainer, find_container
from tests.doubles.tick_logs import read_ticks
from tests.needs import needs
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.host

LC, BE = f"rlctl-test-{os.getpid()}-web", f"rlctl-test-{os.getpid()}-batch"
PORT = 8080
SERVER = f"""
import contextlib, socket
with socket.create_server(("127.0.0.1", {PORT})) as server:
    while True:
        peer, _ = server.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(ConnectionError):  # a client that was killed
            while peer.recv(64):
                peer.send(b"well")
"""
CLIENT = f"""
import socket, time
peer = socket.create_connection(("127.0.0.1", {PORT}))
while peer.send(b"how are you?") and peer.recv(64):
    time.sleep(0.01)
"""
COMMANDS = {LC: ["/usr/bin/env", "python3", "-c", SERVER], BE: ["/bin/sh", "-c", "while :; do :; done"]}
FOLDERS = ("bin", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "tmp", "usr")
KNOBS = ("cpu.cfs_quota_us", "cpu.shares", "cpuset.cpus", "freezer.state", "cpu.max", "cpu.weight", "cgroup.freeze")


def call(*words, env=None):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, env=env, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"{words[0]} {words[1]}: {done.stderr.strip()[-300:]}")
    return done.stdout.strip()


class Podman:
    """Containers of Podman in a storage of their own, which `podman inspect` finds by the environment."""

    def __init__(self, folder, root):
        storage, engine, image = folder / "storage.conf", folder / "containers.conf", folder / "root.tar"
        storage.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n')
        engine.write_text(
            '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
            '[engine]\ncgroup_manager = "cgroupfs"\nruntime = "runc"\nevents_logger = "file"\n'
        )
        os.environ |= {"CONTAINERS_STORAGE_CONF": str(storage), "CONTAINERS_CONF": str(engine)}
        with tarfile.open(image, "w") as archive:
            archive.add(root, arcname=".")
        call("podman", "import", "--quiet", image, "rlctl-test")
        self._names = []

    def start(self, name):
        self._names.append(name)
        words = ["--name", name, "--network", "none", "--volume", "/usr:/usr:ro", "rlctl-test"]
        call("podman", "run", "--detach", *words, *COMMANDS[name])

    def restart(self, name):
        call("podman", "restart", "--time", "0", name)

    def pid(self, name):
        return int(call("podman", "inspect", "--format", "{{.State.Pid}}", name))

    def close(self):
        for name in self._names:
            subprocess.run(["podman", "rm", "--force", "--time", "0", name], capture_output=True, check=False)


class Containerd:
    """Containers of a containerd of our own, whose tasks lie where any containerd has them."""

    def __init__(self, folder, root):
        self._root, self._socket, self._names = root, folder / "containerd.sock", []
        config = folder / "containerd.toml"
        config.write_text(
            f'version = 2\nroot = "{folder}/containerd"\nstate = "{CONTAINERD_TASKS.parent}"\n'
            f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\naddress = "{self._socket}"\n'
        )
        self._daemon = subprocess.Popen(["containerd", "--config", config], stderr=subprocess.DEVNULL)
        until(self._socket.exists)

    def start(self, name):
        self._names.append(name)
        mount = "type=bind,src=/usr,dst=/usr,options=rbind:ro"
        self._ctr("run", "--detach", "--rootfs", "--mount", mount, self._root, name, *COMMANDS[name])
        # Nobody else sets the loopback of a new network namespace up.
        call("nsenter", "-t", self.pid(name), "-n", "ip", "link", "set", "lo", "up")

    def restart(self, name):
        self._remove(name)
        self.start(name)

    def pid(self, name):
        return int((CONTAINERD_TASKS / "default" / name / "init.pid").read_text())

    def close(self):
        for name in dict.fromkeys(self._names):
            with contextlib.suppress(RuntimeError):
                self._remove(name)
        self._daemon.terminate()
        self._daemon.wait()

    def _remove(self, name):
        self._ctr("task", "kill", "--signal", "SIGKILL", name)
        until(lambda: "RUNNING" not in self._ctr("task", "ls"))
        with contextlib.suppress(RuntimeError):
            self._ctr("task", "rm", name)
        self._ctr("container", "rm", name)

    def _ctr(self, *words):
        return call("ctr", "--address", self._socket, *words)


@pytest.fixture
def root(tmp_path):
    """A root file system of busybox, with this host's /usr to be mounted into it."""
    busybox = shutil.which("busybox") or "/bin/busybox"
    folder = tmp_path / "root"
    for name in FOLDERS:
        (folder / name).mkdir(parents=True)
    for name in ("lib", "lib64"):
        if Path("/", name).is_symlink():
            (folder / name).rmdir()
            (folder / name).symlink_to(f"usr/{name}")
    shutil.copy(busybox, folder / "bin/busybox")
    (folder / "bin/sh").symlink_to("busybox")
    (folder / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    return folder


@pytest.fixture
def runtimes(tmp_path, root):
    """Both; a skip where one is not here, or may not run a container."""
    needs(programs=("podman", "containerd", "ctr", "runc", "busybox", "nsenter", "ip"), cpus=2)
    if any(CONTAINERD_TASKS.glob("*/*")):
        pytest.skip("a containerd runs here already")
    kept, opened = dict(os.environ), []
    try:
        for runtime in (Podman, Containerd):
            opened.append(runtime(tmp_path, root))
        yield opened
    finally:
        for one in opened:
            one.close()
        os.environ.clear()
        os.environ.update(kept)
        for mount in {mount.path for mount in Layout.detect().mounts.values()}:
            for parent in ("libpod_parent", "default"):
                with contextlib.suppress(OSError):
                    (mount / parent).rmdir()


@contextlib.contextmanager
def client_of(pid):
    """Requests to the LC from within its network namespace."""
    words = ["nsenter", "-t", str(pid), "-n", sys.executable, "-c", f"import time\ntime.sleep(0.5)\n{CLIENT}"]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def knobs(name):
    """What rlctl may write of a container, by path."""
    layout = Layout.detect()
    groups = find_container(ByContainer(name=name), layout)
    folders = {mount.path / group.strip("/") for mount in layout.mounts.values() for group in groups}
    files = (folder / knob for folder in folders for knob in KNOBS)
    return {str(file): file.read_text() for file in files if file.exists()}


def ticks(log):
    return list(read_ticks(log)) if log.exists() else []


def is_watched(tick):
    """Its latency is known, and BE may run."""
    return "value" in tick["readings"]["tail_latency_seconds"] and not tick["applied"]["frozen"]


@pytest.mark.parametrize("order", ["podman-lc", "containerd-lc"])
def test_containers_are_followed_and_left_as_they_were(runtimes, tmp_path, order, capsys):
    of_lc, of_be = runtimes if order == "podman-lc" else runtimes[::-1]
    try:
        of_lc.start(LC)
        of_be.start(BE)
    except RuntimeError as error:
        pytest.skip(f"no container may run here: {error}")
    before = {name: knobs(name) for name in (LC, BE)}
    assert all(before.values())
    assert main(["init", "--lc", LC, "--be", BE, "--target", "500ms"]) == 0
    config, log = tmp_path / "serve.yaml", tmp_path / "log"
    places = {"tick_seconds": 0.5, "state_directory": f"{tmp_path}/state", "log": {"directory": str(log)}}
    config.write_text(capsys.readouterr().out + json.dumps(places)[1:-1].replace(', "', '\n"') + "\n")
    serve = subprocess.Popen([sys.executable, "-m", "rlctl", "serve", "--config", str(config)], stderr=subprocess.PIPE)
    try:
        with client_of(of_lc.pid(LC)):
            until(lambda: any(map(is_watched, ticks(log / "ticks.jsonl"))))
            assert knobs(BE) != before[BE], "BE is held"
        restarted = time.time()
        of_lc.restart(LC)
        with client_of(of_lc.pid(LC)):
            until(lambda: any(one["ts"] > restarted + 2 and is_watched(one) for one in ticks(log / "ticks.jsonl")))
            of_be.restart(BE)  # runc starts no container into a frozen group (docs/limits.md)
            until(lambda: knobs(BE) != before[BE])
    finally:
        serve.send_signal(signal.SIGTERM)
        said = serve.communicate(timeout=PATIENCE_SECONDS)[1].decode()
    assert serve.returncode == 0, said
    assert {name: knobs(name) for name in (LC, BE)} == before, said
