"""Only pages that are copies of a library's file are let go: nothing that the process has written."""

import subprocess
import sys

from rlctl.serve.self_usage import disposable, release_pages

MAPPING = """\
{where} {mode} 00000000 fe:00 {inode} {file}
Size:                 64 kB
Rss:                  64 kB
Anonymous:             {anonymous} kB
Swap:                  {swap} kB
VmFlags: rd ex mr mw me
"""
TEXT = {
    "where": "7f0000001000-7f0000011000", "mode": "r-xp", "inode": 42, "file": "    /usr/lib/libthat.so.1",
    "anonymous": 0, "swap": 0,
}  # fmt: skip


def smaps(**changes):
    return MAPPING.format(**{**TEXT, **changes})


def test_code_and_constants_of_a_library_are_disposable():
    assert list(disposable(smaps() + smaps(mode="r--p"))) == [(0x7F0000001000, 0x10000)] * 2


def test_written_or_writable_or_no_library_is_kept():
    kept = (
        smaps(anonymous=4),  # the linker wrote addresses into it
        smaps(swap=4),  # and the kernel put them out of the way
        smaps(mode="rw-p"),
        smaps(mode="r--s"),
        smaps(mode="---p"),
        smaps(inode=0, file=""),
        smaps(inode=0, file="[heap]"),
        smaps(file="/var/lib/data.bin"),
        smaps(file="/usr/lib/libthat.so.1 (deleted)"),
    )
    assert list(disposable("".join(kept))) == []
    assert list(disposable("".join(kept) + smaps())) == [(0x7F0000001000, 0x10000)], "and does not hide its neighbour"


def test_this_interpreter_lives_on_and_is_smaller():
    program = """
import ctypes, decimal, json, ssl, sqlite3, zlib, rlctl.config.serve, rlctl.serve.self_usage as pages
from rlctl.serve.self_usage import self_usage
before = self_usage().resident_bytes
assert pages.release_pages() > 1 << 20
after = self_usage().resident_bytes
assert zlib.decompress(zlib.compress(b"x" * 9999)) == b"x" * 9999
assert decimal.Decimal("1.1") + 1 == decimal.Decimal("2.1")
assert rlctl.config.serve.SloSection(target_milliseconds=1, max_load_rps=1).slo.target_seconds == 1e-3
raise SystemExit(after >= before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_procfs_nothing_happens(tmp_path):
    assert release_pages(tmp_path) == 0
