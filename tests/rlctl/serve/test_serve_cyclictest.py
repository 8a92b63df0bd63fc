"""`rlctl serve` with a real-time task as LC: its wake-ups are the latency, and without them BE stands still."""

import os
import signal
import subprocess
import sys
import time

import pytest

from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.telemetry import Why
from rlctl.envs.testbed.janitor import Janitor
from rlctl.envs.testbed.launch import Launcher
from scripts.studies.realtime.cyclictest import PATTERN, Cyclictest
from scripts.studies.realtime.rtgroups import Condition, Rig
from scripts.studies.realtime.rtload import Load, RtLoad
from tests.doubles.tick_logs import read_ticks
from tests.needs import COMPILER, needs
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.host, pytest.mark.slow]


@pytest.fixture
def task_and_load(cyclictest, tmp_path):
    """A cyclictest in a group that it can be real-time in, and a busy BE."""
    layout = needs(programs=(COMPILER,))
    with (
        Janitor(tmp_path / "janitor") as janitor,
        Rig(layout, Knobs(None), janitor, 0, ()).placed(Condition.RLCTL) as places,
        Launcher(janitor.make_folder(), places.load, janitor) as loads,
        Launcher(janitor.make_folder(), places.rt, janitor) as tasks,
    ):
        load, task = RtLoad(Load.SCHED, 4), Cyclictest(interval_us=1000)
        load.start(loads)
        task.start(tasks)
        yield task, places


def configuration(folder, task, places):
    path = folder / "serve.yaml"
    path.write_text(
        f"""
tick_seconds: 0.5
lc:
  workload: {{kind: cgroup, path: /{places.rt.name}}}
  slo: {{target_milliseconds: 1000, quantile_percent: 99, max_load_rps: 2000}}
  latency: {{kind: text, path: {task.output}, pattern: '{PATTERN}', unit: nanoseconds}}
be:
  workloads: [{{kind: cgroup, path: /{places.load.name}}}]
policy: {{name: greedy-shield}}
watchdog: {{enabled: false}}
state_directory: {folder}/state
log: {{directory: {folder}/log}}
"""
    )
    return path


def await_tick(process, file, wanted):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (file.exists() and (ticks := list(read_ticks(file))) and wanted(ticks[-1])):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.1)
    return ticks[-1]


def test_be_runs_by_its_tasks_wake_ups(task_and_load, tmp_path):
    task, places = task_and_load
    command = [sys.executable, "-m", "rlctl", "serve", "--config", str(configuration(tmp_path, task, places))]
    file = tmp_path / "log/ticks.jsonl"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            running = await_tick(process, file, lambda tick: not tick["applied"]["frozen"])["readings"]
            tail = running["tail_latency_seconds"]
            assert 0.0 < tail["value"] < 1.0
            assert tail["samples"] > 20
            assert 0.0 < running["load_ratio"]["value"] < 0.8
            os.kill(task.pids()[0], signal.SIGKILL)
            stopped = await_tick(process, file, lambda tick: "missing" in tick["readings"]["tail_latency_seconds"])
            assert stopped["readings"]["tail_latency_seconds"]["missing"] == Why.NO_DATA
            assert stopped["applied"]["frozen"]
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)
    assert process.returncode == 0
    assert places.load.freezer is not None
    assert not places.load.freezer.is_ordered()
