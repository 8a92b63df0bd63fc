"""BE's disks as a rein: shares of what BE was seen to do, on any kernel's files, and its own limits back."""

import contextlib
import errno
import os
import signal
import subprocess
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl.envs.errors import CgroupError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import Journal
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.host.cgroup.restore import restore
from rlctl.envs.host.reins.carried_rate import DISK_STEP, FULL_RATIO, RETRY_SECONDS
from rlctl.envs.host.reins.disk import LEAST, USUAL, DiskRein
from rlctl.envs.reins import DISK_CARRIED_RATIO, FELL, USE, Rein
from rlctl.envs.testbed.disk.provisioned import loop_device
from tests.doubles.cgroup_kernel import FakeKernel
from tests.needs import needs

USED = USE[Rein.DISK]
DISK = "254:0"
CARRIED = 40_000_000 * DISK_CARRIED_RATIO
"""Of 40 MB/s, bytes that a level is a share of."""


class Bench:
    def __init__(self, folder, kind):
        self.kernel, self.folder = FakeKernel(folder, kind), folder
        self.layout = Layout.detect(self.kernel.root, self.kernel.proc)
        self.knobs = Knobs(Journal.open(folder / "state"), self.kernel)
        self.group = self.make("be")

    def make(self, name):
        return Group.create(self.layout, name, Knobs(None, self.kernel), [CgroupController.IO])

    def done(self, *counts, group=None):
        """What the group has read and written since it was made: bytes, then operations."""
        folder = (group or self.group).paths[CgroupController.IO]
        if (folder / "io.stat").exists():
            words = zip(("rbytes", "wbytes", "rios", "wios"), counts, strict=True)
            (folder / "io.stat").write_text(f"{DISK} {' '.join(f'{name}={count}' for name, count in words)} dbytes=0\n")
            return
        for name, (read, written) in (("io_service_bytes", counts[:2]), ("io_serviced", counts[2:])):
            lines = f"{DISK} Read {read}\n{DISK} Write {written}\n{DISK} Total {read + written}\nTotal 0\n"
            (folder / f"blkio.throttle.{name}").write_text(lines)

    def rein(self):
        return DiskRein.open([self.group], self.knobs, sys=self.folder / "sys")

    def done_by_all(self, read, written, reads, writes):
        """What the host's disk has done, in sectors."""
        stat = self.folder / "sys/dev/block" / DISK / "stat"
        stat.parent.mkdir(parents=True, exist_ok=True)
        stat.write_text(f" {reads} 0 {read // 512} 9 {writes} 0 {written // 512} 9 0 9 9 0 0 0 0 0 0\n")

    def limits(self, group=None):
        folder = (group or self.group).paths[CgroupController.IO]
        files = [path for path in sorted(folder.iterdir()) if path.name == "io.max" or path.name.endswith("ps_device")]
        return {path.name: path.read_text().strip() for path in files}


@pytest.fixture(params=["v1", "v2"])
def bench(request, tmp_path):
    bench = Bench(tmp_path, request.param)
    yield bench
    bench.knobs.close()


def busy(bench):
    """A rein that has seen BE write 40 MB/s in 400 writes a second."""
    rein = bench.rein()
    bench.done(0, 0, 0, 0)
    assert rein.read_use(-2.0) == {}
    bench.done(0, 40_000_000, 0, 400)
    assert rein.read_use(-1.0) == {USED: 1.0, FELL[Rein.DISK]: 0.0}
    bench.done(0, 80_000_000, 0, 800)
    assert rein.read_use(0.0) == {USED: 1.0, FELL[Rein.DISK]: 0.0}
    return rein


