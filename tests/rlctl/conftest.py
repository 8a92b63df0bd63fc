"""A serve configuration and stand-ins that the tests of the service share."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.observation import Observation
from rlctl.envs.workload import Weight

SERVE = """\
lc:
  workload: {kind: cgroup, path: /web}
  slo: {target_milliseconds: 10, max_load_rps: 480}
  latency: {kind: nginx-log, path: /nowhere/access.log}
be:
  workloads:
    - {kind: cgroup, path: /batch}
policy: {name: frozen}
"""


class Always:
    """A policy that proposes one allocation for ever, or does whatever it is given to do."""

    name = "always"
    shielded = True
    weight = Weight.EQUAL
    masked = False
    needs: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    note = "as ever"

    def __init__(self, decide: Callable[[Observation], object]) -> None:
        self.decide = decide

    def start(self, limits: Limits) -> Allocation:
        return limits.minimum

    def act(self, observation: Observation) -> object:
        return self.decide(observation)


@pytest.fixture(scope="session")
def always() -> type[Always]:
    return Always


@pytest.fixture
def serve_yaml(tmp_path: Path) -> Callable[..., Path]:
    """Writes the sample configuration, with one replacement, and returns its path."""

    def write(old: str = "", new: str = "") -> Path:
        assert old in SERVE
        text = SERVE.replace(old, new) if old else SERVE + new
        path = tmp_path / "serve.yaml"
        path.write_text(text)
        return path

    return write
