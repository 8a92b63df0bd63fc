"""BE's work: what a comparison of managers counts."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.errors import TestbedError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.values import Quota
from rlctl.envs.host.sensors.cpu import usage_seconds
from rlctl.envs.testbed import leftovers
from rlctl.envs.testbed.jobs import StressNg, parse_metrics
from rlctl.envs.testbed.launch import Launcher, Process
from rlctl.envs.testbed.workloads import Transfer, Work
from tests.waiting import PATIENCE_SECONDS, until

REPORT = """---
system-info:
      stress-ng-version: 0.15.06
      hostname: odd: "name
metrics:
    - stressor: cpu
      bogo-ops: 3448
      bogo-ops-per-second-usr-sys-time: 1176.303221
      wall-clock-time: nan

    - stressor: stream
      bogo-ops: 51
...
"""

installed = pytest.mark.skipif(shutil.which("stress-ng") is None, reason="stress-ng is not installed")


class Mover(Transfer):
    """It moves bytes at once, and its start took long."""

    name, opens = "mover", "open"

    def __init__(self) -> None:
        self._process = cast(Process, SimpleNamespace(pid=7, exit_code=None, stop=lambda _: None))
        self._begin_seconds = time.monotonic() - 60.0

    def _moved_bytes(self) -> int:
        return 100

    def _command(self, launcher: Launcher) -> list[str]:
        return []


def test_transfers_time_is_from_its_first_order(monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *order: orders.append(order))
    job = Mover()
    job.begin()
    job.begin()
    assert orders == [(7, signal.SIGUSR1)]
    assert job.stop().seconds < 30.0


def test_report_as_version_0_15_writes_it() -> None:
    assert parse_metrics(REPORT) == {"cpu": 3448.0, "stream": 51.0}
    assert parse_metrics("") == {}


@given(st.text())
def test_any_text_is_read_or_empty(text: str) -> None:
    assert isinstance(parse_metrics(text), dict)


@given(kind=st.sampled_from(["cpu", "memory", "mixed"]), workers=st.integers(2, 99))
def test_every_kind_has_workers_that_were_asked_for(kind: Any, workers: int) -> None:
    job = StressNg(kind, workers)
    assert sum(int(option) for option in job.options if option.isdigit()) == workers
    assert sum(job.stressors.values()) == workers


def test_share_weighs_stressors_alike_however_long_their_rounds() -> None:
    solo = Work({"cpu": 10_000.0, "stream": 100.0}, 10.0)
    run = Work({"cpu": 2_500.0, "stream": 40.0}, 5.0)
    assert run.rate == 508.0
    assert run.share_of(solo) == pytest.approx((0.5 + 0.8) / 2)
    assert Work({}, 5.0).share_of(solo) == 0.0
    with pytest.raises(ValueError, match="did nothing"):
        run.share_of(Work({}, 1.0))


# ---- live ------------------------------------------------------------------------------------------------------------


def cpu_seconds(group: Group) -> float:
    """CPU time of all its tasks since it was made."""
    assert group.usage_file is not None
    usage = usage_seconds(group.usage_file.read_bytes())
    assert isinstance(usage, float)
    return usage


def use_cpu(group: Group, seconds: float) -> None:
    """Wait until its tasks have used so much more CPU time, however long a busy machine takes over it."""
    enough = cpu_seconds(group) + seconds
    until(lambda: cpu_seconds(group) >= enough)


def stands_still(group: Group) -> bool:
    """Whether its tasks use no CPU time for a moment."""
    before = cpu_seconds(group)
    time.sleep(0.05)
    return cpu_seconds(group) == before


@installed
@pytest.mark.host
def test_work_is_in_proportion_to_cpu_time(be_launcher: Launcher, group: Group) -> None:
    assert group.cpu is not None
    assert group.freezer is not None
    rates = []
    for disturbed in (False, True):
        before, job = cpu_seconds(group), StressNg("cpu", 1)
        job.start(be_launcher)
        use_cpu(group, 0.3)
        if disturbed:
            group.cpu.set_quota(Quota.of_cpus(0.2))
            use_cpu(group, 0.1)
            group.freezer.order(True)
            until(lambda: stands_still(group))
            time.sleep(0.2)
        work = job.stop(PATIENCE_SECONDS)
        group.cpu.set_quota(Quota(None))
        rates.append(work.by_stressor["cpu"] / (cpu_seconds(group) - before))
        assert work.seconds > (0.6 if disturbed else 0.2)
        assert job.pids() == ()
    # Rounds per CPU second are the same but for start-up, which weighs little, and for who shares core and cache.
    assert rates[0] / 3 < rates[1] < rates[0] * 3


@pytest.mark.slow
@installed
@pytest.mark.host
def test_frozen_from_the_start_it_has_done_nothing(be_launcher: Launcher, group: Group) -> None:
    assert group.freezer is not None
    group.freezer.order(True)
    job = StressNg()
    job.start(be_launcher)
    with pytest.raises(TestbedError, match="runs already"):
        job.start(be_launcher)
    work = job.stop()
    assert work.bogo_ops == 0.0
    assert work.by_stressor == {"cpu": 0.0}, "a stressor that did nothing is a zero, not a missing key"
    assert group.pids() == frozenset()


@installed
@pytest.mark.host
@pytest.mark.slow  # on a machine with a large cache
@pytest.mark.parametrize("kind", ["memory", "mixed"])
def test_other_kinds_count_as_well(launcher: Launcher, kind: Any) -> None:
    job = StressNg(kind, 2)
    job.start(launcher)
    until(lambda: len(job.pids()) == 3)
    time.sleep(1.0)
    work = job.stop(PATIENCE_SECONDS)  # a round of it takes seconds where others use the memory
    assert work.bogo_ops > 0
    assert set(work.by_stressor) == {"memory": {"stream"}, "mixed": {"cpu", "stream"}}[kind]


@pytest.mark.slow
@installed
@pytest.mark.host
def test_hung_or_killed_it_is_error_and_gone(launcher: Launcher) -> None:
    job = StressNg()
    job.start(launcher)
    parent = until(lambda: len(job.pids()) == 3 and job.pids())[0]
    leftovers.kill(parent, signal.SIGSTOP)
    with pytest.raises(TestbedError, match=r"did not end in 0\.2 s, so its work is unknown"):
        job.stop(timeout_seconds=0.2)
    assert not leftovers.session(parent)
    job.start(launcher)
    parent = until(lambda: len(job.pids()) == 3 and job.pids())[0]
    leftovers.kill(parent)
    time.sleep(0.1)
    with pytest.raises(TestbedError, match="ended with code -9"):
        job.stop()
    assert not leftovers.session(parent)
    with pytest.raises(TestbedError, match="does not run"):
        job.stop()


@pytest.mark.parametrize("doubt", [False, True])
def test_starved_workers_count_unless_doubted(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doubt: bool
) -> None:
    program = tmp_path / "stress-ng"
    program.write_text(
        "#!/bin/sh\n"
        'while [ "$1" != --yaml ]; do shift; done\n'
        f"trap 'cp {tmp_path}/report \"$2\"; {'echo fail: corrupted >&2; ' if doubt else ''}exit 2' INT\n"
        f"touch {tmp_path}/listens\n"
        "while :; do sleep 0.05; done\n"
    )
    program.chmod(0o755)
    (tmp_path / "report").write_text(REPORT)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    job = StressNg()
    job.start(launcher)
    until((tmp_path / "listens").exists)
    if doubt:
        with pytest.raises(TestbedError, match="ended with code 2: fail: corrupted"):
            job.stop()
    else:
        assert job.stop().bogo_ops == 3448 + 51
