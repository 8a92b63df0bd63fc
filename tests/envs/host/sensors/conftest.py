"""Captured perf output, and a perf child that replays it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PERF_OUTPUT = Path(__file__).parents[3] / "fixtures" / "perf"


@dataclass
class PlayedChild:
    """A child that says what the test puts into `out`, and dies when `code` is set."""

    command: Sequence[str]
    out: bytes = b""
    words: str = ""
    code: int | None = None
    stopped: bool = False

    def read(self) -> bytes:
        out, self.out = self.out, b""
        return out

    def poll(self) -> int | None:
        return self.code

    def last_words(self) -> str:
        return self.words

    def stop(self) -> None:
        self.stopped = True


@dataclass
class Stage:
    """Starts played children and remembers them, newest last."""

    children: list[PlayedChild] = field(default_factory=list)

    def start(self, command: Sequence[str]) -> PlayedChild:
        self.children.append(PlayedChild(command))
        return self.children[-1]


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def perf_output() -> Path:
    return PERF_OUTPUT


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    """A cgroup2 mount with the groups `lc` and `be`."""
    for name in ("lc", "be"):
        (tmp_path / name).mkdir()
    return tmp_path
