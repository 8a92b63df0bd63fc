"""Commands that wait for a word begin at one moment, or say why not."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlctl.envs.errors import TestbedError
from rlctl.envs.testbed.janitor import Janitor
from scripts.studies.mixes.holding import HoldingLauncher
from tests.envs.testbed.conftest import janitor  # noqa: F401 - a fixture
from tests.waiting import PATIENCE_SECONDS, until


@pytest.fixture
def holding(janitor: Janitor) -> Iterator[HoldingLauncher]:  # noqa: F811 - that fixture
    with HoldingLauncher(janitor.make_folder(), None, janitor) as made:
        yield made


def test_held_commands_begin_together(holding: HoldingLauncher, tmp_path: Path) -> None:
    held = [holding.hold(f"one-{n}", ["sh", "-c", "pwd; echo $WORD"], {"WORD": "told"}, tmp_path) for n in (1, 2)]
    assert [(one.exit_code, one.output.read_text()) for one in held] == [(None, "")] * 2
    for one in held:
        one.release()
        one.release()  # harmless
    for one in held:
        until(lambda one=one: one.exit_code is not None)
    assert [one.output.read_text() for one in held] == [f"{tmp_path}\ntold\n"] * 2


def test_held_command_that_was_killed_says_so(holding: HoldingLauncher) -> None:
    held = holding.hold("victim", ["true"])
    os.kill(held.pid, signal.SIGKILL)
    held.wait(PATIENCE_SECONDS)
    with pytest.raises(TestbedError, match="victim ended before it had begun"):
        held.release()
