"""The tunable benchmarks: the same result however many threads work, and as many work as the working mode says."""

import subprocess

import pytest

from rlctl.envs.errors import TestbedError
from scripts.studies.mixes.tunable import parse_result, tunable_command
from tests.waiting import PATIENCE_SECONDS

WORKLOADS = ("datapar", "pipeline")
pytestmark = [pytest.mark.host, pytest.mark.slow]


def run(*words, check=True, **environment):
    return subprocess.run(words, capture_output=True, text=True, check=check, timeout=PATIENCE_SECONDS, env=environment)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_what_comes_out_depends_on_the_work_alone(workload):
    results = [parse_result(run(*tunable_command(workload, 6, threads)).stdout) for threads in (1, 3, 8)]
    assert len({one.digest for one in results}) == 1
    assert [one.threads[0][1] for one in results] == [1, 3, 8]
    assert all(one.items == 6 and one.cpu_seconds > 0.0 and one.seconds > 0.0 for one in results)
    other = parse_result(run(*tunable_command(workload, 7, 1)).stdout)
    assert other.digest != results[0].digest


@pytest.mark.parametrize("workload", WORKLOADS)
def test_wrong_digest_is_an_error(workload):
    right = parse_result(run(*tunable_command(workload, 2, 2)).stdout).digest
    run(*tunable_command(workload, 2, 2, right))
    wrong = run(*tunable_command(workload, 2, 2, "0" * 16), check=False)
    assert wrong.returncode == 1
    assert f"digest {right} instead of {'0' * 16}" in wrong.stderr


@pytest.mark.parametrize("workload", WORKLOADS)
def test_threads_are_those_of_working_mode_within_most(workload, tmp_path):
    mode = tmp_path / "mode"
    mode.write_text("mode 1 threads 2 millicpus 500 memory 0\n")
    told = run(*tunable_command(workload, 3, 4), RLCTL_MODE_FILE=str(mode), RLCTL_THREADS="4")
    assert parse_result(told.stdout).threads[0][1] == 2
    mode.write_text("mode 3 threads 9 millicpus 500 memory 0\n")
    most = run(*tunable_command(workload, 3, 4), RLCTL_MODE_FILE=str(mode))
    assert [count for _, count in parse_result(most.stdout).threads] == [4]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_threads_change_while_it_runs(workload, tmp_path):
    """However the changes fall, all work is done once: the digest is that of a single thread."""
    expected = parse_result(run(*tunable_command(workload, 60, 1)).stdout).digest
    mode = tmp_path / "mode"
    mode.write_text("mode 0 threads 1 millicpus 500 memory 0\n")
    words = tunable_command(workload, 60, 6, expected)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={"RLCTL_MODE_FILE": str(mode)}) as child:
        for threads in (6, 2, 5, 1, 3) * 4:
            fresh = tmp_path / "fresh"
            fresh.write_text(f"mode 1 threads {threads} millicpus 500 memory 0\n")
            fresh.replace(mode)
        out, _ = child.communicate(timeout=PATIENCE_SECONDS)
    assert child.returncode == 0
    assert {count for _, count in parse_result(out).threads} <= {1, 2, 3, 5, 6}


@pytest.mark.parametrize("text", ["", "Killed", "{}", '{"threads": 3}', '{"threads": []}'])
def test_no_result_is_an_error(text):
    with pytest.raises(TestbedError, match="without its result"):
        parse_result(text)
