"""Who holds a group's originals: a mark on its directory that outlives whoever made it.

A crashed controller leaves its settings in BE's groups and the originals in its state directory. One that begins with
another state directory must not take those settings for originals. The mark is an extended attribute of the group's
directory, so it goes with the group and with the boot, and is seen from every mount. It is believed only while the
state directory that it names, which must be nobody else's to write, still has an original of that very group: so it
keeps nobody out for nothing, and nobody can forge one who could not forge a journal.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from rlctl.envs.errors import PermissionMissing, RlctlError
from rlctl.envs.host.cgroup.journal import load
from rlctl.envs.host.cgroup.kernel import identity_of

# Of the namespace that needs no capability, only permission to write the directory; kernels before 5.7 lack it.
ATTRIBUTE = "user.rlctl.originals"


def mark(directory: Path, state_dir: Path) -> None:
    """Say that a state directory has this group's originals, or is about to; no more than a kernel allows."""
    with contextlib.suppress(OSError):
        os.setxattr(directory, ATTRIBUTE, os.fsencode(state_dir.absolute()))


def marked(directory: Path) -> Path | None:
    """The state directory that a group's mark names, believed or not."""
    try:
        name = os.getxattr(directory, ATTRIBUTE)
    except OSError:
        return None
    return Path(os.fsdecode(name)) if name.startswith(b"/") and b"\0" not in name else None


def other_holder(directory: Path, state_dir: Path) -> Path | None:
    """Another state directory than this one that has a group's originals; None if none has."""
    there = marked(directory)
    if there is None or identity_of(there) == identity_of(state_dir):
        return None
    return there if holds(there, directory) else None


def holds(state_dir: Path, directory: Path) -> bool:
    """Whether a state directory has originals of a group; one that may not be read may have."""
    # The mark is of this boot, and who made it has set a journal of an earlier one aside.
    try:
        return identity_of(directory) in {entry.identity for entry in load(state_dir).entries}
    except PermissionMissing:
        return True
    except RlctlError:
        return False


def unmark(directories: Iterable[Path], state_dir: Path) -> None:
    """Take a state directory's mark off groups once it has no journal any more."""
    with contextlib.suppress(RlctlError):
        if load(state_dir).entries:
            return
    ours = identity_of(state_dir)
    for directory in directories:
        if (there := marked(directory)) is not None and identity_of(there) == ours:
            with contextlib.suppress(OSError):
                os.removexattr(directory, ATTRIBUTE)
