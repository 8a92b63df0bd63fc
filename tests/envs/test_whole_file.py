"""A file is the old one or the new one, never half of it."""

import errno
import os
from pathlib import Path

import pytest

from rlctl.envs.whole_file import write_whole


def test_file_is_written_with_its_folder(tmp_path):
    path = tmp_path / "new" / "result.json"
    write_whole(path, "é\n")
    assert path.read_text(encoding="utf-8") == "é\n"
    assert [one.name for one in path.parent.iterdir()] == ["result.json"]


def test_what_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "result.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\udc80")
    assert path.read_text() == "old"


def test_full_disk_is_told_with_file_s_name(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path / 'memory.json'}'"):
        write_whole(tmp_path / "memory.json", "{}")


def test_a_device_is_not_replaced_by_a_file():
    """As root `--json /dev/null` would leave one in its place."""
    with pytest.raises(OSError, match="is a device"):
        write_whole(Path("/dev/null"), "{}")
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("planted", [lambda path: path.symlink_to("elsewhere"), os.mkfifo])
def test_link_or_fifo_in_place_is_not_written(tmp_path, planted):
    (tmp_path / "elsewhere").write_text("another's")
    planted(tmp_path / "holds.json.part")
    with pytest.raises(OSError, match=r"holds\.json"):
        write_whole(tmp_path / "holds.json", "{}")
    assert (tmp_path / "elsewhere").read_text() == "another's"


def test_lasting_things_are_on_disk_first(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append((tmp_path / "holds.json").exists()))
    write_whole(tmp_path / "memory.json", "{}")
    assert synced == []
    write_whole(tmp_path / "holds.json", "{}", lasting=True)
    assert synced == [False]
