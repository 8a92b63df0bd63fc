"""Code that only the start needed is taken out of this process's memory.

Much of what a daemon holds are pages of shared libraries, most of them touched once while they are loaded. They are
clean copies of files, so the kernel can do without them
at any time; it does so by itself only when memory is short.
"""

from __future__ import annotations

import ctypes
import logging
import re
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)

MADV_DONTNEED = 4

_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r-[-x]p \S+ \S+ [1-9]\d* +/\S+\.so(\.\S+)?$")
"""A private mapping of a shared library's file that may not be written."""


def release_pages(process: Path = Path("/proc/self")) -> int:
    """Unmap the pages of shared libraries; what is used again comes back from the page cache, without reading a disk.

    Gives the bytes of address space that were looked through; 0 where procfs does not tell.
    """
    try:
        ranges = list(disposable((process / "smaps").read_text()))
    except OSError:
        return 0
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    done = sum(size for begin, size in ranges if madvise(begin, size, MADV_DONTNEED) == 0)
    log.debug("pages of %d MB of libraries were let go", done >> 20)
    return done


def disposable(smaps: str) -> Iterator[tuple[int, int]]:
    """Address and bytes of every mapping that holds nothing but its file: no page was ever written, nor swapped out.

    The linker writes addresses into some pages and then protects them: those look alike but for being counted here.
    """
    begin = end = 0
    private: dict[str, str] = {}
    for line in smaps.splitlines():
        # VmFlags is the last line of each mapping.
        if line.startswith("VmFlags:"):
            if begin and private == {"Anonymous": "0", "Swap": "0"}:
                yield begin, end - begin
            begin, private = 0, {}
        elif found := _MAPPING.match(line):
            begin, end = int(found[1], 16), int(found[2], 16)
        elif line.startswith(("Anonymous:", "Swap:")):
            name, kilobytes, _ = line.split()
            private[name.rstrip(":")] = kilobytes
