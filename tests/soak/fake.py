"""`rlctl serve` in this very process, on a fake host where a second takes no time."""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import io
import os
import re
import signal
import sys
import tempfile
import time
import tracemalloc
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rlctl import cli
from rlctl.agents.served.learned import LearnedPolicy
from rlctl.envs.errors import TestbedError
from rlctl.envs.host import live
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.restore import restore
from rlctl.envs.observation import Observation
from rlctl.serve import build
from tests.soak.fake_host import MAX_LOAD_RPS, FakeHost
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

SAMPLE_TICKS, SCRAPE_TICKS, RELOAD_TICKS = 20, 200, 500
WATCHDOG_DIES_TICKS = 20_000  # a minute or more apart, or it counts as one that dies of its start
FIRST_DEATH_TICK = 500
WARM_UP_TICKS = 2000
TOLD = 20
"""Lines of progress."""

SERVE = """
lc:
  workload: {{kind: cgroup, path: /lc}}
  slo: {{target_milliseconds: 10, max_load_rps: {max_load_rps}}}
  latency: {{kind: jsonl, path: {requests}}}
be:
  workloads: [{{kind: cgroup, path: "/be/batch-*"}}]
policy: {{name: ppo}}
fallback: {{hold_seconds: 10, most_hold_seconds: 300}} # demoted and tried again more often than in service
shield: {shield}
state_directory: {folder}/state
watchdog: {{grace_seconds: 30}} # of real time, which a busy machine may be short of
log: {{directory: {folder}/log, rotate_bytes: {rotate_bytes}, keep: {keep}}}
metrics: {{listen: "127.0.0.1:{port}"}}
"""

_ACTING = re.compile(r'^rlctl_acting_policy_ticks_total\{policy="(.+)"\} (\S+)$', re.MULTILINE)


def run(ticks: int, kind: str, seed: int, *, trace: bool = False, output: Path | None = None) -> int:
    """Serve so many ticks, and print what became of the process.

    Args:
        ticks: How many.
        kind: Of control groups: v1, v2 or hybrid.
        seed: Of what happens.
        trace: Tell where memory was taken, too. Slow, and itself takes memory.
        output: JSON file for the figures.

    Returns:
        The exit code.

    Raises:
        TestbedError: `rlctl serve` ended.
    """
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="rlctl-soak-", dir=memory) as folder:
        soak = _Soak(Path(folder), ticks, kind, seed, trace=trace)
        _stand_in(soak)
        begun, used = time.monotonic(), time.process_time()
        with contextlib.redirect_stderr(_Last()) as last:
            code = cli.main(["serve", "--config", str(soak.config)])
        seconds, cpu_seconds = time.monotonic() - begun, time.process_time() - used
        soak.host.close()
        taken = tracemalloc.take_snapshot().statistics("lineno")[:10] if trace else []
    if code:
        raise TestbedError(f"rlctl serve ended with code {code}, saying: ... {last}")
    for place in taken:
        print(place)
    acting = {name: int(float(count)) for name, count in _ACTING.findall(soak.page)}
    decided = ", ".join(f"{name} {count}" for name, count in acting.items())
    each = f"{cpu_seconds / ticks * 1e3:.2f} ms of CPU time each"
    print(f"{ticks} ticks on {kind} in {seconds:.0f} s, {each}; decided by {decided}")
    print(", ".join(f"{count} x {what}" for what, count in sorted(soak.host.happened.items())))
    figures = {
        "mode": "fake", "kind": kind, "seed": seed, "ticks": ticks, "seconds": seconds, "cpu_seconds": cpu_seconds,
        "acting": acting, "happened": soak.host.happened,
    }  # fmt: skip
    return finish(figures, {"controller": Judgement.over(soak.samples)}, soak.most_log_bytes, output)


