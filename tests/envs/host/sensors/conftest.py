"""Captured perf output, and a cgroup2 mount that is a temporary folder."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def perf_output() -> Path:
    """Folder of what several versions of perf print; its README says where each file comes from."""
    return Path(__file__).parents[3] / "fixtures" / "perf"


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    """A cgroup2 mount with the groups `lc` and `be`."""
    for name in ("lc", "be"):
        (tmp_path / name).mkdir()
    return tmp_path
