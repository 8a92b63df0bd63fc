"""What the README shows runs, and what it names exists."""

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"

pytestmark = pytest.mark.skipif(not README.exists(), reason="no README beside the tests (a guest, a wheel)")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_python_blocks_run():
    assert blocks("python")
    for block in blocks("python"):
        exec(compile(block, str(README), "exec"), {})


def test_the_commands_and_scripts_exist():
    from rlctl.cli import COMMANDS

    named = re.findall(r"^rlctl (\S+)", "\n".join(blocks("")), re.MULTILINE)
    assert set(named) <= set(COMMANDS)
    for script in re.findall(r"^scripts/(\S+)", "\n".join(blocks("")), re.MULTILINE):
        assert (README.parent / "scripts" / script).is_file()
