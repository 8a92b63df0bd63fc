"""A file written whole or not at all: whoever reads it, after a crash of the writer too, has the old or the new one."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def whole(path: Path, *, lasting: bool = False) -> Iterator[IO[bytes]]:
    """A file to write: a `.part` beside it, which takes its place in the end; its folder is made if need be.

    Args:
        lasting: Wait until the disk has it. Else a machine that loses its power soon may have an empty file.

    Raises:
        OSError: It cannot be written, with the file's name; what was there before still is.
    """
    try:
        if os.path.lexists(path) and stat.S_IFMT(path.lstat().st_mode) in (stat.S_IFCHR, stat.S_IFBLK):
            raise OSError(errno.EINVAL, "is a device", str(path))  # /dev/null would be a file, and root's, afterwards
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.part")
        with open(partial, "wb", opener=_open_safely) as file:
            yield file
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk is met by a write, which knows no names
        raise


def write_whole(path: Path, text: str, *, lasting: bool = False) -> None:
    """Write a text file, as `whole` does."""
    with whole(path, lasting=lasting) as file:
        file.write(text.encode())


def write_json(path: Path, data: object, *, lasting: bool = False) -> None:
    """Write data as indented JSON, as `whole` does."""
    write_whole(path, json.dumps(data, indent=1) + "\n", lasting=lasting)


def _open_safely(path: str, flags: int) -> int:
    """Not through a link that somebody put in the file's place, and not waiting for who reads a FIFO there."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
