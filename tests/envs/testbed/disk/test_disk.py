"""A provisioned disk: the caps are those of the kernel's files, work is bytes on the disk, and nothing of it stays."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlctl.envs.errors import HostError, RlctlError, TestbedError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout, Mount
from rlctl.envs.testbed import launch
from rlctl.envs.testbed import services as service
from rlctl.envs.testbed.disk.provisioned import BE_RATIO, TOOLS, ProvisionedDisk, _fill_file, loop_device
from rlctl.envs.testbed.generator import LoadGenerator
from rlctl.envs.testbed.janitor import Janitor
from rlctl.envs.testbed.jobs import BulkWrite
from rlctl.envs.testbed.launch import Launcher, find_program
from rlctl.envs.testbed.leftovers import sweep
from rlctl.envs.testbed.namespace import require_tools
from rlctl.envs.testbed.services import Postgres, unprivileged_user
from tests.waiting import until

MEGABYTES = 20.0


def group_on(path: Path, version: int) -> Group:
    layout = Layout({CgroupController.IO: Mount(path, version)}, {})
    return Group("bed", {CgroupController.IO: path}, layout, Knobs(None))


def test_without_an_io_controller_the_disk_says_why(tmp_path: Path) -> None:
    layout = Layout({}, {CgroupController.IO: "this kernel has no such controller"})
    with pytest.raises(HostError, match="cgroup io: this kernel has no such controller"):
        ProvisionedDisk(MEGABYTES, Launcher(tmp_path), Group("bed", {}, layout, Knobs(None)), Knobs(None))


def test_without_mkfs_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(launch, "SYSTEM_PROGRAMS", str(tmp_path))
    with (
        pytest.raises(TestbedError, match=r"^mkfs.ext4 is not installed: apt-get install e2fsprogs$"),
        ProvisionedDisk(MEGABYTES, Launcher(tmp_path), group_on(tmp_path, 2), Knobs(None)),
    ):
        pass


def test_only_in_v1_a_command_joins_both(tmp_path: Path) -> None:
    holders = Launcher(tmp_path)
    assert ProvisionedDisk(MEGABYTES, holders, group_on(tmp_path, 2), Knobs(None)).joining == ()
    joining = ProvisionedDisk(MEGABYTES, holders, group_on(tmp_path, 1), Knobs(None)).joining
    done = subprocess.run([*joining, "sh", "-c", "echo $$ $1", "sh", "a b"], capture_output=True, text=True, check=True)
    pid, *rest = done.stdout.split()
    assert (tmp_path / "cgroup.procs").read_text().split() == [pid]
    assert rest == ["a", "b"]


def test_without_an_unprivileged_user_postgresql_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "USER", "nobody-of-that-name")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(TestbedError, match="no user nobody-of-that-name: apt-get install postgresql"):
        unprivileged_user()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert unprivileged_user() == ""


# ---- live ------------------------------------------------------------------------------------------------------------


def lacking() -> str:
    """Why no disk can be provisioned here; empty where one can."""
    mount = Layout.detect().mounts.get(CgroupController.IO)
    if os.geteuid() != 0 or not os.access("/dev/loop-control", os.W_OK):
        return "needs root and loop devices"
    if mount is None or mount.version != 1 or not (mount.path / "blkio.throttle.write_bps_device").exists():
        return "needs blkio of cgroup v1 with throttling, where it was tried"
    try:
        require_tools(TOOLS)
    except RlctlError as error:
        return str(error)
    return ""


@pytest.fixture
def disk_group(janitor: Janitor) -> Iterator[Group]:
    """A group whose writes can be throttled."""
    if reason := lacking():
        pytest.skip(reason)
    with janitor.group(Layout.detect(), f"rlctl-test-disk-{os.getpid()}", Knobs(None), (CgroupController.IO,)) as made:
        yield made


@pytest.fixture
def server() -> None:
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no C compiler: the load generator is compiled")
    try:
        find_program("initdb", "postgresql")
        unprivileged_user()
    except RlctlError as error:
        pytest.skip(str(error))


def loops() -> set[str]:
    """Loop devices in use."""
    return {path.parent.parent.name for path in Path("/sys/block").glob("loop*/loop/backing_file")}


def inhabitants(folder: str) -> list[int]:
    """Processes whose working directory is below a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if os.readlink(path).startswith(folder):
                found.append(int(path.parent.name))
        except OSError:  # ended meanwhile
            continue
    return found


def shared_memory() -> set[str]:
    """Shared memory of the kind that a killed server leaves: System V segments by their id, and PostgreSQL's files."""
    segments = {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}
    return segments | {str(path) for path in Path("/dev/shm").glob("PostgreSQL*")}


