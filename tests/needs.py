"""What a live test needs of this machine: where it is not here the test is skipped, and says all that is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

import pytest

from rlctl.envs.host.cgroup.layout import CgroupController, Layout

ACTUATORS = (CgroupController.CPU, CgroupController.CPUSET, CgroupController.FREEZER)
COMPILER = ("cc", "gcc", "clang")


def needs(*controllers: CgroupController, programs: Sequence[str | tuple[str, ...]] = (), cpus: int = 0) -> Layout:
    """This host's control groups, for root; skips the test where anything is missing.

    Args:
        controllers: Those beside the actuators that the test cannot do without.
        programs: On PATH or in /usr/sbin; a tuple names alternatives.
        cpus: On how many this process must be allowed to run, CPU 0 first.
    """
    layout, wanted = Layout.detect(), (*ACTUATORS, *controllers)
    missing = [] if os.geteuid() == 0 else ["root"]
    missing += [f"cgroup {one} ({layout.missing[one]})" for one in wanted if one in layout.missing]
    mounts = {one: layout.mounts[one] for one in wanted if one in layout.mounts}
    missing += [f"cgroup {one} (not writable)" for one, mount in mounts.items() if not mount.writable]
    missing += [f"CPU {cpu}" for cpu in sorted({*range(cpus)} - os.sched_getaffinity(0))]
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"
    for names in programs:
        alternatives = (names,) if isinstance(names, str) else names
        if not any(shutil.which(name, path=path) for name in alternatives):
            missing.append(" or ".join(alternatives))
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    return layout
