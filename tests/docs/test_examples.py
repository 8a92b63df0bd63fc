"""The examples for other trainers run as they stand, and learn."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs/examples"


def run(name, *arguments):
    """The rewards or returns that an example printed, iteration by iteration."""
    quiet = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    words = [sys.executable, "-W", "ignore", str(EXAMPLES / name), *arguments]
    done = subprocess.run(words, env=quiet, capture_output=True, text=True, timeout=360)
    assert done.returncode == 0, done.stderr
    return [float(number) for number in re.findall(r"(?:reward|return) (-?[\d.]+)", done.stdout)]


@pytest.mark.train
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs rlctl[train]")
def test_one_file_of_torch_learns():
    means = run("cleanrl_ppo.py", "--hosts", "32", "--iterations", "12")
    assert len(means) == 12
    assert max(means[-3:]) > means[0] + 0.05


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("ray", "torch", "tree", "lz4", "ormsgpack")),
    reason="needs rlctl[distributed]",
)
def test_rllib_trains_on_simulated_hosts():
    (mean_return,) = run("rllib_ppo.py", "--iterations", "1", "--hosts", "2", "--steps", "600")
    assert -600.0 <= mean_return <= 36.0  # of two episodes of 300 steps
