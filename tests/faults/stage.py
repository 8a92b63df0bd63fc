"""What a faulty run happens on: an LC and a BE group of its own, real processes in both, and a latency source."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import CgroupError, TestbedError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.host.cgroup.values import Quota
from rlctl.envs.host.process import read_task
from rlctl.envs.testbed import leftovers
from rlctl.envs.testbed.janitor import Janitor
from rlctl.envs.testbed.launch import Launcher, Process, find_program
from rlctl.envs.testbed.network.link import TOOLS
from tests.faults.client import ANSWERING, Client, Endpoint
from tests.faults.onlooker import Onlooker
from tests.faults.pace import Pace

BUSY = "while True: pass"
FREE_CPUS = 0.3
"""From this quota on BE counts as freer than safe."""

SETTLED_TICKS = 2.5

TARGET_MILLISECONDS = 1000.0  # far from what the LC takes on a busy machine: only the fault is to be seen
MAX_LOAD_RPS = 400.0

CHECKOUT = Path(__file__).resolve().parents[2]

ORIGINAL_QUOTA = Quota(190_000, 95_000)  # nothing that rlctl or the kernel would come to by itself
SERVICE_WEIGHTS = {1: 10_240, 2: 1000}
BE_WEIGHTS = {1: 16, 2: 2}  # enough to freeze at once, too little to disturb who watches

SETTINGS = ("cpu.*", "cpuset.*", "freezer.*", "cgroup.freeze", "cgroup.subtree_control")
TRANSIENT = ("cpu.pressure", "cgroup.pressure")  # writable, but no settings
WATCHDOG = re.compile(r"watchdog started: pid (\d+)")


_LINKS = itertools.count()


class TooLate(TestbedError):
    """Something that has to happen did not happen in time."""


class Stage:
    """Groups, processes and a latency source; all gone on exit, also after Ctrl-C or a crash.

    Args:
        name: Of its control groups.
        pace: How fast this machine is.
        endpoint: Latency from an endpoint that lies when told to, rather than from a client of the LC.
        hold: How BE is held at the least, `be.hold` of the configuration.
        stop: Ends every wait.

    Attributes:
        lc, be: The groups.
        order: CPUs that BE may be given, safest first.
        limits: As the service has them.
        source: Where latency comes from.
        onlooker: Watches BE.
        be_pids: All processes that BE ever had.
        folder: Configuration, logs and state.
        trigger: File that triggers a fault inside the controller.
        service: The controller that was started last.
        originals: Every setting of both groups before the start, as the kernel prints it.
    """

    def __init__(
        self,
        name: str,
        pace: Pace,
        *,
        endpoint: bool = False,
        hold: str = "freeze",
        stop: threading.Event | None = None,
    ) -> None:
        self.name, self.pace, self._hold = name, pace, hold
        self._stop = stop or threading.Event()
        self.order = tuple(sorted(os.sched_getaffinity(0), reverse=True))
        self.limits = Limits(len(self.order), can_freeze=hold == "freeze")
        self._endpoint = endpoint
        self._stack = contextlib.ExitStack()
        self._services = 0
        self.be_pids: list[int] = []
        self.lc: Group
        self.be: Group
        self.source: Client | Endpoint
        self.onlooker: Onlooker
        self.folder: Path
        self.trigger: Path
        self._janitor: Janitor
        self._be_processes: Launcher
        self.lc_process: Process
        self.service: Service
        self.originals: dict[str, bytes]
        self.link = ""

    def __enter__(self) -> Self:
        """Make all of it.

        Raises:
            TestbedError: A process does not start.
            HostError: Control groups cannot be made.
        """
        with contextlib.ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, stack: contextlib.ExitStack) -> None:
        self._layout, self._knobs = Layout.detect(), Knobs(None)
        stack.callback(self._knobs.close)
        self._janitor = stack.enter_context(Janitor())
        self.folder = self._janitor.make_folder()
        self.trigger = self.folder / "fault"
        self.lc = self._made(f"{self.name}-lc")
        stack.callback(lambda: self.lc.remove())
        self.be = self._made(f"{self.name}-be")
        stack.callback(lambda: self.be.remove())
        self._configure_be()
        self._lc_processes = stack.enter_context(Launcher(self.folder, self.lc, self._janitor))
        self._be_processes = stack.enter_context(Launcher(self.folder, self.be, self._janitor))
        self.source = Endpoint() if self._endpoint else Client(self.folder, self.pace.request_seconds)
        stack.callback(self.source.close)
        answering = [sys.executable, "-I", "-S", "-c", ANSWERING, str(self.folder / "lc")]
        self.lc_process = self._lc_processes.start("lc", answering)
        self._start_be()
        # As the unit's slice has it, configs/deploy/rlctl.slice.
        self._service_group = self._made(f"{self.name}-service")
        stack.callback(self._service_group.remove)
        if self._service_group.cpu is not None:
            self._service_group.cpu.set_weight(SERVICE_WEIGHTS[self._layout.mount(CgroupController.CPU).version])
        self._controllers = stack.enter_context(Launcher(self.folder, self._service_group, self._janitor))
        self.originals = {**settings(self.lc), **settings(self.be)}
        self.onlooker = Onlooker(
            self._layout,
            self.be.name,
            self.order,
            self.pace.poll_seconds,
            lambda: tuple(self.be_pids),
            self._service_group.pids,
        )
        stack.callback(self.onlooker.close)

    def _made(self, name: str) -> Group:
        group = Group.create(self._layout, name, self._knobs)
        self._janitor.note_group(*group.directories)
        return group

    def _configure_be(self) -> None:
        """Settings that are nobody's defaults, to be found again at the end."""
        if self.be.cpu is not None:
            self.be.cpu.set_quota(ORIGINAL_QUOTA)
            self.be.cpu.set_weight(BE_WEIGHTS[self._layout.mount(CgroupController.CPU).version])
        self._give_all_cpus(self.be)

    def _give_all_cpus(self, group: Group) -> None:
        """Literally: a kernel takes no empty cpuset back while tasks run, so that one could not come back as it was."""
        if group.cpuset is not None:
            group.cpuset.set_cpus(self.order)

    def _start_be(self) -> None:
        for number in range(min(len(self.order), self.pace.most_busy)):
            self.be_pids.append(self._be_processes.start(f"be-{number}", [sys.executable, "-I", "-S", "-c", BUSY]).pid)

    def make_link(self) -> str:
        """An interface for BE to be held on; its queues count as originals."""
        self.link = f"rl{os.getpid()}n{next(_LINKS)}"
        _ip("link", "add", self.link, "type", "veth", "peer", "name", f"{self.link}p")
        self._stack.callback(_ip, "link", "del", self.link)
        _ip("link", "set", self.link, "up")
        self.originals |= _queues(self.link)
        return self.link

    @property
    def holds_link(self) -> bool:
        """The interface of `make_link` has rlctl's queues."""
        return bool(self.link) and b"htb" in _queues(self.link)[self.link]

    def changed(self) -> list[str]:
        """Settings of both groups and the link that are not what they were before the start, byte for byte."""
        now = {**settings(self.lc), **settings(self.be), **(_queues(self.link) if self.link else {})}
        return [
            f"{path} is {now.get(path)!r}, was {text!r}"
            for path, text in self.originals.items()
            if now.get(path) != text
        ]

    def remove_be(self) -> None:
        """End BE's processes and remove their group, and with it its originals."""
        self._be_processes.close()
        self.be.remove()
        gone = {str(folder) for folder in self.be.directories}
        self.originals = {path: text for path, text in self.originals.items() if str(Path(path).parent) not in gone}

    def replace_be(self) -> None:
        """Another group of BE's name, busy and without any limit; its originals are those of any new group."""
        twin = self._made(f"{self.name}-twin")
        self._give_all_cpus(twin)
        fresh = settings(twin)
        twin.remove()
        self.remove_be()
        self.be = self._made(self.be.name)
        self._give_all_cpus(self.be)
        self.originals |= {path.replace(twin.name, self.be.name): text for path, text in fresh.items()}
        self._be_processes.group = self.be
        self._start_be()

    def let_escape(self) -> None:
        """Move one busy task of BE out of the groups that hold its CPU time, as a careless program might."""
        task = min(self.be.pids())
        # By its weight it gets its CPU on a busy machine too, or there is nothing to see of it.
        outside = self._layout.mount(CgroupController.CPU).path / f"{self.name}-outside"
        outside.mkdir()
        self._janitor.note_group(outside)
        (outside / "cpu.shares").write_text(str(SERVICE_WEIGHTS[1]))
        for folder in (outside, self._layout.mount(CgroupController.FREEZER).path):
            (folder / "cgroup.procs").write_text(str(task))

    @staticmethod
    def lacks_escape() -> str:
        """Why no task can escape here and still count as BE's; empty if one can."""
        layout = Layout.detect()
        together = layout.mount(CgroupController.FREEZER).path == layout.mount(CgroupController.CPUACCT).path
        return "who leaves a group of cgroup v2 leaves its account too" if together else ""

    def lose_group(self) -> None:
        """Take BE's tasks out of their group in the CPU hierarchy, and remove that."""
        mount = self._layout.mount(CgroupController.CPU).path
        for pid in self.be.pids():
            (mount / "cgroup.procs").write_text(str(pid))
        (mount / self.be.name).rmdir()

    def free_be(self) -> None:
        """Write BE free, as another program might: the quota lifted, all CPUs, thawed."""
        if self.be.cpuset is not None:
            self.be.cpuset.set_cpus(self.order)
        if self.be.cpu is not None:
            with contextlib.suppress(CgroupError):  # it is answered before it is read back
                self.be.cpu.set_quota(Quota(None))
        if self.be.freezer is not None:
            self.be.freezer.order(False)

    def serve(self, config: Mapping[str, object], fault: str = "", path: str = "") -> None:
        """Start `rlctl serve`.

        Args:
            config: Sections that differ.
            fault: What is to fail inside it, see `tests.faults.launcher`.
            path: A folder that its PATH begins with.
        """
        file = self.folder / "serve.yaml"
        file.write_text(json.dumps({**self._config(), **config}, indent=1))
        self.serve_again(fault, path)

    def nest(self, depth: int) -> None:
        """So many groups within BE's own, one within another."""
        mount, name = self._layout.mount(CgroupController.CPU), self.be.name
        for _ in range(depth):
            name = f"{name}/n"
            if (
                mount.version == 2
            ):  # a group with processes gives those below it no controllers, and makes them all the same
                (mount.path / name).mkdir()
            else:
                Group.create(self._layout, name, self._knobs)

    def serve_again(self, fault: str = "", path: str = "") -> None:
        """Start `rlctl serve` with the configuration that is there."""
        self._services += 1
        launcher = ["tests.faults.launcher", fault, str(self.trigger), self.be.name]
        command = ["env", f"PATH={path}{os.pathsep if path else ''}{os.environ['PATH']}", f"PYTHONPATH={CHECKOUT}"]
        command += [sys.executable, "-m", *(launcher if fault else ["rlctl"])]
        command += ["serve", "--config", str(self.folder / "serve.yaml")]
        self.service = Service(self._controllers.start(f"serve-{self._services}", command), self._janitor)

    @property
    def be_config(self) -> dict[str, object]:
        """The section of BE."""
        workloads = [{"kind": "cgroup", "path": f"/{self.be.name}"}]
        return {"workloads": workloads, "cpus": list(self.order), "hold": self._hold}

    def _config(self) -> dict[str, object]:
        return {
            "tick_seconds": self.pace.tick_seconds,
            "lc": {
                "workload": {"kind": "cgroup", "path": f"/{self.lc.name}"},
                "slo": {"target_milliseconds": TARGET_MILLISECONDS, "max_load_rps": MAX_LOAD_RPS},
                "latency": self.source.config,
            },
            "be": self.be_config,
            "policy": {"name": "greedy-shield"},
            "state_directory": str(self.folder / "state"),
            "log": {"directory": str(self.folder / "log")},
            "watchdog": {
                "grace_seconds": self.pace.grace_seconds,
                "restore_after_seconds": self.pace.restore_after_seconds,
            },
        }

    @property
    def free(self) -> bool:
        """BE has more than the safe allocation."""
        found = self.onlooker.latest
        return found is not None and not found.frozen and found.quota_cpus >= FREE_CPUS

    @property
    def safe(self) -> bool:
        """BE has the safe allocation, or less."""
        return self._is_safe(self.onlooker.latest)

    def safe_since(self, seconds: float) -> bool:
        """It had, at some time after this moment, however short that was and however busy this machine is."""
        recent = itertools.takewhile(lambda sample: sample.begun_seconds >= seconds, reversed(self.onlooker.samples))
        return any(self._is_safe(sample.found) for sample in recent)

    def taken_since(self, seconds: float) -> bool:
        """It had the safe quota and CPUs at some time after this moment, its tasks stopped by then or not."""
        recent = itertools.takewhile(lambda sample: sample.begun_seconds >= seconds, reversed(self.onlooker.samples))
        return any(one.found is None or self._is_safe(one.found.but(frozen=True)) for one in recent)

    def _is_safe(self, found: Allocation | None) -> bool:
        return found is None or found.at_most(self.limits.safe)

    @property
    def settled(self) -> bool:
        """BE has had the same for some ticks, and is free."""
        since = time.monotonic() - SETTLED_TICKS * self.pace.tick_seconds
        recent = itertools.takewhile(lambda sample: sample.begun_seconds > since, reversed(self.onlooker.samples))
        return self.free and len({sample.found for sample in recent}) == 1

    def until(self, condition: Callable[[], bool], what: str, seconds: float | None = None) -> None:
        """Wait for something.

        Args:
            condition: True when it has happened.
            what: It, in words.
            seconds: How long it may take; by default the pace's patience.

        Raises:
            TooLate: It did not happen in time.
            TestbedError: It is to stop.
        """
        limit = self.pace.patience_seconds if seconds is None else seconds
        deadline = time.monotonic() + limit
        while not condition():
            if time.monotonic() > deadline:
                raise TooLate(f"not within {limit:.0f} s: {what}; rlctl said: {self.service.process.tail()}")
            self._pause(0.01)

    def await_free(self) -> None:
        """Wait until a tick that leaves BE free is on record: a fault then has the whole of a period before it."""
        while True:
            self.until(lambda: self.free, "BE freer than safe")
            before = self._logged()
            self.until(lambda: self._logged() > before, "another tick")  # noqa: B023 - called before the next round
            if self.free:  # on a busy machine the client may have been too slow in between
                return

    def _logged(self) -> int:
        log = self.folder / "log" / "ticks.jsonl"
        return log.stat().st_size if log.exists() else 0

    def watch(self, ticks: float) -> None:
        """Let so many ticks pass.

        Raises:
            TestbedError: It is to stop.
        """
        self._pause(ticks * self.pace.tick_seconds)

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise TestbedError("interrupted")


