"""`rlctl serve` as a process of its own, on this host, beside nginx under light load and BE that takes what is left."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlctl.envs.errors import TestbedError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.testbed.generator import LoadGenerator
from rlctl.envs.testbed.janitor import Janitor
from rlctl.envs.testbed.launch import Launcher
from rlctl.envs.testbed.services import Nginx
from rlctl.envs.testbed.session import TOP_WEIGHT
from rlctl.envs.workload import Weight
from tests.doubles.http import answering
from tests.soak.judging import (
    BROKEN,
    KEEP,
    ROTATE_BYTES,
    SHIELDS,
    Judgement,
    Sample,
    finish,
    free_port,
    log_bytes,
    watchdog_of,
)

LOADS_RPS = (20.0, 60.0, 120.0)  # a sixth of a CPU at most
SAMPLE_SECONDS, SCRAPE_SECONDS, TELL_SECONDS = 5, 15, 60
CHANGE_SECONDS, RELOAD_SECONDS = 60, 150
WARM_UP_SECONDS = 120
START_SECONDS, END_SECONDS = 30.0, 30.0
LAST_WORDS = 2000

SERVE = """
lc:
  workload: {{kind: cgroup, path: /{name}/lc}}
  slo: {{target_milliseconds: 10, max_load_rps: 480}}
  latency:
    {{kind: http, url: "{latency}", tail: p95_seconds, samples: samples, oldest: oldest_seconds,
      offered_rps: offered_rps, done_rps: done_rps, window: interval_seconds}}
  cpus: [0]
be:
  workloads: [{{kind: cgroup, path: "/{name}-be/batch-*"}}]
policy: {{name: ppo}}
shield: {shield}
state_directory: {folder}/state
log: {{directory: {folder}/log, rotate_bytes: {rotate_bytes}, keep: {keep}}}
metrics: {{listen: "127.0.0.1:{port}"}}
perf: true
"""

BURN = "while True: pass"


def run(minutes: float, *, output: Path | None = None) -> int:
    """Serve so long, and print what became of controller and watchdog.

    Args:
        minutes: How long; five or more, or a group's coming looks like a leak.
        output: JSON file for the figures.

    Returns:
        The exit code.

    Raises:
        TestbedError: A program is missing, or `rlctl serve` ended.
        PermissionMissing: Not root.
    """
    with contextlib.ExitStack() as stack:
        bed = _Bed(stack)
        daemon = _Daemon(bed, stack)
        samples: dict[str, list[Sample]] = {"controller": [], "watchdog": []}
        most_log_bytes = 0
        due = {CHANGE_SECONDS: bed.change, RELOAD_SECONDS: daemon.reload, SCRAPE_SECONDS: daemon.scrape}
        begun, warm_up = time.monotonic(), min(WARM_UP_SECONDS, minutes * 60 / 4)
        for second in range(SAMPLE_SECONDS, round(minutes * 60) + 1, SAMPLE_SECONDS):
            time.sleep(max(begun + second - time.monotonic(), 0.0))
            daemon.check()
            for act in (act for period, act in due.items() if second % period == 0):
                act()
            most_log_bytes = max(most_log_bytes, log_bytes(daemon.log))
            if second >= warm_up:
                daemon.measure(samples)
                if second % TELL_SECONDS == 0:
                    print(f"{second // 60} min: {Judgement.over(samples['controller'])}", file=sys.stderr, flush=True)
        totals = daemon.end()
    print(", ".join(f"{count} {name.replace('_', ' ')}" for name, count in totals.items()))
    judged = {who: Judgement.over(found) for who, found in samples.items()}
    return finish({"mode": "live", "minutes": minutes, **totals}, judged, most_log_bytes, output)


class _Bed:
    """nginx under light load, and BE that gets only what nobody else on the host wants.

    Args:
        stack: Ends all of it.
    """

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.name = f"rlctl-soak-{os.getpid()}"
        self._layout, self._knobs = Layout.detect(), Knobs(None)
        stack.callback(self._knobs.close)
        self._janitor = stack.enter_context(Janitor())
        self.folder = self._janitor.make_folder()
        top, be = self._group(stack, self.name), self._group(stack, f"{self.name}-be")
        if top.cpu and be.cpu:
            top.cpu.set_weight(TOP_WEIGHT[self._layout.mount(CgroupController.CPU).version])
            be.cpu.set_weight(Weight.MINIMUM)
        for number in (1, 2):
            self._start_be(stack, number)
        self._third: contextlib.ExitStack | None = None
        stack.callback(lambda: self._third.close() if self._third else None)
        nginx = Nginx()
        lc = self._group(stack, f"{self.name}/lc")
        nginx.start(stack.enter_context(Launcher(self.folder, lc, self._janitor)))
        nginx.ready()
        self._rates = itertools.cycle(LOADS_RPS)
        self._generator = stack.enter_context(LoadGenerator(nginx.load(), rate_rps=next(self._rates)))
        self._speaking = threading.Lock()
        self.latency = f"http://127.0.0.1:{stack.enter_context(answering(self._told))}/"

    def change(self) -> None:
        """Another load; and a third BE group comes, or goes if it is there."""
        with self._speaking:
            self._generator.set_rate(next(self._rates))
        if self._third:
            self._third.close()
            self._third = None
        else:
            self._third = contextlib.ExitStack()
            self._start_be(self._third, 3)

    def _told(self, _: str) -> tuple[int, bytes]:
        """The generator's figures as JSON, for `rlctl serve` to fetch."""
        with self._speaking:
            return 200, json.dumps(asdict(self._generator.stats())).encode()

    def _group(self, stack: contextlib.ExitStack, name: str) -> Group:
        return stack.enter_context(self._janitor.group(self._layout, name, self._knobs))

    def _start_be(self, stack: contextlib.ExitStack, number: int) -> None:
        group = self._group(stack, f"{self.name}-be/batch-{number}")
        launcher = stack.enter_context(Launcher(self.folder, group, self._janitor))
        launcher.start(f"batch-{number}", [sys.executable, "-I", "-S", "-c", BURN])


