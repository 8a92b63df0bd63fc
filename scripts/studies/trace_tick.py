"""Counts what one tick of `rlctl serve` enters, on control groups made for it, as root: `trace_tick.py CHECKOUT`.

Prints JSON: `entered`, functions of the checkout entered in a tick that wrote to a control group, comprehensions left
out; `moves`, those of them whose caller stands in another file. Both are the median over such ticks, the first three
left out.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
SECONDS = 20
CONFIG = """
lc:
  workload: {{kind: cgroup, path: {top}/lc}}
  slo: {{target_milliseconds: 10, max_load_rps: 400}}
  latency: {{kind: jsonl, path: {folder}/requests.jsonl}}
be: {{workloads: [{{kind: cgroup, path: {top}/be}}]}}
policy: {{name: feedforward}}
state_directory: {folder}/state
"""

TRACED = """
import json, os, sys
root, seconds, config = sys.argv[1:]
sys.path.insert(0, root)
ticks, inside = [], [None]
LATE = 8  # a generator that goes on has been entered before

def profile(frame, event, _):
    code = frame.f_code
    if not code.co_filename.startswith(root) or code.co_name.startswith("<"):
        return
    if event == "call" and frame.f_lasti <= LATE:
        if code.co_qualname == "Controller.tick":
            inside[0] = {"entered": 0, "moves": 0, "wrote": False}
        now = inside[0]
        if now is None:
            return
        now["entered"] += 1
        caller = frame.f_back.f_code.co_filename if frame.f_back else ""
        now["moves"] += caller != code.co_filename
        now["wrote"] |= code.co_name == "write" and "cgroup" in code.co_filename
    elif event == "return" and code.co_qualname == "Controller.tick":
        ticks.append(inside[0])
        inside[0] = None

from rlctl.cli import main
sys.setprofile(profile)
code = main(["serve", "--config", config, "--duration", seconds])
sys.setprofile(None)
os.write(1, b"TRACED " + json.dumps(ticks).encode() + b"\\n")
sys.exit(code)
"""
"""Runs the service in this process, with the main thread's calls counted; argv: checkout, seconds, configuration."""


def main() -> None:
    """Run the service beside a load that moves, and print the counts."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        top = f"/rlctl-trace-{os.getpid()}"
        stack.enter_context(groups(top))
        over = threading.Event()
        writer = threading.Thread(target=write_requests, args=(folder / "requests.jsonl", over))
        writer.start()
        stack.callback(writer.join)
        stack.callback(over.set)
        config = folder / "serve.yaml"
        config.write_text(CONFIG.format(top=top, folder=folder))
        words = [sys.executable, "-c", TRACED, str(Path(sys.argv[1]).resolve()), str(SECONDS), str(config)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("TRACED ")]
    if not lines:
        sys.exit(done.stderr or done.stdout)
    ticks = [tick for tick in json.loads(lines[0].removeprefix("TRACED "))[3:] if tick["wrote"]]
    if not ticks:
        sys.exit("no tick wrote to a control group")
    print(json.dumps({key: statistics.median(tick[key] for tick in ticks) for key in ("entered", "moves")}))


@contextmanager
def groups(top: str) -> Iterator[None]:
    """A group for the LC and one for BE in every hierarchy, a sleeping process in each."""
    hierarchies = [
        path for path in CGROUPS.iterdir() if path.name in ("cpu", "cpuset", "cpuacct", "freezer", "unified")
    ]
    hierarchies = [path for path in hierarchies if not path.is_symlink()] or [CGROUPS]
    made, sleepers = [], []
    try:
        for name in ("", "/lc", "/be"):
            for hierarchy in hierarchies:
                group = Path(f"{hierarchy}{top}{name}")
                group.mkdir()
                made.append(group)
                for file in ("cpuset.cpus", "cpuset.mems"):
                    if hierarchy.name == "cpuset":
                        (group / file).write_text((group.parent / file).read_text())
            if name:
                sleepers.append(subprocess.Popen(["sleep", "infinity"]))
                for hierarchy in hierarchies:
                    Path(f"{hierarchy}{top}{name}/cgroup.procs").write_text(str(sleepers[-1].pid))
        yield
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()
        for group in reversed(made):
            group.rmdir()


def write_requests(log: Path, over: threading.Event) -> None:
    """Requests as an LC might have served them, more and fewer in turns."""
    with log.open("a", buffering=1) as file:
        while not over.is_set():
            rate = 100 + 200 * (int(time.time()) % 2)
            file.write('{"latency_seconds": 0.003}\n' * (rate // 20))
            time.sleep(0.05)


if __name__ == "__main__":
    main()