def test_level_is_a_share_of_the_most_seen(bench):
    rein, before = busy(bench), bench.limits()
    rein.hold(0.25)
    after = bench.limits()
    if "io.max" in after:
        assert after == {"io.max": f"{DISK} rbps={CARRIED / 16:.0f} wbps={CARRIED / 4:.0f} riops=25 wiops=100"}
    else:
        assert after["blkio.throttle.write_bps_device"] == f"{DISK} {CARRIED / 4:.0f}"
        assert after["blkio.throttle.write_iops_device"] == f"{DISK} 100"
        assert after["blkio.throttle.read_bps_device"] == f"{DISK} {CARRIED / 16:.0f}"
    bench.done(0, 80_000_000 + round(CARRIED / 8), 0, 801)
    assert rein.read_use(1.0)[USED] == pytest.approx(0.125), "half of what it might"
    rein.hold(None)
    assert bench.limits() == before


def test_others_bytes_are_left_to_them(bench):
    bench.done_by_all(0, 0, 0, 0)
    rein = bench.rein()
    for second in range(3):
        bench.done(0, 20_480_000 * second, 0, 100 * second)
        bench.done_by_all(0, 51_200_000 * second, 0, 3000 * second)
        rein.read_use(float(second))
    assert rein.most[DISK] == (10e6, 51_200_000.0, 100.0, 3000.0), "what all together did"
    rein.hold(1.0)
    text = " ".join(bench.limits().values())
    assert str(round(DISK_CARRIED_RATIO * 51_200_000 - 30_720_000)) in text, "everything is what the LC does not feel"
    assert "3000" in text, "small writes of the LC are no measure of how many more there may be"
    bench.done(0, 40_960_000, 0, 200)
    bench.done_by_all(0, 102_400_000 + 51_200_000, 0, 9000)
    rein.read_use(3.0)
    rein.hold(1.0)
    assert f"{LEAST[1]:.0f}" in " ".join(bench.limits().values()), "the LC fills it by itself"


def write(bench, rein, second, written, *, missed=False, calm=True):
    """A window at everything, of which BE wrote so much until now; what rlctl reads of it."""
    bench.done(0, round(written), 0, 800 + 10 * second)
    readings = rein.read_use(float(second))
    rein.judge(missed=missed, calm=calm, ran_ratio=1.0)
    rein.hold(1.0)
    return readings


def may_write(bench):
    """What the kernel lets BE write in a second."""
    text = bench.limits().get("io.max") or f"wbps={bench.limits()['blkio.throttle.write_bps_device'].split()[1]} "
    return float(text.split("wbps=")[1].split()[0])


def test_late_answers_lower_what_the_disk_carries(bench):
    rein, written = busy(bench), 80_000_000.0
    rein.hold(1.0)
    write(bench, rein, 1, written, missed=True)
    assert may_write(bench) == CARRIED, "BE wrote nothing"
    write(bench, rein, 2, written := written + CARRIED, missed=True)
    assert may_write(bench) == pytest.approx(DISK_CARRIED_RATIO * CARRIED, abs=1.0), "all that it was asked to"
    assert rein.most[DISK][1] == FULL_RATIO * 40e6, "which a later run begins with"
    fell = [write(bench, rein, second, written)[FELL[Rein.DISK]] for second in (3, 4)]
    assert fell == [pytest.approx(1.0 - DISK_CARRIED_RATIO), 0.0], "told once"
    write(bench, rein, 5, written := written + CARRIED / 2, missed=True)
    assert may_write(bench) == pytest.approx(DISK_CARRIED_RATIO * CARRIED / 2, abs=1.0), "less than it was asked to"


def test_second_late_window_lowers_it_little(bench):
    """A level was halved after the first: what is late then waited before."""
    rein, written = busy(bench), 80_000_000.0
    rein.hold(0.5)
    write(bench, rein, 1, written + may_write(bench), missed=True)
    rein.hold(1.0)
    assert may_write(bench) == pytest.approx(DISK_CARRIED_RATIO * CARRIED, abs=1.0)


