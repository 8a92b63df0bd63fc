"""Uses every cgroup-v2 file that the host driver needs, once, and prints what each one answered as JSON.

Standard library only: `scripts/guest -- python3 tests/guest/smoke.py` tells a broken guest from a broken driver.
"""

import json
import os
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
CHILD = ROOT / "smoke"
PATIENCE_SECONDS = 10.0


def write_and_read(name: str, value: str) -> str:
    (CHILD / name).write_text(value)
    return (CHILD / name).read_text().strip()


def flat(name: str) -> dict[str, int]:
    """The pairs of a flat-keyed file such as cpu.stat."""
    return {key: int(value) for key, value in map(str.split, (CHILD / name).read_text().splitlines())}


def wait_for_event(key: str, value: int) -> float:
    """Milliseconds until cgroup.events says so."""
    begun = time.monotonic()
    while flat("cgroup.events")[key] != value:
        assert time.monotonic() - begun < PATIENCE_SECONDS, f"{key} never became {value}"
        time.sleep(0.001)
    return round((time.monotonic() - begun) * 1e3, 1)


def fork_busy_loop() -> int:
    """A child that joins the group before it begins to spin."""
    pid = os.fork()
    if pid == 0:
        (CHILD / "cgroup.procs").write_text("0")
        while True:
            pass
    wait_for_event("populated", 1)
    return pid


def usage_over(seconds: float) -> int:
    """Microseconds of CPU time that the group takes meanwhile."""
    before = flat("cpu.stat")["usage_usec"]
    time.sleep(seconds)
    return flat("cpu.stat")["usage_usec"] - before


def main() -> None:
    answers: dict[str, object] = {"kernel": os.uname().release}
    answers["controllers"] = (ROOT / "cgroup.controllers").read_text().split()
    answers["subtree_control"] = (ROOT / "cgroup.subtree_control").read_text().split()
    assert {"cpu", "cpuset", "memory", "io", "pids"} <= set((ROOT / "cgroup.subtree_control").read_text().split())

    CHILD.mkdir()
    for name, value in {"cpu.weight": "1", "cpuset.cpus": "1", "cpu.max": "5000 10000", "cpu.idle": "1"}.items():
        answers[name] = write_and_read(name, value)
        assert answers[name] == value, (name, answers[name])
    answers["cpuset.cpus.effective"] = (CHILD / "cpuset.cpus.effective").read_text().strip()
    assert answers["cpuset.cpus.effective"] == "1"
    answers["cpu.weight while idle"] = (CHILD / "cpu.weight").read_text().strip()
    answers["cpu.weight after idle"] = (write_and_read("cpu.idle", "0"), (CHILD / "cpu.weight").read_text().strip())

    pid = fork_busy_loop()
    assert os.sched_getaffinity(pid) == {1}
    answers["usage of 1 s at cpu.max 50 %, seconds"] = usage_over(1.0) / 1e6
    answers["cpu.stat nr_throttled"] = flat("cpu.stat")["nr_throttled"]
    assert flat("cpu.stat")["nr_throttled"] > 0

    (CHILD / "cgroup.freeze").write_text("1")
    answers["frozen after ms"] = wait_for_event("frozen", 1)
    assert usage_over(0.2) == 0
    (CHILD / "cgroup.freeze").write_text("0")
    answers["thawed after ms"] = wait_for_event("frozen", 0)
    assert usage_over(0.2) > 0

    answers["cpu.pressure"] = (CHILD / "cpu.pressure").read_text().splitlines()
    assert (CHILD / "cpu.pressure").read_text().startswith("some avg10=")
    (CHILD / "cgroup.kill").write_text("1")
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == 9
    answers["empty after ms"] = wait_for_event("populated", 0)
    CHILD.rmdir()
    print(json.dumps(answers, indent=1))


if __name__ == "__main__":
    main()