def _ip(*words: str) -> None:
    subprocess.run([find_program("ip", TOOLS["ip"]), *words], check=True)


def _queues(link: str) -> dict[str, bytes]:
    """The queueing disciplines of an interface, as tc prints them."""
    shown = subprocess.run(
        [find_program("tc", TOOLS["tc"]), "qdisc", "show", "dev", link], check=True, capture_output=True
    )
    return {link: shown.stdout}


def settings(group: Group) -> dict[str, bytes]:
    """All that a group's files can be told, by path."""
    files = {path for folder in group.directories for pattern in SETTINGS for path in folder.glob(pattern)}
    wanted = (path for path in sorted(files) if path.name not in TRANSIENT and path.stat().st_mode & 0o200)
    return {str(path): path.read_bytes() for path in wanted}


@dataclass(slots=True)
class Service:
    """A running `rlctl serve`.

    Attributes:
        process: Its process.
    """

    process: Process
    _janitor: Janitor

    @property
    def pid(self) -> int:
        """The controller's."""
        return self.process.pid

    @property
    def said(self) -> str:
        """What it and its watchdog have said so far."""
        return self.process.errors.read_text(errors="replace")

    @property
    def watchdog(self) -> int:
        """The present watchdog's pid.

        Raises:
            TestbedError: None has started.
        """
        found = WATCHDOG.findall(self.said)
        if not found:
            raise TestbedError(f"there is no watchdog: {self.process.tail()}")
        pid = int(found[-1])
        self._janitor.note_process(pid)
        return pid

    @property
    def perf(self) -> int:
        """The perf child's pid; 0 if there is none."""
        found = (read_task(one.pid) for one in leftovers.tasks())
        return next((one.tid for one in found if one and (one.name, one.parent) == ("perf", self.pid)), 0)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)
