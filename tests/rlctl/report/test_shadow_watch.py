"""`rlctl shadow watch`: every tick of a log that really grows is said once, whatever happens to the log meanwhile."""

import json
import signal
import subprocess
import sys

import pytest

from rlctl.cli import main
from rlctl.report.shadow_watch import read_watched, shadow_files
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


def stopped(process):
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    return out, err


@pytest.mark.slow
def test_growing_log_is_followed_throughout(recorded_run, watcher, tmp_path):
    folder = tmp_path / "log"
    folder.mkdir()
    process = watcher(folder, "--policy", "feedforward", "--policy", "hipster", "--rotate-bytes", "20000", "--json")
    run = recorded_run(rotate_bytes=30_000)
    run.go(1)
    assert json.loads(process.stdout.readline())["ticks"] == 0, "it has looked at the log's end, and begins there"
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
    first, _ = stopped(process)
    second = watcher(folder, "--policy", "feedforward,hipster", "--json")
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
    told = json.loads(first.splitlines()[-1])
    assert told["damaged"] == 1
    assert told["shadows"].keys() == {"feedforward", "hipster"}
    assert len(shadow_files(folder)) > 1


def test_duration_ends_it_earlier_ticks_warm_up(recorded_run, tmp_path, capsys):
    folder = recorded_run().go(20)
    out = tmp_path / "elsewhere.jsonl"
    assert main(["shadow", "watch", str(folder), "--policy", "frozen", "--out", str(out), "--duration", "0.05"]) == 0
    assert out.read_bytes() == b""


def test_second_writer_of_a_file_is_refused(recorded_run, watcher, capsys):
    folder = recorded_run().go(3)
    first = watcher(folder, "--policy", "frozen", "--json")
    first.stdout.readline()
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
