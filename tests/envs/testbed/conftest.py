"""A real control group, a janitor and a launcher, for tests that start real programs; all gone afterwards."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.testbed.janitor import Janitor
from rlctl.envs.testbed.launch import Launcher
from tests.needs import needs

_NAMES = itertools.count()


@pytest.fixture
def group(janitor: Janitor) -> Iterator[Group]:
    """A group of our own in every hierarchy."""
    with janitor.group(needs(), f"rlctl-test-bed-{os.getpid()}-{next(_NAMES)}", Knobs(None)) as made:
        yield made


@pytest.fixture
def janitor(tmp_path: Path) -> Iterator[Janitor]:
    with Janitor(tmp_path / "state") as made:
        yield made


@pytest.fixture
def launcher(janitor: Janitor) -> Iterator[Launcher]:
    """Starts programs outside any group."""
    with Launcher(janitor.make_folder(), None, janitor) as made:
        yield made


@pytest.fixture
def be_launcher(janitor: Janitor, group: Group) -> Iterator[Launcher]:
    """Starts programs in the group."""
    with Launcher(janitor.make_folder(), group, janitor) as made:
        yield made
