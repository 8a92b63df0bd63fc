"""The journal survives what happens to hosts: crashes, full disks, reboots, several starts."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import ConfigError, HostError, PermissionMissing, RlctlError
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import COMPACT_ENTRIES, JOURNAL, LOCK, UNREADABLE, Entry, Journal, load, state_error
from rlctl.envs.host.cgroup.kernel import KernelFiles
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import CgroupController
from rlctl.envs.host.cgroup.restore import restore
from rlctl.envs.host.cgroup.values import Quota

Bench = Any
LIMITS = Limits(cpus=2)


def entry(name: str = "cpu.max", original: str = "max 100000\n") -> Entry:
    return Entry(Path("/sys/fs/cgroup/be") / name, original, (31, 4711))


def full(*_: object) -> None:
    """Stands for a call that finds no room on the disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@given(st.binary(max_size=60), st.integers(0, 2**63), st.text(st.characters(exclude_characters="\0"), min_size=1))
def test_any_original_survives(original: bytes, inode: int, name: str) -> None:
    written = Entry(Path("/") / name, original.decode(errors="surrogateescape"), (1, inode))
    read = Entry.from_line(written.to_line())
    assert read == written
    assert read.original.encode(errors="surrogateescape") == original


@given(st.binary(max_size=40))
def test_no_line_breaks_the_reader(line: bytes) -> None:
    with pytest.raises(ValueError):
        Entry.from_line(line)


@pytest.mark.parametrize("line", ["{}", "[]", "1", '{"path": 1, "original": "", "identity": [1]}', "[" * 100_000])
def test_other_json_is_no_entry(line: str) -> None:
    with pytest.raises(ValueError):
        Entry.from_line(line.encode())


