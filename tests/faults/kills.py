"""Kills of a live testbed with a link: at each moment of its setup, and what is left of it afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from rlctl.envs.errors import RlctlError, TestbedError
from rlctl.envs.testbed.leftovers import default_state_dir
from rlctl.envs.testbed.namespace import require_tools
from rlctl.envs.testbed.network.link import TOOLS
from rlctl.envs.yaml_edge import configs_folder
from tests.faults.pace import Pace

MARK = "RLCTL_FAULT_MARK"
POLL_SECONDS = 0.01
PROC = Path("/proc")


class Seen:
    """What there is of one `rlctl bench`, seen from outside: all that it started has a mark in its environment.

    Args:
        owner: The process that makes the testbed.
        mark: Value of `MARK` in its environment.
    """

    def __init__(self, owner: int, mark: str) -> None:
        self.owner, self._mark = owner, f"{MARK}={mark}".encode()
        self._own = os.readlink("/proc/self/ns/net")

    def processes(self) -> Iterator[Path]:
        """Directories of /proc; those of processes that have ended have no environment any more."""
        for path in PROC.glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self._mark in (path / "environ").read_bytes():
                    yield path

    def running(self, word: bytes) -> list[Path]:
        """Those that have this in their command line."""
        return [path for path in self.processes() if word in _read(path / "cmdline")]

    def inside(self) -> list[Path]:
        """Those in a namespace of the testbed's."""
        return [path for path in self.processes() if self._strange(path)]

    def linked(self) -> list[Path]:
        """Those that have the link's interface with its classes, or its token bucket, before them."""
        return [path for path in self.inside() if b"uplink:" in _read(path / "net/dev")]

    def classes(self) -> bool:
        """Whether the link has classes now."""
        return any(b" htb " in _asked("nsenter", f"--net={path}/ns/net", "tc", "qdisc") for path in self.linked()[:1])

    def records(self) -> list[Path]:
        """The janitor's, of this owner."""
        return list(default_state_dir().glob(f"testbed-{self.owner}-*.jsonl"))

    def groups(self) -> list[Path]:
        """Control groups that it has recorded."""
        lines = [line for record in self.records() for line in _read(record).splitlines()]
        return [Path(one["group"]) for line in lines if "group" in (one := _parsed(line))]

    def namespaces(self) -> set[str]:
        """All of the testbed's, by their kernel's names."""
        return {space for path in self.processes() if (space := self._strange(path))}

    def _strange(self, path: Path) -> str:
        """The process's network namespace by its kernel's name; empty if it is ours or the process has ended."""
        return "" if (space := _namespace(path)) == self._own else space


@dataclass(frozen=True, slots=True)
class Kill:
    """One row of the matrix.

    Attributes:
        name: For `--only`.
        does: What is done, in a line.
        moment: Whether it has come.
        keeper: The testbed's keeper is left alone, and clears; else it is killed too, and `rlctl restore` clears.
    """

    name: str
    does: str
    moment: Callable[[Seen], object]
    keeper: bool = True

    def lacks(self) -> str:
        """Why it cannot be here; empty if it can."""
        try:
            require_tools(TOOLS)
        except RlctlError as error:
            return str(error)
        missing = [name for name in ("memcached", "cc") if shutil.which(name) is None]
        return f"{' and '.join(missing)} not installed" if missing else ""

    def tried(self, pace: Pace, stop: threading.Event) -> tuple[float, str]:
        """Seconds until nothing was left, and what that was.

        Raises:
            TestbedError: The moment never came, or something stays.
        """
        mark = f"{os.getpid()}-{self.name}"
        with tempfile.TemporaryDirectory() as folder:
            words = ("bench", "--scenario", str(_scenario(Path(folder))), "--managers", "htb", "--repeats", "1")
            with (Path(folder) / "bench.err").open("wb") as errors:
                process = subprocess.Popen(
                    [sys.executable, "-m", "rlctl", *words, "--duration", "30"], env={**os.environ, MARK: mark},
                    stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True,
                )  # fmt: skip
            seen = Seen(process.pid, mark)
            try:
                _until(lambda: process.poll() is not None or self.moment(seen), pace, stop, f"{self.does}: never")
                if process.poll() is not None:
                    raise TestbedError(f"it ended first: {_read(Path(folder) / 'bench.err')[-200:].decode()}")
                return self._killed(process, seen, Path(folder), pace, stop)
            finally:
                process.kill()
                process.wait()

    def _killed(
        self, process: subprocess.Popen[bytes], seen: Seen, state: Path, pace: Pace, stop: threading.Event
    ) -> tuple[float, str]:
        # What is made from here until the kill is in none of these lists; its processes have the mark.
        groups, namespaces, count = seen.groups(), seen.namespaces(), len(list(seen.processes()))
        for keeper in () if self.keeper else seen.running(b"leftovers.py"):
            os.kill(int(keeper.name), signal.SIGKILL)
        process.kill()
        process.wait()
        at = time.monotonic()
        if not self.keeper:
            subprocess.run([sys.executable, "-m", "rlctl", "restore", "--state", str(state)], check=True,
                           capture_output=True)  # fmt: skip

        def left() -> list[str]:
            populated = {_namespace(path) for path in PROC.glob("[0-9]*")} & namespaces
            there = [str(path) for path in (*seen.processes(), *groups, *seen.records()) if path.exists()]
            astray = [name for name in ("uplink", "client", "host") if f" {name}:" in (PROC / "net/dev").read_text()]
            return [*there, *populated, *astray]

        _until(lambda: not left(), pace, stop, f"left after {self.does}", left)
        there = f"{count} processes, {len(namespaces)} namespaces, {len(groups)} groups"
        return time.monotonic() - at, f"gone: {there}"


def _until(
    condition: Callable[[], object], pace: Pace, stop: threading.Event, why: str, left: Callable[[], object] = str
) -> None:
    deadline = time.monotonic() + pace.patience_seconds
    while not condition():
        if stop.is_set() or time.monotonic() > deadline:
            raise TestbedError(f"{why} {left()}")
        time.sleep(POLL_SECONDS)


def _scenario(folder: Path) -> Path:
    """live-network with a maximum load that is not searched."""
    data = yaml.safe_load((configs_folder("scenarios") / "live-network.yaml").read_text())
    data["knee"] = {"start_rps": 500, "step_rps": 100, "top_rps": 500}
    path = folder / "network.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def _namespace(path: Path) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(path / "ns/net")
    return ""


def _read(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


def _parsed(line: bytes) -> dict[str, str]:
    with contextlib.suppress(ValueError):  # half a line, as it is being written
        return dict(json.loads(line))
    return {}


def _asked(*command: str) -> bytes:
    return subprocess.run(command, capture_output=True, check=False).stdout


KILLS: tuple[Kill, ...] = (
    Kill("testbed-groups", "SIGKILL to a testbed that has its control groups", Seen.groups),
    Kill("testbed-namespace", "SIGKILL to a testbed that has its first namespace", Seen.inside),
    Kill("testbed-link", "SIGKILL to a testbed that has its veth pair", Seen.linked),
    Kill("testbed-service", "SIGKILL to a testbed whose LC has begun", lambda seen: seen.running(b"memcached\0")),
    Kill("testbed-upload", "SIGKILL to a testbed whose BE uploads", lambda seen: seen.running(b"uploader.py")),
    Kill("testbed-classes", "SIGKILL to a testbed whose link has HTB's classes", Seen.classes),
    Kill("testbed-both", "SIGKILL to a testbed and its keeper; rlctl restore", Seen.linked, keeper=False),
)  # fmt: skip
"""In the order of a testbed's setup."""
