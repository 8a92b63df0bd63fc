"""At the start every knob of BE takes the value that it has: what cannot be written is known before it must be."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from rlctl.envs.allocation import Limits
from rlctl.envs.errors import PermissionMissing
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.values import Quota

Bench = Any
KNOBS = ("quota", "cpus", "frozen")


def controlled(bench: Bench, groups: list[Any]) -> tuple[BeActuator, list[Path]]:
    be = BeActuator(groups, (1, 0), Limits(cpus=2), bench.knobs())
    return be, [file for group in groups for file in group.knob_files(*KNOBS)]


def test_nothing_is_changed_by_it(bench: Bench) -> None:
    plain, set_up = bench.group(), bench.group()
    assert set_up.cpu is not None
    assert set_up.freezer is not None
    set_up.cpu.set_quota(Quota.of_cpus(0.5, 10_000))
    set_up.freezer.order(True)
    be, files = controlled(bench, [plain, set_up])
    before = [file.read_text() for file in files]
    assert be.rehearse() == len(files)
    assert [file.read_text() for file in files] == before
    set_up.freezer.order(False)


def test_unwritable_knob_is_named(fake: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    be, files = controlled(fake, [fake.group()])
    write = fake.kernel.write

    def refuse(path: Path, text: str) -> None:
        if path == files[-1]:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        write(path, text)

    monkeypatch.setattr(fake.kernel, "write", refuse)
    with pytest.raises(PermissionMissing, match=files[-1].name):
        be.rehearse()


def test_lost_group_does_not_stop_a_start(fake: Bench) -> None:
    stays, goes = fake.group(), fake.group()
    be, files = controlled(fake, [stays, goes])
    goes.remove()
    assert be.rehearse() == len(files) // 2
