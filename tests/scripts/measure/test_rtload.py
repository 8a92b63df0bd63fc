"""The loads beside a real-time task do what they say."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from rlctl.envs.testbed.launch import Launcher
from scripts.studies.realtime.rtload import BLOCK_BYTES, Load, RtLoad
from tests.waiting import until

pytestmark = [
    pytest.mark.host,
    pytest.mark.slow,
    pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler"),
]

LOADS = (Load.CPU, Load.SCHED, Load.IO)


def started(load: Load, threads: int, launcher: Launcher) -> RtLoad:
    made = RtLoad(load, threads)
    made.start(launcher)
    return made


def await_rounds(load: RtLoad, more: int) -> None:
    before = load.rounds()

    def done() -> bool:
        load.check()
        return load.rounds() >= before + more

    until(done)


def switches(pid: int) -> int:
    """How often its threads have gone to sleep."""
    files = Path(f"/proc/{pid}/task").glob("*/status")
    return sum(int(file.read_text().partition("voluntary_ctxt_switches:")[2].split()[0]) for file in files)


@pytest.mark.parametrize("load", LOADS)
def test_it_runs_and_counts_its_threads(load: Load, launcher: Launcher) -> None:
    running = started(load, 7, launcher)
    (pid,) = running.pids()
    assert len(os.listdir(f"/proc/{pid}/task")) == 7 + 1  # and the one that waits
    await_rounds(running, 20)
    running.stop()
    assert running.pids() == ()
    done = running.rounds()
    time.sleep(0.02)
    assert running.rounds() == done > 0


def test_threads_of_scheduling_load_sleep_once_in_round(launcher: Launcher) -> None:
    running = started(Load.SCHED, 3, launcher)
    (pid,) = running.pids()
    slept, rounds = switches(pid), running.rounds()
    await_rounds(running, 1000)
    assert switches(pid) - slept >= 0.9 * (running.rounds() - rounds) - 100
    running.stop()


def test_io_threads_write_files_of_their_own(launcher: Launcher) -> None:
    running = started(Load.IO, 3, launcher)
    (pid,) = running.pids()
    await_rounds(running, 30)
    written = Path(f"/proc/{pid}/io").read_text().partition("wchar:")[2].split()[0]
    assert int(written) >= 30 * BLOCK_BYTES
    running.stop()
    files = sorted(launcher.folder.glob("rtload-*"))
    assert [file.stat().st_size for file in files] == [BLOCK_BYTES] * 3