class _Daemon:
    """A running `rlctl serve`.

    Args:
        bed: What it controls.
        stack: Ends it.
    """

    def __init__(self, bed: _Bed, stack: contextlib.ExitStack) -> None:
        self.log, self._said = bed.folder / "log", bed.folder / "serve.err"
        self._bed, self._config, self._reloads = bed, bed.folder / "serve.yaml", 0
        self._port = free_port()
        self._configure(SHIELDS[0])
        command = [sys.executable, "-m", "rlctl", "serve", "--config", str(self._config), "--json"]
        with (bed.folder / "serve.out").open("wb") as out, self._said.open("wb") as err:
            self._process = subprocess.Popen(command, stdout=out, stderr=err)
        stack.callback(self._process.kill)
        self.pid = self._process.pid
        self._wait_for(lambda: self.scrape() > 0)

    def scrape(self) -> int:
        """Bytes of the metrics page; 0 while there is none."""
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics") as page:
            return len(page.read())
        return 0

    def reload(self) -> None:
        """Another shield; every third time a file that is none, which must change nothing."""
        self._reloads += 1
        if self._reloads % 3:
            self._configure(SHIELDS[self._reloads % 2])
        else:
            self._config.write_text(BROKEN)
        self._process.send_signal(signal.SIGHUP)

    def end(self) -> dict[str, Any]:
        """Ask it to leave; its totals."""
        self._process.terminate()
        code = self._process.wait(END_SECONDS)
        if code:
            raise TestbedError(f"rlctl serve ended with code {code}: {self.last_words()}")
        said: dict[str, Any] = json.loads((self._bed.folder / "serve.out").read_text().splitlines()[-1])
        said.pop("event")
        return said

    def measure(self, samples: dict[str, list[Sample]]) -> None:
        """Add what controller and watchdog take now."""
        samples["controller"].append(Sample.of(self.pid))
        if pid := watchdog_of(self.pid):
            samples["watchdog"].append(Sample.of(pid))

    def check(self) -> None:
        """Raise unless it runs."""
        if (code := self._process.poll()) is not None:
            raise TestbedError(f"rlctl serve ended with code {code}: {self.last_words()}")

    def last_words(self) -> str:
        """The end of its log."""
        return self._said.read_text(errors="replace")[-LAST_WORDS:]

    def _configure(self, shield: str) -> None:
        bed = self._bed
        self._config.write_text(
            SERVE.format(
                name=bed.name, latency=bed.latency, folder=bed.folder, shield=shield, port=self._port,
                rotate_bytes=ROTATE_BYTES, keep=KEEP,
            )
        )  # fmt: skip

    def _wait_for(self, condition: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                raise TestbedError(f"rlctl serve does not begin: {self.last_words()}")
            time.sleep(0.1)