def test_failed_trial_on_a_disk_is_taken_back(bench):
    rein, written, second = busy(bench), 80_000_000.0, 0
    rein.hold(1.0)
    while may_write(bench) == CARRIED:
        second += 1
        write(bench, rein, second, written := written + may_write(bench))
    assert second == RETRY_SECONDS, "seconds of a disk that is used as far as it may be"
    assert may_write(bench) == pytest.approx((1.0 + DISK_STEP) * CARRIED, abs=1.0)
    write(bench, rein, second + 1, written + may_write(bench), missed=True)
    assert may_write(bench) == CARRIED
    assert rein.restore_state(rein.most) is None
    rein.hold(1.0)
    assert may_write(bench) == CARRIED, "what held is what another run begins with"


def test_each_disk_falls_by_itself(bench):
    """A window that was missed beside writes on one disk must not cost BE another one."""
    rein = busy(bench)
    rein.restore_state({DISK: rein.most[DISK], "8:0": (50e6, 50e6, 500, 500)})
    write(bench, rein, 1, 80e6 + CARRIED, missed=True)
    assert rein._bound(DISK, 1.0)[1] < CARRIED
    assert rein._bound("8:0", 1.0) == (50e6 * DISK_CARRIED_RATIO, 50e6 * DISK_CARRIED_RATIO, 500.0, 500.0)


@pytest.mark.parametrize("most", [{DISK: (1e6, 1e6)}, {DISK: (1e6, 1e6, 1, "many")}, {DISK: (-1.0, 1e6, 1, 1)}])
def test_strange_state_of_disks_is_refused(bench, most):
    with pytest.raises(ValueError):
        bench.rein().restore_state(most)


WINDOWS = st.tuples(st.floats(0.0, 1e9), st.booleans(), st.booleans(), st.booleans(), st.sampled_from([0.3, 1.0]))


