"""A serve configuration and stand-ins that the tests of the service share."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rlctl.agents.policy import Policy
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.observation import Observation
from rlctl.envs.workload import Weight
from rlctl.log.record import Tick, TickLog, header_of
from rlctl.loop.control import Controller
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield
from tests.doubles.plant import FakePlant

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


class Always(Policy):
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


class RecordedRun:
    """A run of a fake host under the responsive shield, in a log with its header."""

    def __init__(self, folder: Path, rotate_bytes: int = 16 << 20) -> None:
        self.folder = folder
        self.plant = FakePlant(Limits(cpus=2), loads=tuple(0.2 + 0.1 * (n % 9) for n in range(40)))
        self.shield = Shield(load_profile("responsive"), self.plant.limits)
        self.policy = Always(lambda observation: self.plant.limits.full)
        self.log = TickLog(folder / "ticks.jsonl", rotate_bytes)
        self.log.header = header_of(self.plant, self.policy, self.shield)
        self._controller = Controller(self.plant, self.policy, self.shield, self)
        self._controller.begin()

    def write(self, tick: Tick) -> None:
        """A second per tick on the wall clock, too."""
        self.log.write(replace(tick, wall_seconds=BEGAN_SECONDS + tick.index))

    def go(self, ticks: int) -> Path:
        """Run on; the log's directory."""
        for _ in range(ticks):
            self.plant.wait()
            self._controller.tick()
        return self.folder


BEGAN_SECONDS = 1_800_000_000.0


@pytest.fixture
def recorded_run(tmp_path: Path) -> Iterator[Callable[..., RecordedRun]]:
    """Begins a run that is recorded in a directory of its own."""
    runs: list[RecordedRun] = []
    with contextlib.ExitStack() as stack:

        def begin(rotate_bytes: int = 16 << 20, name: str = "log") -> RecordedRun:
            for earlier in runs:  # one writer at a time
                earlier.log.close()
            runs.append(run := RecordedRun(tmp_path / name, rotate_bytes))
            stack.callback(run.log.close)
            return run

        yield begin
