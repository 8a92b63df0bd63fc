"""Looks at groups whose files mostly hold what they held before."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl.envs.errors import CgroupGone
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.cgroup.members import Members
from rlctl.envs.host.cgroup.ownership import Ownership
from rlctl.envs.host.cgroup.settings import GroupReading, see
from tests.doubles.cgroup_kernel import FakeKernel

CONTENTS = (
    "",
    "0",
    "1",
    "-1",
    "5000",
    "max 10000",
    "5000 10000",
    "0-1",
    "FROZEN",
    "THAWED",
    "populated 0\nfrozen 1",
    "x",
)


def told(seen: GroupReading) -> tuple[object, ...]:
    return seen.settings, seen.ceiling_cpus, seen.effective, seen.frozen, [str(error) for error in seen.errors]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["v1", "v2", "hybrid"])
@settings(max_examples=30)
@given(
    edits=st.lists(
        st.tuples(st.booleans(), st.integers(0, 9), st.none() | st.sampled_from(CONTENTS)), min_size=1, max_size=8
    ),
    weighed=st.booleans(),
)
def test_a_look_tells_what_a_first_look_would(
    kind: str, edits: list[tuple[bool, int, str | None]], weighed: bool
) -> None:
    with TemporaryDirectory() as folder:
        kernel = FakeKernel(Path(folder), kind)
        knobs = Knobs(None, kernel)
        layout = Layout.detect(kernel.root, kernel.proc)
        top = Group.create(layout, "top", knobs)
        members = Members(knobs, Ownership())
        members.take([Group.create(layout, "top/one", knobs), Group.create(layout, "top/two", knobs)])
        first, _ = members.groups
        members.known[first].weight = 1 if weighed else None
        for above, number, content in edits:
            files = (top if above else first).setting_files(weighed=True)
            file = files[number % len(files)]
            if content is None:
                kernel.denied ^= {file.name}
            else:
                file.write_text(f"{content}\n")
            for group in members.groups:
                see(group, weighed=weighed and group is first, ceilings={})  # brought up to date as the kernel's are
            found = members.look(members.groups)
            for group in members.groups:
                afresh = see(group, weighed=weighed and group is first, ceilings={})
                assert told(found[group]) == told(afresh)


def test_unchanged_reading_is_not_taken_apart(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path)
    knobs = Knobs(None, kernel)
    layout = Layout.detect(kernel.root, kernel.proc)
    members = Members(knobs, Ownership())
    members.take([Group.create(layout, name, knobs) for name in ("one", "two")])
    one, two = members.groups
    assert members.look([one])[one] is members.look([one])[one]
    for folder in two.directories:
        kernel.remove_group(folder)
    assert list(members.look([one, two])) == [one]
    for folder in one.directories:
        kernel.remove_group(folder)
    with pytest.raises(CgroupGone):
        members.look([one])
