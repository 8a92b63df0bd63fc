"""One controller for each BE group, whatever the state directories: two of them would fight over its knobs."""

import os
import shutil

import pytest

from rlctl.envs.errors import HostError
from rlctl.envs.host.cgroup.journal import JOURNAL, Journal
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.locks import ATTRIBUTE, Claims, read_mark
from rlctl.envs.host.cgroup.members import RESTRICTING
from rlctl.envs.host.cgroup.restore import restore
from rlctl.envs.host.cgroup.values import Quota


def test_second_controller_of_group_is_refused(bench, tmp_path):
    group = bench.group()
    with Claims(bench.state_dir) as first, Claims(tmp_path / "other") as second:
        first.take(group)
        first.take(group)  # as at every look
        with pytest.raises(HostError, match=rf"{group.name} is controlled by a running rlctl \(pid {os.getpid()}\)"):
            second.take(group)


def test_released_group_is_free_others_stay_claimed(bench, tmp_path):
    gone, kept = bench.group(), bench.group()
    with Claims(bench.state_dir) as first, Claims(tmp_path / "other") as second:
        first.take(gone)
        first.take(kept)
        first.keep([kept])
        second.take(gone)
        with pytest.raises(HostError):
            second.take(kept)
        first.close()
        second.take(kept)


def test_group_that_was_made_anew_is_another_one(bench, tmp_path):
    group = bench.group()
    with Claims(bench.state_dir) as first, Claims(tmp_path / "other") as second:
        first.take(group)
        group.remove()
        second.take(bench.group(group.name))


def test_of_groups_that_are_gone_nothing_is_kept(bench, tmp_path):
    """Batch groups come and go by the thousand in a service's life."""
    with Claims(bench.state_dir) as claims:
        for _ in range(3):
            group = bench.group()
            claims.take(group)
            group.remove()
            claims.keep(())
        assert not claims._marked


def test_group_within_or_around_claimed_is_refused(bench, tmp_path):
    outer = bench.group()
    inner, beside = bench.group(f"{outer.name}/inner"), bench.group(f"{outer.name}/beside")
    with Claims(bench.state_dir) as first, Claims(tmp_path / "other") as second:
        first.take(outer)
        with pytest.raises(HostError, match=rf"{inner.name} lies within \S+, which is controlled by a running rlctl"):
            second.take(inner)
        first.close()
        second.take(inner)
        with pytest.raises(HostError, match=f"{outer.name} is controlled by a running rlctl"):
            first.take(outer)
        first.take(beside)
        first.close()
        second.take(outer)  # what was above a group of ours is one itself


def crashed(bench):
    """A group whose originals a controller journalled that is no more; its files."""
    group = bench.group()
    with Claims(bench.state_dir) as claims:
        control(bench, claims, group)
    return group


def control(bench, claims, group):
    """Claim it, journal its originals and restrict it, as a controller does."""
    claims.take(group)
    knobs = bench.knobs()
    knobs.remember(group.knob_files(*RESTRICTING))
    group.using(knobs).cpu.set_quota(Quota(2000, 10_000))
    bench.close_journal()


def test_until_originals_are_back_group_is_kept(real, tmp_path):
    group = crashed(real)
    refused = pytest.raises(HostError, match=rf"{real.state_dir} has the originals of .*rlctl restore --state")
    with Claims(tmp_path / "other") as second:
        with refused:
            second.take(group)
        with Claims(real.state_dir) as same:  # who was refused locks nobody out
            same.take(group)
    assert read_mark(group.directories[0]) == real.state_dir, "the originals are still there, and nowhere else"
    assert real.restore().ok
    assert [read_mark(directory) for directory in group.directories] == [None for _ in group.directories]
    with Claims(tmp_path / "other") as second:
        second.take(group)


def test_claims_hold_within_and_above(real, tmp_path):
    outer = crashed(real)
    inner = real.group(f"{outer.name}/inner")
    with Claims(tmp_path / "other") as second, pytest.raises(HostError, match="has the originals"):
        second.take(inner)
    real.restore()
    with Claims(real.state_dir) as first:
        control(real, first, inner)
    with Claims(tmp_path / "other") as second, pytest.raises(HostError, match="has the originals"):
        second.take(outer)


@pytest.mark.parametrize("how", ["removed", "moved", "forged"])
def test_unfounded_mark_keeps_nobody_out(real, tmp_path, caplog, how):
    group, other = crashed(real), tmp_path / "other"
    if how == "moved":
        real.state_dir.rename(other)
    elif how == "removed":
        shutil.rmtree(real.state_dir)
    else:
        real.state_dir.chmod(0o777)
    with Claims(other) as second:
        second.take(group)
    assert ("has its originals no more" in caplog.text) == (how != "moved"), "moved originals are no lost ones"
    real.state_dir = other


@pytest.mark.parametrize(
    "name",
    [b"", b"state", b"/var/lib\0/rlctl", b"/" + b"x" * 5000, b"/\xff\n", b"/dev/zero"],
    ids=["empty", "relative", "with a NUL", "too long", "no UTF-8", "a device"],
)
def test_mark_without_state_directory_is_nobody_s(real, tmp_path, name, caplog):
    group = real.group()
    os.setxattr(group.directories[0], ATTRIBUTE, name)
    with Claims(tmp_path) as claims:
        claims.take(group)
        assert read_mark(group.directories[0]) == tmp_path
    assert all(line.isprintable() and len(line) < 400 for line in caplog.messages)


def test_restore_frees_nobody_another_took_over(real, tmp_path):
    group, other = crashed(real), tmp_path / "other"
    (real.state_dir / JOURNAL).rename(hidden := tmp_path / "hidden")  # on a disk that was not there for a while
    with Claims(other) as second, Journal.open(other) as journal:
        second.take(group)
        Knobs(journal).remember(group.knob_files(*RESTRICTING))
        hidden.rename(real.state_dir / JOURNAL)
        report = real.restore()
        assert not report.ok
        assert f"rlctl restore --state {other}` comes first" in str(report)
        assert group.cpu.quota() == Quota(2000, 10_000)
        journal.close()
        assert restore(other).ok
    assert real.restore().ok
    assert group.cpu.quota().quota_us is None
