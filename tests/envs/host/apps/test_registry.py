"""Registrations: noticed when they change, believed only from who may write them."""

import os

import pytest

from rlctl.envs.host.apps.registry import AppMode, Registration, Registry
from rlctl.envs.host.process import start_time


@pytest.fixture
def registry(tmp_path):
    return Registry(tmp_path / "apps")


def a_registration(name="encoder", pid=None, **changes):
    pid = pid or os.getpid()
    said = {"name": name, "pid": pid, "start_time": start_time(pid) or 1, "group": f"be/{pid}:{name}"}
    return Registration(**(said | {"modes": (AppMode(cpus=1.0, threads=2),)} | changes))


def test_what_is_added_is_read_back_the_same(registry):
    one = a_registration(priority=3)
    registry.add(one)
    assert registry.read() == {one.key: one}
    assert one.key == f"{os.getpid()}:encoder"


def test_changes_are_noticed_however_fast_they_come(registry):
    assert registry.read() == {}
    for number in range(50):
        registry.add(a_registration(f"app{number}"))
        assert len(registry.read()) == number + 1
    registry.remove(a_registration("app7").key)
    assert len(registry.read()) == 49


def test_an_unchanged_directory_is_not_read_again(registry, monkeypatch):
    registry.add(a_registration())
    os.utime(registry.directory, ns=(0, 1_000_000_000))  # long ago
    known = registry.read()
    monkeypatch.setattr(os, "listdir", lambda _: pytest.fail("read again"))
    assert registry.read() is known


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o622])
def test_file_that_others_may_write_does_not_count(registry, mode, caplog):
    registry.add(a_registration())
    registry.path(a_registration().key).chmod(mode)
    assert registry.read() == {}
    assert registry.read() == {}
    assert caplog.text.count("does not count") == 1, "said once"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_does_not_count(registry):
    registry.add(a_registration())
    os.chown(registry.path(a_registration().key), 12345, 12345)
    assert registry.read() == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": 1}', "[" * 100_000, "x" * 100_000])
def test_foreign_file_is_said_and_left_out(registry, text, caplog):
    registry.add(a_registration())
    other = registry.path("5:other")
    other.write_text(text)
    other.chmod(0o644)
    assert list(registry.read()) == [a_registration().key]
    assert "not an application" in caplog.text


def test_directory_in_files_place_is_said(registry, caplog):
    registry.add(a_registration())
    registry.path("5:other").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    assert list(registry.read()) == [a_registration().key]
    assert len(os.listdir("/proc/self/fd")) == before
    assert "Is a directory" in caplog.text


def test_registration_counts_under_its_name_below_root(registry):
    one = a_registration()
    registry.add(one)
    registry.path(one.key).rename(registry.path("5:other"))
    assert registry.read() == {}
    registry.add(a_registration(group="be/../../etc"))
    assert registry.read() == {}


def test_later_process_of_same_number_is_another():
    assert a_registration().runs()
    assert not a_registration(start_time=1).runs()
    assert not a_registration(pid=2**22 + 1).runs()


def test_mode_of_application_is_replaced_as_whole(registry):
    registry.add(a_registration())
    registry.write_mode("1:x", "mode 0 threads 1 millicpus 1 memory 0\n")
    before = registry.mode_file("1:x").stat().st_ino
    registry.write_mode("1:x", "mode 1 threads 1 millicpus 1 memory 0\n")
    assert registry.mode_file("1:x").stat().st_ino != before
    assert registry.mode_file("1:x").stat().st_mode & 0o777 == 0o644
    registry.remove("1:x")
    assert not registry.mode_file("1:x").exists()
