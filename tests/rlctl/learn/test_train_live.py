"""`rlctl train --plant host`: mistakes are one line, and however it ends nothing of the host stays changed."""

import json
import os
import re
import signal
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

from rlctl.agents.training.rollouts.live_testbed import LiveWorker
from rlctl.cli import main
from rlctl.commands import train_live
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import HostError
from rlctl.envs.yaml_edge import configs_folder
from tests.doubles.bed import Bed
from tests.doubles.command import refused
from tests.doubles.plant import BreakingPlant, FakePlant
from tests.needs import COMPILER, needs
from tests.waiting import PATIENCE_SECONDS

needs_training = pytest.mark.skipif(
    any(util.find_spec(name) is None for name in ("torch", "sb3_contrib")), reason="needs rlctl[train]"
)
LIMITS = Limits(cpus=2)


def bed_that(at=10**9, what=lambda: None):
    """A testbed to whose plant something happens at a tick of the whole run."""
    return Bed(BreakingPlant(at, what, loads=(0.2, 0.5, 0.4)))


@pytest.fixture
def quick(tmp_path):
    """live-nginx with short measurements."""
    path = tmp_path / "quick.yaml"
    shipped = (configs_folder("scenarios") / "live-nginx.yaml").read_text()
    path.write_text(re.sub("(?m)^duration_seconds: .*", "duration_seconds: 5", shipped))
    return path


@pytest.fixture
def model(tmp_path):
    """A tiny DQN, as good as untrained."""
    from stable_baselines3 import DQN

    from rlctl.envs.host_env import HostEnv

    path = tmp_path / "tiny.zip"
    made = DQN("MlpPolicy", HostEnv(FakePlant()), policy_kwargs={"net_arch": [8]}, buffer_size=8, device="cpu", seed=0)
    made.save(path)
    return path


def words(quick, model, folder, *more):
    return ["train", "--plant", "host", "--scenario", str(quick), "--init", str(model), "--out", str(folder), *more]


def on(bed, monkeypatch):
    monkeypatch.setattr(train_live, "Testbed", bed)


def assert_restored(bed):
    assert bed.diary[-2:] == ["stop BE", "gone"]
    assert bed.plant.closed
    assert bed.plant.current == LIMITS.full


@needs_training
@pytest.mark.train
def test_it_fine_tunes_and_leaves_the_host(quick, model, tmp_path, monkeypatch, capsys):
    bed = bed_that()
    on(bed, monkeypatch)
    assert main(words(quick, model, tmp_path / "run", "--total-timesteps", "20", "--json")) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert [one["name"] for one in told["phases"]] == ["before", "learning 1", "after 1"]
    assert Path(told["bundle"], "card.json").is_file()
    assert "kept the" in err
    assert bed.diary == ["up", "settle", "reins", "start BE", "load", "load", "load", "load", "stop BE", "gone"]
    assert (tmp_path / "run" / "command.txt").read_text().startswith("rlctl train --plant host --scenario ")
    assert_restored(bed)


@needs_training
@pytest.mark.train
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("at", [3, 15])
def test_a_signal_puts_everything_back(number, code, at, quick, model, tmp_path, monkeypatch, capsys):
    bed = bed_that(at, lambda: os.kill(os.getpid(), number))
    on(bed, monkeypatch)
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    assert main(words(quick, model, tmp_path / "run", "--total-timesteps", "20", "--no-export")) == code
    assert_restored(bed)
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers
    if at == 15:  # something was measured by then
        assert "kept the initial policy" in capsys.readouterr().err


@pytest.mark.slow
@needs_training
@pytest.mark.train
def test_signal_while_taking_down_loses_nothing(quick, model, tmp_path, monkeypatch, capsys):
    bed = bed_that()
    on(bed, monkeypatch)
    close = LiveWorker.close

    def closed(running):
        close(running)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(LiveWorker, "close", closed)
    assert main(words(quick, model, tmp_path / "run", "--total-timesteps", "20", "--json")) == 143
    told = json.loads(capsys.readouterr().out)
    assert Path(told["bundle"], "card.json").is_file()


@needs_training
@pytest.mark.train
@pytest.mark.parametrize("error", [HostError("the LC is gone"), RuntimeError("a bug")])
@pytest.mark.parametrize("at", [3, 15])
def test_an_error_puts_everything_back(error, at, quick, model, tmp_path, monkeypatch, capsys):
    bed = bed_that(at, error)
    on(bed, monkeypatch)
    arguments = words(quick, model, tmp_path / "run", "--total-timesteps", "20", "--no-export")
    if isinstance(error, HostError):
        assert main(arguments) == 75
        assert "the LC is gone" in capsys.readouterr().err
    else:
        with pytest.raises(RuntimeError):
            main(arguments)
    assert_restored(bed)


@needs_training
@pytest.mark.train
def test_mistakes_are_one_line(capsys, tmp_path, quick, model):
    folder = tmp_path / "run"
    refused(capsys, 78, ["train", "--plant", "host"], "--init MODEL.zip")
    refused(capsys, 78, words(quick, tmp_path / "no.zip", folder), "no.zip", "is not a file")
    refused(capsys, 78, words("thesis", model, folder), "thesis", "live-nginx")
    refused(capsys, 78, words(quick, model, folder, "--algo", "dqn"), "--algo is the simulator's")
    refused(capsys, 78, words(quick, model, folder, "--offline", "nginx-v0"), "--offline is the simulator's")
    refused(capsys, 78, words(quick, model, folder, "--explore", "1.5"), "1.5")
    refused(capsys, 78, words(quick, model, folder, "--total-timesteps", "1"), "1 timesteps")
    refused(capsys, 78, ["train", "--algo", "ppo", "--explore", "0.2"], "--plant host")
    assert not folder.exists()


@needs_training
@pytest.mark.train
def test_a_dry_run_touches_nothing(capsys, tmp_path, quick, model):
    assert main(words(quick, model, tmp_path / "run", "--dry-run")) == 0
    assert "exploring in 10% of the ticks, from a slack of 0.5 on" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@needs_training
@pytest.mark.train
@pytest.mark.host
@pytest.mark.slow
def test_fifteen_real_steps_leave_nothing_behind(tmp_path, quick, model):
    needs(programs=("nginx", "stress-ng", COMPILER))
    text = quick.read_text()
    knee = next(line for line in text.splitlines() if line.startswith("knee:"))
    quick.write_text(text.replace(knee, "knee: {start_rps: 300, step_rps: 100, top_rps: 300}"))

    def left_behind():
        groups = [str(path) for path in Path("/sys/fs/cgroup").glob("*/rlctl-testbed-*")]
        return groups + [str(path) for path in Path("/run/rlctl/testbed").glob("testbed-*")]

    before = left_behind()
    command = [
        sys.executable,
        "-m",
        "rlctl",
        *words(quick, model, tmp_path / "run", "--total-timesteps", "15", "--json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    phases = json.loads(done.stdout)["phases"]
    assert [one["ticks"] for one in phases] == [5, 15, 5]
    assert len((tmp_path / "run" / "transitions.jsonl").read_text().splitlines()) == 25
    assert set(left_behind()) <= set(before)
