"""Whether another user could have written a file whose content this process obeys."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from rlctl.envs.errors import PolicyError


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