@pytest.mark.host
def test_what_is_written_is_counted_and_capped(launcher: Launcher, disk_group: Group) -> None:
    rates, before = [], loops()
    with (
        Launcher(launcher.folder) as holders,
        ProvisionedDisk(MEGABYTES, holders, disk_group, Knobs(None)) as disk,
    ):
        assert len(loops() - before) == 2
        assert disk.folder.name not in Path("/proc/mounts").read_text()
        volume = Path("/dev", disk.volume.name)
        with Launcher(launcher.folder, inside=disk.inside) as inside:
            for divided in (False, True):
                if divided:
                    disk.divide(0.5)
                job = BulkWrite(2, volume, depth=8)
                job.start(inside)
                job.ready()
                assert len(job.pids()) == 1, "it has begun before it was told to"
                job.begin()
                time.sleep(1.5)
                work = job.stop()
                assert work.bogo_ops == work.by_stressor["bytes"]
                rates.append(work.rate * 1e-6)
            disk.unite()
    assert 1.0 < rates[0] < 1.3 * MEGABYTES
    assert 0.2 < rates[1] < 1.6 * MEGABYTES * BE_RATIO * 0.5
    until(lambda: loops() <= before)


@pytest.mark.slow
@pytest.mark.host
def test_a_writer_that_died_is_an_error(launcher: Launcher, disk_group: Group) -> None:
    with loop_device(lambda: _fill_file(launcher.folder / "volume"), 0) as volume:
        job = BulkWrite(1, Path("/dev", volume.name))
        job.start(launcher)
        job.ready()
        os.kill(job.process.pid, signal.SIGKILL)
        job.process.wait(5.0)
        with pytest.raises(TestbedError, match="writer ended with code -9"):
            job.stop()


@pytest.mark.slow
@pytest.mark.host
@pytest.mark.usefixtures("server")
def test_postgresql_commits_what_generator_sends_and_leaves_nothing(be_launcher: Launcher, group: Group) -> None:
    before = shared_memory()
    postgres = Postgres()
    postgres.start(be_launcher)
    postgres.ready(300.0)
    with LoadGenerator(postgres.load(), rate_rps=100.0) as generator:
        stats = until(lambda: (one := generator.stats()).samples > 0 and one)
        assert stats.errors == 0
        assert set(postgres.pids()) <= group.pids()
        postgres.stop()
        be_launcher.close()
        assert group.pids() == frozenset()
    assert shared_memory() <= before


OWNER = """
import os, sys, time
from pathlib import Path
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.testbed.jobs import BulkWrite
from rlctl.envs.testbed.services import Postgres
from rlctl.envs.testbed.disk.provisioned import ProvisionedDisk
from rlctl.envs.testbed.janitor import Janitor
from rlctl.envs.testbed.launch import Launcher

knobs = Knobs(None)
with Janitor(Path(sys.argv[1]), keeper=sys.argv[2] == "keeper") as janitor:
    group = Group.create(Layout.detect(), sys.argv[3], knobs, (CgroupController.IO,))
    janitor.note_group(*group.directories)
    folder = janitor.make_folder()
    with (
        Launcher(folder, None, janitor) as holders,
        ProvisionedDisk(100.0, holders, group, knobs) as disk,
        Launcher(folder, group, janitor, disk.inside, disk.folder) as inside,
    ):
        job = BulkWrite(1, Path("/dev", disk.volume.name))
        job.start(inside)
        job.ready()
        job.begin()
        disk.divide(1.0)
        postgres = Postgres()
        postgres.start(inside)
        postgres.ready(300.0)
        print("ready", flush=True)
        time.sleep(600)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for everything of an owner that is killed; PostgreSQL's user may pass through it."""
    if reason := lacking():
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="rlctl-test-disk-"))
    folder.chmod(0o711)
    yield folder
    sweep(folder / "state")
    shutil.rmtree(folder, ignore_errors=True)


KILLED_ALSO = ("0.3", "0.6", "0.9", "2.5", "ready", "ready, no keeper")
"""Further moments, for `scripts/test --all`."""


@pytest.mark.host
@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("when", ["1.5", *(pytest.param(when, marks=pytest.mark.slow) for when in KILLED_ALSO)])
def test_whenever_its_owner_is_killed_nothing_is_left(place: Path, when: str) -> None:
    state, name = place / "state", f"rlctl-test-disk-{os.getpid()}-{when[:3].replace('.', '')}"
    (place / "tmp").mkdir(mode=0o711)
    keeper, before = "none" if "no keeper" in when else "keeper", loops()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(state), keeper, name],
        env={**os.environ, "TMPDIR": str(place / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    if when.startswith("ready"):
        line = owner.stdout.readline()
        assert line == "ready\n", owner.stderr and owner.stderr.read()
        assert len(inhabitants(str(place))) > 5
        assert len(loops() - before) == 2
    else:
        until(lambda: list(state.glob("testbed-*")), owner)
        time.sleep(float(when))
    owner.kill()
    owner.communicate()
    if keeper == "none":
        sweep(state)
    until(lambda: not inhabitants(str(place)) and loops() <= before and not list(state.glob("testbed-*")))
    assert not list((place / "tmp").iterdir())
    assert not list(Path("/sys/fs/cgroup").glob(f"*/{name}"))
