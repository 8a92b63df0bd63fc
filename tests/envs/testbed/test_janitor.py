"""What is left after a crash: nothing of ours, and everything of everybody else's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlctl.envs.errors import PermissionMissing, TestbedError
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.testbed import leftovers
from rlctl.envs.testbed.janitor import Janitor
from rlctl.envs.testbed.leftovers import sweep
from tests.needs import needs
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.host  # real processes


def alive(pid: int) -> bool:
    found = leftovers.task(pid)
    return found is not None and found.alive


OWNER = """
import signal, sys, time
from pathlib import Path
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.testbed.janitor import Janitor
from rlctl.envs.testbed.launch import Launcher

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit it ignored
state, name, keeper, frozen = sys.argv[1:]
with Janitor(Path(state), keeper=keeper == "keeper") as janitor:
    group = None
    if name:
        group = Group.create(Layout.detect(), name, Knobs(None))
        janitor.note_group(*group.directories)
    folder = janitor.make_folder()
    with Launcher(folder, group, janitor) as launcher:
        deaf = "trap '' TERM; sleep 60 & echo up; sleep 60"
        process = launcher.start("deaf", ["/bin/sh", "-c", deaf])
        while not process.output.read_text():
            time.sleep(0.01)
        if frozen == "frozen":
            group.freezer.order(True)
        print(folder, *process.pids(), flush=True)
        time.sleep(60)
"""


class Owner:
    """A Python process with a testbed, to be killed."""

    def __init__(self, state: Path, *, group: str = "", keeper: bool = True, frozen: bool = False) -> None:
        flags = ["keeper" if keeper else "-", "frozen" if frozen else "-"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(state), group, *flags], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        folder, *pids = self.process.stdout.readline().split()
        self.folder, self.pids = Path(folder), [int(pid) for pid in pids]
        assert self.pids
        assert all(map(alive, self.pids))

    def end(self, number: int) -> None:
        self.process.send_signal(number)
        self.process.communicate(timeout=PATIENCE_SECONDS)

    def is_gone(self) -> bool:
        return not any(map(alive, self.pids)) and not self.folder.exists()


@pytest.fixture
def group_name() -> str:
    needs()
    return f"rlctl-test-janitor-{os.getpid()}"


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "state"
    sweep(tmp_path / "state")


def groups(name: str) -> list[Path]:
    mounts = Layout.detect().mounts.values()
    return [mount.path / name for mount in mounts if (mount.path / name).exists()]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_dead_owner_leaves_nothing(state: Path, group_name: str, number: int) -> None:
    owner = Owner(state, group=group_name, frozen=number == signal.SIGKILL)
    owner.end(number)
    until(lambda: owner.is_gone() and not groups(group_name) and not list(state.glob("testbed-*")))


def test_without_a_keeper_the_next_start_clears_up(state: Path, group_name: str) -> None:
    owner = Owner(state, group=group_name, keeper=False, frozen=True)
    owner.end(signal.SIGKILL)
    assert groups(group_name)
    with Janitor(state):
        assert owner.is_gone()
        assert not groups(group_name)


def test_living_owner_is_left_alone(state: Path) -> None:
    owner = Owner(state)
    try:
        swept = sweep(state)
        assert len(swept.running) == 1
        assert not swept.cleared
        assert all(map(alive, owner.pids))
    finally:
        owner.end(signal.SIGINT)
    assert owner.is_gone()
    assert sweep(state) == sweep(state / "absent")


def orphan(state: Path, *lines: object) -> Path:
    """A record whose owner is dead."""
    state.mkdir(exist_ok=True)
    record = state / "testbed-1-x.jsonl"
    record.write_text("".join(f"{json.dumps(line)}\n" for line in ({"boot": leftovers.boot_id()}, *lines)))
    return record


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield process
        process.kill()


def test_pid_of_another_process_is_not_killed(state: Path, bystander: subprocess.Popen[bytes]) -> None:
    now = leftovers.task(bystander.pid)
    assert now is not None
    orphan(state, {"pid": bystander.pid, "start": now.start_ticks - 1})
    assert len(sweep(state).cleared) == 1
    assert bystander.poll() is None
    orphan(state, {"pid": bystander.pid, "start": now.start_ticks})
    assert len(sweep(state).cleared) == 1
    assert bystander.wait(PATIENCE_SECONDS) == -signal.SIGKILL


def test_dry_run_names_what_dead_owner_left(state: Path, bystander: subprocess.Popen[bytes]) -> None:
    now = leftovers.task(bystander.pid)
    assert now is not None
    record = orphan(state, {"pid": bystander.pid, "start": now.start_ticks})
    assert sweep(state, dry_run=True).cleared == (record,)
    assert record.exists()
    assert bystander.poll() is None


def test_record_of_an_earlier_boot_kills_nobody(state: Path, bystander: subprocess.Popen[bytes]) -> None:
    now = leftovers.task(bystander.pid)
    assert now is not None
    record = orphan(state, {"pid": bystander.pid, "start": now.start_ticks})
    record.write_text(record.read_text().replace(leftovers.boot_id(), "another-boot"))
    assert sweep(state).cleared == (record,)
    assert bystander.poll() is None


def test_other_folders_stay(state: Path, tmp_path: Path) -> None:
    replaced, precious = tmp_path / "rlctl-replaced", tmp_path / "precious"
    for folder in (replaced, precious):
        folder.mkdir()
    orphan(
        state,
        {"folder": str(replaced), "identity": [0, 0]},
        {"folder": str(precious), "identity": leftovers.identity(precious)},
        {"folder": str(tmp_path / "rlctl-gone"), "identity": [1, 2]},
    )
    assert not sweep(state).left
    assert replaced.exists()
    assert precious.exists()


def test_unreadable_folder_is_told_with_way_out(tmp_path: Path) -> None:
    """As another user's HOME; this one, of too long a name, is refused to root too."""
    (told,) = sweep(folder := tmp_path / ("x" * 300)).left
    assert told == f"{folder}: File name too long: cannot look there for what a testbed has left; {WAY_OUT}"


WAY_OUT = "set HOME to a folder of yours"


def test_torn_record_is_read_so_far(state: Path, bystander: subprocess.Popen[bytes]) -> None:
    now = leftovers.task(bystander.pid)
    assert now is not None
    record = orphan(state, {"pid": bystander.pid, "start": now.start_ticks})
    record.write_text(record.read_text() + '{"pid": 1, "sta')
    sweep(state)
    assert bystander.wait(PATIENCE_SECONDS) == -signal.SIGKILL


def test_keeper_that_takes_long_is_let_go(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlctl.envs.testbed.janitor.KEEPER_SECONDS", 0.0)
    janitor = Janitor(state)
    keeper = janitor._keeper
    assert janitor.close() == ()
    assert keeper is not None
    assert keeper.wait(PATIENCE_SECONDS) == 0


def test_closed_janitor_starts_nothing(state: Path, tmp_path: Path) -> None:
    janitor = Janitor(state)
    assert janitor.close() == janitor.close() == ()
    with pytest.raises(TestbedError, match="closed"):
        janitor.make_folder()
    (tmp_path / "file").write_text("")
    with pytest.raises(PermissionMissing, match="name another state folder"):
        Janitor(tmp_path / "file" / "state")
    with Janitor(state) as other, pytest.raises(TestbedError, match="make the group before"):
        other.note_group(tmp_path / "nothing")