@given(st.lists(WINDOWS, max_size=40))
@settings(deadline=None, max_examples=50)
def test_more_of_a_disk_is_never_less(windows):
    """At any moment a tighter level is a tighter bound, and none is far above what was ever carried."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), "v2")
        rein, written, most = bench.rein(), 0.0, USUAL[1]
        bench.done(0, 0, 0, 0)
        rein.read_use(0.0)
        for second, (did, full, missed, calm, level) in enumerate(windows, 1):
            may = rein._bound(DISK, level)[1] if DISK in rein.most else did
            written += round(may if full else did)
            most = max(most, (may if full else did) / FULL_RATIO)
            rein.hold(level)
            write(bench, rein, second, written, missed=missed, calm=calm)
            if DISK in rein.most:
                bounds = [rein._bound(DISK, each) for each in (0.01, 0.3, 0.6, 1.0)]
                assert all(map(float.__le__, one, other) for one, other in pairwise(bounds))
                assert bounds[-1][1] <= (1.0 + DISK_STEP) * most
        bench.knobs.close()


def test_free_rein_writes_nothing(bench):
    rein, before = busy(bench), len(bench.kernel.writes)
    rein.hold(None)
    rein.close()
    assert len(bench.kernel.writes) == before


def test_level_that_holds_is_not_written_again(bench):
    rein = busy(bench)
    rein.hold(0.25)
    before = len(bench.kernel.writes)
    rein.hold(0.25)
    assert len(bench.kernel.writes) == before


def test_next_to_nothing_is_no_share(bench):
    rein = bench.rein()
    bench.done(0, 0, 0, 0)
    rein.read_use(0.0)
    bench.done(4096, 0, 1, 0)
    assert rein.read_use(1.0)[USED] <= 0.01
    rein.hold(1e-6)
    assert f"{LEAST[0]:.0f}" in " ".join(bench.limits().values())


def test_own_limits_are_never_loosened(bench):
    text = f"{DISK} rbps=max wbps=5000000 riops=max wiops=max"
    folder = bench.group.paths[CgroupController.IO]
    name = "io.max" if (folder / "io.max").exists() else "blkio.throttle.write_bps_device"
    (folder / name).write_text((text if name == "io.max" else f"{DISK} 5000000") + "\n")
    rein, before = busy(bench), bench.limits()
    rein.hold(0.5)
    assert "5000000" in bench.limits()[name]
    rein.hold(0.05)
    assert f"{CARRIED / 20:.0f}" in bench.limits()[name]
    rein.hold(None)
    assert bench.limits() == before


def test_others_limit_is_kept(bench):
    rein = busy(bench)
    rein.hold(0.5)
    folder = bench.group.paths[CgroupController.IO]
    name = "io.max" if (folder / "io.max").exists() else "blkio.throttle.write_bps_device"
    (folder / name).write_text(f"{DISK} {'wbps=' if name == 'io.max' else ''}3000000\n")
    for level in (0.6, 0.9, None):
        rein.hold(level)
        assert "3000000" in bench.limits()[name]
    rein.hold(0.05)
    assert f"{CARRIED / 20:.0f}" in bench.limits()[name]


def test_disk_that_is_gone_costs_nobodys_limit(bench):
    rein = busy(bench)
    rein.restore_state({"253:9": [20e6, 20e6, 100.0, 100.0]})
    bench.kernel.detached = {"253:9"}
    rein.hold(0.5)
    folder = bench.group.paths[CgroupController.IO]
    name = "io.max" if (folder / "io.max").exists() else "blkio.throttle.write_bps_device"
    bench.kernel.write(folder / name, f"{DISK} {'wbps=' if name == 'io.max' else ''}1000000")
    for level in (0.6, 0.9, None):
        rein.hold(level)
        assert "1000000" in bench.limits()[name]


def test_others_are_seen_before_be(bench):
    """BE had all of the disk in the window in which it came, beside an LC that used half."""
    rein = bench.rein()
    rein.restore_state({DISK: (40e6, 40e6, 400.0, 400.0)})
    for second in range(3):
        bench.done_by_all(0, 20_480_000 * second, 0, 100 * second)
        rein.read_use(float(second))
    assert rein._bound(DISK, 1.0)[1] == pytest.approx(CARRIED - 20_480_000)


@pytest.mark.parametrize("file", ["stat", "be"], ids=["of all", "of BE"])
def test_read_that_fails_is_no_rate(bench, monkeypatch, file):
    """All that a disk has done since boot was its work of one second, and BE was held to a share of that for good."""
    bench.done_by_all(0, 10**13, 0, 10**10)
    bench.done(0, 10**12, 0, 10**9)
    rein, read = bench.rein(), bench.kernel.read

    def refuse(path):
        if file in (path.name, path.parent.name):
            raise OSError(errno.EMFILE, "Too many open files")
        return read(path)

    for second in range(5):
        bench.done(0, 10**12 + 40_000_000 * second, 0, 10**9 + 400 * second)
        bench.done_by_all(0, 10**13 + 40_000_000 * second, 0, 10**10 + 400 * second)
        with monkeypatch.context() as failing:
            if second in (0, 2):
                failing.setattr(bench.kernel, "read", refuse)
                with pytest.raises(CgroupError, match="Too many"):
                    rein.read_use(float(second))
            else:
                rein.read_use(float(second))
    assert rein.most[DISK] == (10e6, pytest.approx(40e6, rel=0.01), 100.0, 400.0)


def test_groups_have_equal_parts_of_it(bench):
    rein, other = busy(bench), bench.make("other")
    rein.follow([bench.group, other])
    rein.hold(0.5)
    for group in (bench.group, other):
        assert f"{CARRIED / 4:.0f}" in " ".join(bench.limits(group).values())
    bench.kernel.writes.clear()
    other.remove()
    rein.hold(0.25)
    assert f"{CARRIED / 8:.0f}" in " ".join(bench.limits().values()), (
        "half of a quarter, until somebody says that it went"
    )


def test_new_group_counts_from_its_second_look(bench):
    rein, other = busy(bench), bench.make("other")
    bench.done(0, 10**12, 0, 10**9, group=other)
    rein.follow([bench.group, other])
    assert rein.read_use(1.0)[USED] == 0.0


def test_originals_come_back_after_a_kill(bench):
    before = bench.limits()
    busy(bench).hold(0.25)
    again = DiskRein.open([bench.group], Knobs(bench.knobs._journal, bench.kernel), sys=bench.folder / "sys")
    bench.done(0, 80_000_000, 0, 800)
    again.read_use(0.0)
    bench.done(0, 160_000_000, 0, 1600)
    again.read_use(2.0)
    again.hold(0.9)
    again.hold(None)
    assert bench.limits() == before
    again.hold(0.1)
    bench.knobs._journal.close()
    assert restore(bench.folder / "state", kernel=bench.kernel, force=True).ok
    assert bench.limits() == before


def test_refused_limit_is_raised_and_others_tried(bench):
    rein, other = busy(bench), bench.make("other")
    rein.follow([bench.group, other])
    bench.kernel.ignored = {"io.max", "blkio.throttle.write_bps_device"}
    with pytest.raises(CgroupError, match="reads back"):
        rein.hold(0.5)
    bench.kernel.ignored = set()
    rein.hold(0.5)
    assert f"{CARRIED / 4:.0f}" in " ".join(bench.limits(other).values())


def test_group_without_the_controller_is_refused(bench):
    inner = Group.create(bench.layout, "elsewhere", bench.knobs)
    if CgroupController.IO in inner.paths:
        (inner.paths[CgroupController.IO] / "io.max").unlink(missing_ok=True)
    with pytest.raises(CgroupError, match=r"no group in the|shares no io controller"):
        DiskRein.open([inner], bench.knobs)


def test_groups_within_are_held_too(bench):
    if (bench.group.paths[CgroupController.IO] / "io.max").exists():
        pytest.skip("v2 holds them by their parent's limit")
    inner = bench.make("be/inner")
    rein = busy(bench)
    bench.done(0, 0, 0, 0, group=inner)
    rein.hold(0.5)
    assert f"{DISK} {CARRIED / 4:.0f}" in bench.limits(inner).values()


def memory():
    file = os.memfd_create("rlctl-test-disk")
    os.ftruncate(file, 64 << 20)
    return file


def written_in(seconds, disk):
    """Bytes in a second that a disk has written meanwhile."""
    stat, begun = Path(f"/sys/dev/block/{disk.device}/stat"), time.monotonic()
    before = int(stat.read_text().split()[6])
    time.sleep(seconds)
    return 512 * (int(stat.read_text().split()[6]) - before) / (time.monotonic() - begun)


@pytest.mark.host
@pytest.mark.parametrize("where", ["be", "be/inner"])
def test_real_writer_is_held_to_its_share(where, tmp_path):
    layout = needs(CgroupController.IO, programs=["dd"])
    name, knobs = f"rlctl-test-rein-{os.getpid()}", Knobs(Journal.open(tmp_path))
    group = Group.create(layout, f"{name}/be", knobs, [CgroupController.IO])
    home = Group.create(layout, f"{name}/{where}", knobs, [CgroupController.IO]) if where != "be" else group
    with loop_device(memory, 0) as disk:
        loop = 'while dd if=/dev/zero of="$0" oflag=direct bs=256k count=200 status=none; do :; done'
        writer = subprocess.Popen(["sh", "-c", f"read _; {loop}", f"/dev/{disk.name}"], stdin=subprocess.PIPE)
        try:
            home.attach(writer.pid)
            writer.stdin.write(b"\n")
            writer.stdin.close()
            rein = DiskRein.open([group], knobs)
            for _ in range(3):
                rein.read_use(time.monotonic())
                time.sleep(1.0)
            bound = 0.2 * DISK_CARRIED_RATIO * rein.most[disk.device][1]
            rein.hold(0.2)
            # What the kernel let through before the limit is spent first. A busy host only slows the writer.
            time.sleep(1.0)
            assert 0.0 < written_in(2.0, disk) <= 1.1 * bound
            rein.hold(None)
            assert any(written_in(1.0, disk) > 1.5 * bound for _ in range(20)), "it is free again"
        finally:
            # The loop may have begun a new dd since the group was listed.
            while pids := group.pids():
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.01)
            writer.wait()
            report = restore(tmp_path, force=True)
            Group.open(layout, name, knobs).remove()
            assert report.ok, str(report)
