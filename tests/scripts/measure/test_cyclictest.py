"""A real cyclictest, and what it says when it cannot run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlctl.envs.errors import PermissionMissing
from rlctl.envs.testbed.launch import Launcher
from scripts.studies.realtime.cyclictest import Cyclictest
from tests.waiting import until

pytestmark = [pytest.mark.host, pytest.mark.slow]


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cyclictest that says what another one said to a user without permission, and ends."""
    program = tmp_path / "bin/cyclictest"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\necho 'Unable to change scheduling policy!' >&2\n"
        "echo 'Probably missing capabilities, either run as root or increase RLIMIT_RTPRIO limits.' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


@pytest.mark.usefixtures("cyclictest")
def test_every_wake_up_is_counted_and_given(launcher: Launcher) -> None:
    task = Cyclictest(interval_us=500)
    task.start(launcher)

    def woken_up() -> bool:
        task.check()
        return task.count() >= 300

    until(woken_up)
    (pid,) = task.pids()
    policies = [os.sched_getscheduler(int(thread)) for thread in os.listdir(f"/proc/{pid}/task")]
    assert sorted(policies) == [os.SCHED_OTHER, os.SCHED_FIFO]
    counted = task.count()
    latencies = task.stop()
    assert len(latencies) >= counted
    assert (latencies >= 0).all()
    assert latencies.max() > 100  # nanoseconds: nothing wakes up in less
    assert task.pids() == ()


def test_no_permission_names_the_way_out(says: None, launcher: Launcher) -> None:
    with pytest.raises(PermissionMissing, match=r"run as root, or raise `ulimit -r` to 80"):
        Cyclictest().start(launcher)