@given(cut=st.integers(1, 60))
def test_a_torn_last_line_costs_nothing_before_it(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    state = tmp_path_factory.mktemp("state")
    with Journal.open(state) as journal:
        journal.record([entry("cpu.max")])
        journal.record([entry("cpu.weight", "100\n")])
    path = state / JOURNAL
    path.write_bytes(path.read_bytes()[:-cut])
    assert load(state).entries == (entry("cpu.max"),)
    with Journal.open(state) as journal:
        assert journal.entries == [entry("cpu.max")]
        journal.record([entry("cpu.idle", "0\n")])
    assert load(state).entries == (entry("cpu.max"), entry("cpu.idle", "0\n"))
    assert not load(state).unreadable


def test_entries_are_on_disk_before_record_returns(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        journal.record([entry()])
        assert load(tmp_path).entries == (entry(),)


def test_record_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power failure the originals are known: the content is flushed after it was written, before the return."""
    write, flush, calls = os.pwrite, os.fdatasync, list[str]()
    monkeypatch.setattr(os, "pwrite", lambda *args: calls.append("write") or write(*args))
    monkeypatch.setattr(os, "fdatasync", lambda file: calls.append("flush") or flush(file))
    with Journal.open(tmp_path) as journal:
        calls.clear()
        journal.record([entry()])
        assert calls == ["write", "flush"]


def test_held_originals_are_kept_once_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waited in memory for a full disk is as much the journal's as what came after it."""
    with Journal.open(tmp_path) as journal:
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            journal.record([entry("cpu.max")], in_memory=True)
        assert journal.unstored == [entry("cpu.max")]
        journal.record([entry("cpu.weight", "100\n")], in_memory=True)
        assert journal.unstored == []
        assert journal.entries == [entry("cpu.max"), entry("cpu.weight", "100\n")]
        (tmp_path / JOURNAL).unlink()
        journal.defend()  # writes anew what it knows
    assert load(tmp_path).entries == (entry("cpu.max"), entry("cpu.weight", "100\n"))


def test_full_disk_stops_write_that_would_follow(tmp_path: Path, fake: Bench) -> None:
    group = fake.group()
    journal = fake.open_journal()
    fake.fake.writes.clear()
    os.close(journal._file)
    journal._file = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(HostError, match=r"cannot store the originals.*nothing is changed"):
        BeActuator([group], (1, 0), LIMITS, fake.knobs())
    assert not fake.fake.writes


def test_disk_has_room_for_new_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write = tmp_path / JOURNAL, os.pwrite
    with Journal.open(tmp_path) as journal:
        allocated = path.stat().st_blocks * 512

        def only_within(file: int, data: bytes, at: int) -> int:
            return write(file, data, at) if at + len(data) <= allocated else write(file, data[:100], at)

        monkeypatch.setattr("rlctl.envs.host.cgroup.journal.os.pwrite", only_within)
        monkeypatch.setattr("rlctl.envs.host.cgroup.journal.os.posix_fallocate", full)
        for _ in range(10):
            journal.record([entry(f"cpu.{number}") for number in range(100)])
        with pytest.raises(HostError, match="the disk is full"):
            journal.record([entry(f"cpu.{number}") for number in range(10_000)])
        assert len(load(tmp_path).entries) == 1000, "what was not recorded is not there"
    assert path.stat().st_size < allocated, "a journal that is closed holds no room"
    with Journal.open(tmp_path) as journal:
        assert len(journal.entries) == 1000


def test_full_disk_is_told_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlctl.envs.host.cgroup.journal.os.pwrite", full)
    with pytest.raises(HostError, match=f"{tmp_path / LOCK}: No space left on device: name another state directory"):
        Journal.open(tmp_path)


@pytest.mark.parametrize("call", ["open", "ftruncate"])  # newer kernels let an ext4 file be opened all the same
def test_originals_come_back_from_read_only_disk(fake: Bench, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """As `errors=remount-ro` leaves it: the lock could not be opened, and after a crash BE stayed frozen."""
    group = fake.group()
    BeActuator([group], (1, 0), LIMITS, fake.knobs()).apply(Allocation(0.25, 1))
    fake.close_journal()
    open_file = os.open

    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def opened(path: Path, flags: int, *mode: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            read_only()
        return open_file(path, flags, *mode)

    monkeypatch.setattr(f"rlctl.envs.host.cgroup.journal.os.{call}", opened if call == "open" else read_only)
    monkeypatch.setattr("rlctl.envs.host.cgroup.journal.os.replace", read_only)
    with pytest.raises(PermissionMissing, match="Read-only file system"):
        Journal.open(fake.state_dir, fake.proc)
    report = fake.restore()
    assert report.ok
    assert "Read-only file system): remove it before the next start" in report.note
    assert group.cpu.quota().quota_us is None


def test_file_system_without_reserve_takes_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr("rlctl.envs.host.cgroup.journal.os.posix_fallocate", none)
    with Journal.open(tmp_path) as journal:
        journal.record([entry()])
        assert load(tmp_path).entries == (entry(),)


def test_a_shortage_of_descriptors_loses_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that is made shorter gives up its old file only for one that it can write to."""
    entries = [entry(f"cpu.{number}") for number in range(COMPACT_ENTRIES)]
    with Journal.open(tmp_path) as journal:
        journal.record(entries)
        replace, open_file = os.replace, os.open

        def used_up(*_: object) -> int:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        def replaced(fresh: Path, path: Path) -> None:
            replace(fresh, path)
            monkeypatch.setattr("rlctl.envs.host.cgroup.journal.os.open", used_up)

        monkeypatch.setattr("rlctl.envs.host.cgroup.journal.os.replace", replaced)
        journal.compact([(entries[0].path, entries[0].identity)])
        journal.record([entry("cpu.max")])
        monkeypatch.setattr("rlctl.envs.host.cgroup.journal.os.open", open_file)
        assert load(tmp_path).entries == (entries[0], entry("cpu.max"))


def test_a_closed_journal_takes_nothing(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    journal.close()
    journal.close()
    with pytest.raises(HostError, match="closed"):
        journal.record([entry()])


def test_the_lock_is_free_again_after_close(tmp_path: Path) -> None:
    Journal.open(tmp_path).close()
    Journal.open(tmp_path).close()


def test_a_state_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file/state: Not a directory: name another state directory$"):
        Journal.open(tmp_path / "file/state")


def test_only_who_may_not_write_needs_root() -> None:
    denied = state_error(Path("/var/lib/rlctl"), PermissionError(errno.EACCES, "Permission denied"))
    assert isinstance(denied, PermissionMissing)
    assert str(denied) == "/var/lib/rlctl: Permission denied: run as root, or name another state directory"
    assert state_error(Path("/proc/nix"), FileNotFoundError(errno.ENOENT, "No such file or directory")).exit_code == 78
    assert state_error(Path("/full"), OSError(errno.ENOSPC, "No space left on device")).exit_code == 75


def reboot(bench: Bench) -> None:
    (bench.proc / "sys/kernel/random/boot_id").write_text("another-boot\n")


def test_after_a_reboot_the_journal_is_set_aside(fake: Bench) -> None:
    group = fake.group()
    BeActuator([group], (1, 0), LIMITS, fake.knobs()).apply(Allocation(0.25, 1))
    reboot(fake)
    report = fake.restore()
    assert report.ok
    assert "earlier boot" in report.note
    assert group.cpu is not None
    assert group.cpu.quota() == Quota(2500, 10_000), "whatever it holds now is not ours"
    assert fake.restore().note == "nothing to do"
    assert (fake.state_dir / f"{JOURNAL}.obsolete").exists()


def test_a_controller_begins_anew_after_a_reboot(fake: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    fake.open_journal().record([entry()])
    fake.close_journal()
    reboot(fake)
    journal = fake.open_journal()
    assert journal.entries == []
    assert f"kept as {fake.state_dir / JOURNAL}.obsolete" in caplog.text
    assert load(fake.state_dir).boot_id == "another-boot"


@pytest.mark.parametrize("garbage", [b"\xff" * 40, b"no header\nno entry\n"])
def test_unreadable_journal_is_kept_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture, garbage: bytes) -> None:
    (tmp_path / JOURNAL).write_bytes(garbage)
    with Journal.open(tmp_path) as journal:
        journal.record([entry()])
    assert (tmp_path / UNREADABLE).read_bytes() == garbage
    assert f"kept as {tmp_path / UNREADABLE}" in caplog.text
    assert load(tmp_path).entries == (entry(),)


def test_damaged_line_keeps_journal_and_says_which(fake: Bench) -> None:
    group = fake.group()
    BeActuator([group], (1, 0), LIMITS, fake.knobs()).apply(Allocation(0.25, 1))
    fake.close_journal()
    lines = (fake.state_dir / JOURNAL).read_text().splitlines()
    lines.insert(1, "garbage")
    (fake.state_dir / JOURNAL).write_text("\n".join(lines) + "\n")
    report = fake.restore()
    assert not report.ok
    assert "line 2 is unreadable" in str(report)
    assert group.cpu is not None
    assert group.cpu.quota().quota_us is None, "the other lines are put back"
    assert (fake.state_dir / JOURNAL).exists()


def test_what_another_keeps_changing_is_kept(fake: Bench) -> None:
    group = fake.group()
    BeActuator([group], (1, 0), LIMITS, fake.knobs()).apply(Allocation(0.25, 1))
    fake.fake.ignored = {"cpuset.cpus"}
    report = fake.restore()
    assert not report.ok
    assert [item.path.name for item in report.failed] == ["cpuset.cpus"]
    assert "another program" in str(report)
    fake.fake.ignored = set()
    assert fake.restore().ok


def test_restoring_without_permission_says_so(fake: Bench) -> None:
    group = fake.group()
    BeActuator([group], (1, 0), LIMITS, fake.knobs()).apply(Allocation(0.25, 1))
    fake.fake.denied = {"cpuset.cpus"}
    report = fake.restore()
    assert "run as root" in str(report)
    assert not report.ok


def test_failing_file_keeps_no_other_back(fake: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    group = fake.group()
    before = {path: path.read_text() for path in group.knob_files("quota", "cpus", "frozen")}
    BeActuator([group], (1, 0), LIMITS, fake.knobs()).apply(Allocation(0.25, 1))
    seen, read = list[Path](), fake.kernel.read

    def failing(path: Path) -> str:
        seen.append(path)
        if path.name == "cpuset.cpus" and seen.count(path) == 2:  # it was there a moment ago
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return read(path)

    monkeypatch.setattr(fake.kernel, "read", failing)
    report = fake.restore()
    assert report.ok, report
    assert {path: path.read_text() for path in before} == before


@pytest.mark.parametrize("fake", ["v2"], indirect=True)  # v1 has nothing to enable
def test_enabled_controllers_are_switched_off_again(fake: Bench) -> None:
    control = fake.layout.mounts["cpu"].path / "cgroup.subtree_control"
    before = control.read_text()
    group = fake.group(knobs=fake.knobs())
    assert set(control.read_text().split()) == {"cpu", "cpuset"}
    group.remove()
    assert fake.restore().ok
    assert control.read_text() == before


def test_a_weight_that_idle_resets_comes_back(fake: Bench) -> None:
    group = fake.group()
    assert group.cpu is not None
    group.cpu.set_weight(700)
    Group.open(fake.layout, group.name, fake.knobs()).cpu.set_idle(True)  # type: ignore[union-attr]
    assert group.cpu.weight() != 700
    assert fake.restore().ok
    assert (group.cpu.weight(), group.cpu.idle()) == (700, False)


def test_a_journal_is_plain_json_lines(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        journal.record([entry()])
    header, line = map(json.loads, (tmp_path / JOURNAL).read_text().splitlines())
    assert header["journal"] == 1
    assert line.keys() - {"path", "original", "identity"} == {"crc"}, "its checksum, as in a tick log"
    assert line["path"] == "/sys/fs/cgroup/be/cpu.max"
    assert (line["original"], line["identity"]) == ("max 100000\n", [31, 4711])


def test_nothing_to_restore_makes_no_directory(tmp_path: Path) -> None:
    assert restore(tmp_path / "nowhere").note == "nothing to do"
    assert not (tmp_path / "nowhere").exists()


def take_away(state: Path, how: str) -> None:
    path = state / JOURNAL
    match how:
        case "unlinked":
            path.unlink()
        case "replaced by its copy":
            path.with_name("copy").write_bytes(path.read_bytes())
            path.with_name("copy").rename(path)
        case "linked elsewhere":
            path.unlink()
            path.symlink_to(state.parent / "elsewhere")
        case "moved with its directory":
            state.rename(state.parent / "moved")


@pytest.mark.parametrize("how", ["unlinked", "replaced by its copy", "linked elsewhere", "moved with its directory"])
def test_lost_journal_is_written_anew(fake: Bench, how: str) -> None:
    group = fake.group()
    be = BeActuator([group], (0, 1), LIMITS, fake.knobs())
    be.apply(Allocation(0.5, 1))
    known = load(fake.state_dir).entries
    take_away(fake.state_dir, how)
    be.apply(Allocation(0.3, 1))
    assert set(load(fake.state_dir).entries) >= set(known)
    assert not (fake.state_dir.parent / "elsewhere").exists()
    assert fake.restore().ok
    assert group.cpu.quota().quota_us is None


def test_ancestor_s_freeze_is_no_original(fake: Bench) -> None:
    """Put back as it was read, FROZEN would leave a group frozen that nobody had frozen."""
    above = fake.group("above")
    group = fake.group("above/below")
    assert above.freezer is not None
    assert group.freezer is not None
    above.freezer.order(True)
    BeActuator([group], (0, 1), LIMITS, fake.knobs())
    above.freezer.order(False)
    fake.restore()
    assert not group.freezer.is_ordered()


def test_one_that_restore_has_set_aside_stays_aside(fake: Bench) -> None:
    with Journal.open(fake.state_dir, fake.proc) as journal:
        journal.record([entry()])
        restore(fake.state_dir, kernel=fake.kernel, proc=fake.proc, force=True)
        journal.defend()
        assert not (fake.state_dir / JOURNAL).exists()


@pytest.mark.parametrize("bench", ["v1", pytest.param("real", marks=pytest.mark.host)], indirect=True)
def test_renamed_v1_group_gets_its_originals(bench: Bench) -> None:
    if bench.layout.mounts[CgroupController.CPU].version == 2:
        pytest.skip("cgroup v2 lets no group be renamed")
    outer = bench.group()
    inner = bench.group(f"{outer.name}/inner")
    outer.cpu.set_quota(Quota(70_000, 100_000))
    knobs = bench.knobs()
    BeActuator([inner], (1, 0), LIMITS, knobs).apply(Allocation(0.25, 1))
    for directory in outer.directories:
        if bench.fake or not (directory / "cgroup.controllers").exists():  # the v2 side of a hybrid host
            directory.rename(directory.with_name(f"{outer.name}-renamed"))
    renamed = Group.open(bench.layout, f"{outer.name}-renamed/inner", knobs)
    bench.groups.append(Group.open(bench.layout, f"{outer.name}-renamed", Knobs(None, bench.kernel)))
    assert renamed.cpu.originally().quota_us is None, "what it was restricted to is no original of the new name's"
    BeActuator([renamed], (1, 0), LIMITS, knobs).apply(Allocation(0.5, 1))
    report = bench.restore()
    assert report.ok
    assert not report.skipped
    assert renamed.cpu.quota().quota_us is None
    assert not renamed.freezer.is_ordered()


@pytest.mark.parametrize("name", [JOURNAL, LOCK])
@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_file_of_state_directory_is_file(tmp_path: Path, name: str, kind: str) -> None:
    state, victim = tmp_path / "state", tmp_path / "victim"
    state.mkdir()
    victim.write_text("precious")
    os.mkfifo(state / name) if kind == "fifo" else (state / name).symlink_to(victim)
    with pytest.raises(RlctlError, match=name):
        Journal.open(state)
    assert victim.read_text() == "precious"


@pytest.mark.host
def test_a_directory_of_another_user_is_believed_nothing(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "state") as journal:
        journal.record([entry()])
    os.chown(tmp_path / "state", 12345, 12345)
    with pytest.raises(ConfigError, match="others may write in it"):
        restore(tmp_path / "state", force=True)


def test_restore_of_a_forged_journal_writes_nothing_else(tmp_path: Path) -> None:
    """Whatever a journal says, only files of control groups and of resctrl are written."""
    (victim := tmp_path / "passwd").write_text("root")
    with Journal.open(tmp_path / "state") as journal:
        journal.record([Entry(victim, "forged", KernelFiles().identity(tmp_path))])
    assert not restore(tmp_path / "state", patience_seconds=0.0).ok
    assert victim.read_text() == "root"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_others_directory_is_believed_nothing(tmp_path: Path, mode: int) -> None:
    with Journal.open(tmp_path / "state") as journal:
        journal.record([entry()])
    (tmp_path / "state").chmod(mode)
    with pytest.raises(ConfigError, match="chmod go-w"):
        restore(tmp_path / "state", force=True)
    with pytest.raises(ConfigError, match="chmod go-w"):
        Journal.open(tmp_path / "state")
