"""Kernel files that several LCs or BE groups share: of two services with pairs of their own one alone may write each.

The second would take the first one's settings for originals, and the first to end would undo what both rely on.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from rlctl.envs.errors import CgroupError
from rlctl.envs.host.cgroup.kernel import Identity, identity_of, refusing
from rlctl.envs.host.cgroup.knobs import Knobs

_held: dict[Path, tuple[Identity, int]] = {}


def claim(knobs: Knobs, path: Path) -> None:
    """Keep every other rlctl off a file for as long as this process lives: until its originals are back.

    It is a flock, which ends with the process and which children that it starts do not share; a dry run claims nothing.

    Raises:
        CgroupError: Another one has it. Besides it, what the kernel says of a file that cannot be opened.
    """
    for gone in [one for one, (identity, _) in _held.items() if identity_of(one) != identity]:
        os.close(_held.pop(gone)[1])  # groups come and go for months
    if knobs.dry_run or path in _held:
        return
    with refusing(path, "open it"):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise CgroupError(f"{path}: another running rlctl has it, and would undo at its end what is written") from None
    status = os.fstat(file)
    _held[path] = (status.st_dev, status.st_ino), file