class _Soak:
    """What happens between two ticks: on the host, to the service, and to be measured.

    Args:
        folder: Holds the host, the configuration and the log.
        ticks, kind, seed, trace: As of `run`.
    """

    def __init__(self, folder: Path, ticks: int, kind: str, seed: int, *, trace: bool) -> None:
        self.host = FakeHost(folder, kind, seed)
        self.config = folder / "serve.yaml"
        self.samples: list[Sample] = []
        self.most_log_bytes = 0
        self.page = ""
        self._folder, self._ticks, self._trace = folder, ticks, trace
        self._warm_up = min(WARM_UP_TICKS, ticks // 4)
        self._port = free_port()
        self._second = self._sampled = 0
        self._begun = time.monotonic()
        self._configure(0)

    def second(self) -> None:
        """Between two ticks."""
        self._second += 1
        self.host.second()
        self._disturb()
        if self._second % SCRAPE_TICKS == 0 or self._second == self._ticks:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=10.0) as page:
                self.page = page.read().decode()
        self._measure()
        if self._second > self._ticks:
            os.kill(os.getpid(), signal.SIGTERM)

    def _disturb(self) -> None:
        """Reloads, and a watchdog that dies."""
        if self._second % RELOAD_TICKS == 0:
            self._configure(self._second // RELOAD_TICKS)
            os.kill(os.getpid(), signal.SIGHUP)
        if self._second % WATCHDOG_DIES_TICKS == FIRST_DEATH_TICK and (pid := watchdog_of(os.getpid())):
            os.kill(pid, signal.SIGKILL)

    def _measure(self) -> None:
        self.most_log_bytes = max(self.most_log_bytes, log_bytes(self._folder / "log"))
        if self._second < self._warm_up:
            return
        if self._trace and self._second == self._warm_up:
            tracemalloc.start()
        # each group has files that are kept open: moments are compared that have equally many
        if self._second - self._sampled >= SAMPLE_TICKS and len(self.host.be) == 2 and self.host.settled:
            self._sampled = self._second
            self.samples.append(Sample.of("self"))
        if self._second % max(self._ticks // TOLD, 1) == 0 and self.samples:
            rate = self._second / (time.monotonic() - self._begun)
            objects = len(gc.get_objects()) + gc.get_freeze_count()
            told = f"{self._second} ticks, {rate:.0f}/s, {objects} objects: {Judgement.over(self.samples)}"
            with contextlib.suppress(OSError):  # it may be a file, and the disk full
                print(told, file=sys.__stderr__, flush=True)

    def _configure(self, number: int) -> None:
        """Another shield each time, and every third time no configuration at all."""
        text = SERVE.format(
            folder=self._folder, requests=self.host.requests, max_load_rps=MAX_LOAD_RPS, port=self._port,
            shield=SHIELDS[number % 2], rotate_bytes=ROTATE_BYTES, keep=KEEP,
        )  # fmt: skip
        self.config.write_text(text if number % 3 < 2 else BROKEN)


class _Clock:
    """Stands for the module `time`: a second passes when somebody sleeps for it.

    Args:
        passed: What happens meanwhile.
    """

    def __init__(self, passed: Callable[[], None]) -> None:
        self._seconds = 1e4
        self._passed = passed

    def monotonic(self) -> float:
        return self._seconds

    def sleep(self, seconds: float) -> None:
        self._seconds += seconds
        self._passed()


def _stand_in(soak: _Soak) -> None:
    """Put the fake host, its clock and its faults where `rlctl serve` expects the real ones; for good."""
    host, clock, act = soak.host, _Clock(soak.second), LearnedPolicy.act

    class FastHost(live.LiveHost):
        def wait(self) -> int:
            self._sleep = clock.sleep  # or it would wait in real time for a signal
            return super().wait()

    def faulty(policy: LearnedPolicy, observation: Observation) -> Any:
        instead = host.policy_fails()
        return act(policy, observation) if instead is None else instead

    stand_ins: list[tuple[object, str, object]] = [
        (live, "time", clock),
        (build, "LiveHost", FastHost),
        (build, "Layout", SimpleNamespace(detect=lambda: host.layout)),
        (build, "Knobs", functools.partial(Knobs, kernel=host.kernel)),
        (build, "restore", functools.partial(restore, kernel=host.kernel)),
        (LearnedPolicy, "act", faulty),
    ]
    for owner, name, stand_in in stand_ins:
        setattr(owner, name, stand_in)


class _Last(io.TextIOBase):
    """Stands for stderr, to which much is written: keeps the last lines."""

    def __init__(self) -> None:
        self._texts: collections.deque[str] = collections.deque(maxlen=40)

    def write(self, text: str) -> int:
        self._texts.append(text)
        return len(text)

    def __str__(self) -> str:
        return "".join(self._texts).rstrip()
