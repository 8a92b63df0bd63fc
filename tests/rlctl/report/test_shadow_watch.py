"""`rlctl shadow watch`: every tick of a log that really grows is said once, whatever happens to the log meanwhile."""

import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from rlctl.cli import main
from rlctl.commands.shadow import _Summary
from rlctl.envs.allocation import Allocation
from rlctl.envs.log_lines import log_files
from rlctl.log.reader import read_log
from rlctl.report.shadow_watch import Shadows, read_watched, shadow_files
from tests.waiting import PATIENCE_SECONDS, until


def refuse(damage):
    raise AssertionError(str(damage))


def said(folder):
    """(run, tick) of everything that was said."""
    return [(one.run, one.index) for one in read_watched(shadow_files(folder), refuse)]


@pytest.fixture
def watcher():
    """Starts `rlctl shadow watch`; ends it when the test does."""
    started = []

    def start(folder, *words):
        argv = [sys.executable, "-m", "rlctl", "shadow", "watch", str(folder), *words]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def watching(process):
    """It has looked at the log's end, and begins there."""
    assert any("watching with" in line for line in iter(process.stderr.readline, ""))


def stopped(process):
    """What it said on stderr until then."""
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    return err


@pytest.mark.slow
def test_growing_log_is_followed_throughout(recorded_run, watcher, tmp_path):
    folder = tmp_path / "log"
    folder.mkdir()
    process = watcher(folder, "--policy", "feedforward", "--policy", "hipster", "--rotate-bytes", "20000")
    run = recorded_run(rotate_bytes=30_000)
    run.go(1)
    watching(process)
    for _ in range(6):  # through rotations
        before = len(said(folder))
        run.go(8)
        until(lambda before=before: len(said(folder)) > before, process)
    with run.log.path.open("ab") as file:
        file.write(b"no tick at all\n")
    run.log.close()
    other = recorded_run(rotate_bytes=30_000)  # the service is started again
    other.go(9)
    until(lambda: said(folder)[-1][1] == 8, process)
    summary = stopped(process).splitlines()[-1]
    second = watcher(folder, "--policy", "feedforward,hipster")
    other.go(7)  # while nobody looked, or just began to
    until(lambda: said(folder)[-1][1] == 15, second)
    stopped(second)
    runs = {}
    for run_id, index in said(folder):
        runs.setdefault(run_id, []).append(index)
    begun, restarted = runs.values()
    assert begun == list(range(begun[0], 49))
    assert begun[0] <= 1, "nothing before the first look is said, and nothing after it is left out"
    assert restarted == list(range(16))
    for said_last in ("1 damaged", "feedforward agrees in ", "hipster agrees in "):
        assert said_last in summary
    assert len(shadow_files(folder)) > 1


def test_summary_agrees_as_the_report_does(recorded_run, always):
    """To 1 % of BE's CPUs: a policy that computes never has the very quota of another."""
    (logged,) = read_log(log_files(recorded_run().go(1)), refuse)
    shadows, summary = Shadows([always(lambda observation: observation.current)]), _Summary()
    watched = shadows.see(logged)
    shadows.close()
    for quota_cpus in (1.0, 1.01, 1.5):
        answer = replace(watched.answers["always"], allowed=Allocation(quota_cpus, 2))
        summary.add(replace(watched, applied=Allocation(1.0, 2), answers={"always": answer}))
    assert (summary.ticks, summary.same["always"]) == (3, 2)


def test_duration_ends_it_earlier_ticks_warm_up(recorded_run, tmp_path, capsys):
    folder = recorded_run().go(20)
    out = tmp_path / "elsewhere.jsonl"
    assert main(["shadow", "watch", str(folder), "--policy", "frozen", "--out", str(out), "--duration", "0.05"]) == 0
    assert out.read_bytes() == b""


def test_second_writer_of_a_file_is_refused(recorded_run, watcher, capsys):
    folder = recorded_run().go(3)
    first = watcher(folder, "--policy", "frozen")
    watching(first)
    assert main(["shadow", "watch", str(folder), "--policy", "none", "--duration", "0.05"]) == 75
    assert "another process writes it; name another" in capsys.readouterr().err
    stopped(first)
    assert main(["shadow", "watch", str(folder), "--policy", "none", "--duration", "0.05"]) == 0


def test_log_to_come_is_waited_for(tmp_path):
    words = ["--policy", "frozen", "--out", str(tmp_path / "x.jsonl"), "--duration", "0.05"]
    assert main(["shadow", "watch", str(tmp_path), *words]) == 0
    assert main(["shadow", "watch", str(tmp_path / "no" / "ticks.jsonl"), *words]) == 78


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--policy", "heracls"), "did you mean 'heracles'?"),
        (("--policy", "frozen", "--out", "LOG/ticks.jsonl"), "is a tick log"),
        (("--policy", "frozen", "--out", "LOG/ticks.jsonl.1"), "is a tick log"),
        (("--policy", "frozen", "--out", "LOG"), "is a folder"),
    ],
)
def test_impossible_is_one_line_and_touches_nothing(recorded_run, capsys, words, said):
    folder = recorded_run().go(3)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    code = main(["shadow", "watch", str(folder), *(word.replace("LOG", str(folder)) for word in words)])
    err = capsys.readouterr().err
    assert code == 78
    assert err.startswith("rlctl: error: ")
    assert said in err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
