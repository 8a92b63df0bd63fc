"""configs/deploy/hand-off with a stand-in for kubectl: no real cluster has run it."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "configs/deploy/hand-off"
KUBECTL = """#!/bin/sh
printf '%s\\n' "$*" >> "$DIARY"
case "$*" in
*" get pods "*) printf "$PODS" ;;
"create --raw "*) cat >> "$DIARY"; echo >> "$DIARY"; exit "$EVICTED" ;;
esac
"""


@pytest.fixture
def run(tmp_path):
    """Run the script; returns its exit code and the calls of kubectl."""
    kubectl, diary = tmp_path / "kubectl", tmp_path / "diary"
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)

    def call(pods="pod/old\\npod/new\\n", evicted=0, **said):
        path = f"{tmp_path}:{os.environ['PATH']}"
        stand_in = {"PATH": path, "DIARY": str(diary), "PODS": pods, "EVICTED": str(evicted), "NODE_NAME": "n1"}
        done = subprocess.run([SCRIPT, "batch"], env=stand_in | said, capture_output=True, text=True, check=False)
        return done.returncode, diary.read_text().splitlines()

    return call


def test_the_newest_pod_is_labelled_and_evicted(run):
    code, calls = run()
    assert code == 0
    assert "-l rlctl.io/be=true,!rlctl.io/starved" in calls[0]
    assert "spec.nodeName=n1" in calls[0]
    assert calls[1:] == [
        "-n batch label pod/new rlctl.io/starved=true",
        "create --raw /api/v1/namespaces/batch/pods/new/eviction -f -",
        '{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"new","namespace":"batch"}}',
    ]


def test_a_pod_that_stays_loses_its_label(run):
    code, calls = run(evicted=1)
    assert code == 75
    assert calls[-1] == "-n batch label pod/new rlctl.io/starved-"


def test_fed_again_takes_the_labels_off(run):
    code, calls = run(RLCTL_FED="1")
    assert code == 0
    assert calls[1:] == [f"-n batch label pod/{pod} rlctl.io/starved-" for pod in ("old", "new")]


def test_nothing_is_evicted_without_a_pod(run):
    code, calls = run(pods="")
    assert (code, len(calls)) == (1, 1)
