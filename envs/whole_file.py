"""A file written whole or not at all: whoever reads it, after a crash of the writer too, has the old or the new one.

And whether another user could have written a file that this process obeys, or another process has it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from rlctl.envs.errors import PolicyError


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


def other_writer(status: os.stat_result) -> str:
    """Whose file it is, in words, where a user who is neither root nor this process' own may write it; else empty."""
    if status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022:
        return ""
    return f"owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}"


def check_owner(path: Path, status: os.stat_result) -> None:
    """Raise PolicyError where a user who is neither root nor this process' own could have put other content there.

    Args:
        path: Resolved; its folders are looked at as well.
        status: Of the open file, as the path may lead elsewhere by the time of a second look.
    """
    for place, one in ((path, status), *((folder, folder.stat()) for folder in path.parents)):
        # In a folder with the sticky bit, such as /tmp, only the owner of a file can replace it.
        sticky = stat.S_ISDIR(one.st_mode) and one.st_mode & stat.S_ISVTX and one.st_uid in (0, os.geteuid())
        if not sticky and (who := other_writer(one)):
            raise PolicyError(f"others may write {place} ({who}): chown it to root and chmod go-w", path)


def is_ours(file: IO[Any]) -> bool:
    """Whether no other process has this open file, and none gets it until it is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    return True
