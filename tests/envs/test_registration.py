"""The environments are known to Gymnasium whichever is imported first."""

import subprocess
import sys

import pytest

from rlctl.envs import SCENARIO_STEPS

KNOWN = "import gymnasium; print(*sorted(name for name in gymnasium.registry if name.startswith('rlctl/')))"


@pytest.mark.parametrize(
    "first",
    [
        "import rlctl.envs",
        "import gymnasium, rlctl.envs",
        "import rlctl.envs, importlib.util; importlib.util.find_spec('gymnasium')",  # looking is not importing
    ],
)
def test_whichever_comes_first(first):
    done = subprocess.run([sys.executable, "-c", f"{first}\n{KNOWN}"], capture_output=True, text=True, check=True)
    hosts = ["rlctl/LiveHost-v0", "rlctl/SimHost-v0"]
    scenarios = [f"rlctl/{name.title().replace('-', '')}-v0" for name in SCENARIO_STEPS]
    assert done.stdout.split() == sorted(hosts + scenarios)
