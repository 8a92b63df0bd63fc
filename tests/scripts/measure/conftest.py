"""Real control groups and programs for the studies, and `scripts/measure` as a function."""

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from rlctl.envs.errors import RlctlError
from tests.envs.testbed.conftest import be_launcher, group, janitor, launcher  # noqa: F401 - fixtures

SCRIPT = Path(__file__).parents[3] / "scripts/measure"


@pytest.fixture
def measure():
    """Runs `scripts/measure` with arguments and returns its exit code; an error is a line of stderr, as there."""
    loader = SourceFileLoader("measure_script", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)

    def run(*words):
        try:
            return module.main(words)
        except RlctlError as error:
            print(error, file=sys.stderr)
            return error.exit_code
        except SystemExit as leaving:
            return leaving.code

    return run
