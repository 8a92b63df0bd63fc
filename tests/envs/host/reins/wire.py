"""Two network namespaces with a wire between them, and who sends over it: `python wire.py KIND PORT MBIT SECONDS`."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

HERE, THERE = "169.254.79.1", "169.254.79.2"
GATEWAY, POD = "10.88.0.1", "10.88.0.2"
LC_PORT, BE_PORT = 9001, 9002
NAME = "wire"


@dataclass
class Wire:
    """This side with the interface `wire`, and the other side, which takes all that comes; each held by a process."""

    here: subprocess.Popen[bytes]
    sink: subprocess.Popen[bytes]

    def run(self, command: str) -> str:
        """Run a command on this side; what it prints."""
        inside = ["nsenter", f"--net=/proc/{self.here.pid}/ns/net", *command.split()]
        env = {**os.environ, "PATH": f"/usr/sbin:/usr/bin:{os.environ['PATH']}"}  # before busybox, which has less
        return subprocess.run(inside, check=True, capture_output=True, text=True, env=env).stdout

    @contextlib.contextmanager
    def sending(self, kind: str, port: int, mbit: float, groups: Iterable[Path] = ()) -> Iterator[int]:
        """Somebody on this side who sends: `tcp`, `udp` or `sendfile`, at most so much; its process, once it does."""

        def enter() -> None:
            for group in groups:
                (group / "cgroup.procs").write_text(str(os.getpid()))

        inside = [
            "nsenter",
            f"--net=/proc/{self.here.pid}/ns/net",
            sys.executable,
            __file__,
            kind,
            str(port),
            str(mbit),
        ]
        with subprocess.Popen(inside, preexec_fn=enter, stdout=subprocess.PIPE) as sender:
            try:
                assert sender.stdout is not None
                sender.stdout.readline()
                yield sender.pid
            finally:
                sender.kill()

    @contextlib.contextmanager
    def pod(self, groups: Iterable[Path]) -> Iterator[Wire]:
        """A network namespace beyond this side, which passes its packets on, with a process in these groups."""
        with _side("sleep", "600") as holder:
            pod = Wire(holder, self.sink)
            for group in groups:
                (group / "cgroup.procs").write_text(str(holder.pid))
            self.run("sysctl -qw net.ipv4.ip_forward=1")
            self.run(f"ip link add pod0 type veth peer name eth0 netns {holder.pid}")
            self.run(f"ip address add {GATEWAY}/30 dev pod0")
            self.run("ip link set pod0 up")
            pod.run(f"ip address add {POD}/30 dev eth0")
            pod.run("ip link set eth0 up")
            pod.run(f"ip route add default via {GATEWAY}")
            Wire(self.sink, self.here).run(f"ip route add {POD}/32 via {HERE}")
            yield pod
            Wire(self.sink, self.here).run(f"ip route del {POD}/32")
            self.run("ip link del pod0")


@contextlib.contextmanager
def wire() -> Iterator[Wire]:
    """The two sides, gone at the end with all that stands on them."""
    with _side("sleep", "600") as here, _side(sys.executable, __file__, "take") as there:
        made, other = Wire(here, there), Wire(there, here)
        made.run("ip link set lo up")
        made.run(f"ip link add {NAME} type veth peer name far netns {there.pid}")
        made.run(f"ip address add {HERE}/30 dev {NAME}")
        made.run(f"ip link set {NAME} up")
        other.run(f"ip address add {THERE}/30 dev far")
        other.run("ip link set far up")
        assert there.stdout is not None
        there.stdout.readline()
        yield made


@contextlib.contextmanager
def _side(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["unshare", "--net", "--", *command], stdout=subprocess.PIPE) as process:
        try:
            while os.readlink(f"/proc/{process.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
                time.sleep(0.01)
            yield process
        finally:
            process.kill()


def take() -> None:
    """Accept and forget whatever comes, once the wire is there."""
    while True:
        with contextlib.suppress(OSError), socket.create_server((THERE, 0)):
            break
        time.sleep(0.01)
    for port in (LC_PORT, BE_PORT):
        server = socket.create_server((THERE, port))
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind((THERE, port))
        threading.Thread(target=_forget, args=(datagrams,), daemon=True).start()
        threading.Thread(target=_accept, args=(server,), daemon=True).start()
    print("ready", flush=True)
    time.sleep(600)


def _accept(server: socket.socket) -> None:
    while True:
        threading.Thread(target=_forget, args=(server.accept()[0],), daemon=True).start()


def _forget(source: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while source.recv(1 << 18) or source.type == socket.SOCK_DGRAM:
            pass


def send(kind: str, port: int, mbit: float) -> None:
    """Send for ever, at most so many Mbit/s; 0: all that goes."""
    way = socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM
    connection = socket.socket(socket.AF_INET, way)
    connection.connect((THERE, port))
    print("sends", flush=True)
    data, began, sent = bytes(1400 if kind == "udp" else 1 << 16), time.monotonic(), 0
    file = os.memfd_create("data")
    os.truncate(file, 1 << 20)
    while True:
        if mbit and sent * 8e-6 > mbit * (time.monotonic() - began):
            time.sleep(0.001)
        elif kind == "sendfile":
            sent += os.sendfile(connection.fileno(), file, 0, 1 << 20)
        else:
            with contextlib.suppress(ConnectionRefusedError, BlockingIOError):
                sent += connection.send(data)


if __name__ == "__main__":
    if sys.argv[1] == "take":
        take()
    else:
        send(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
