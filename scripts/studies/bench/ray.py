"""What Ray costs and gains a benchmark: the same `rlctl bench` without it and on one and two workers of its own.

Each is a process of its own, as a user runs it. `start` is from `connected` to the first empty task's result, `task`
the round trip of one empty task after another and of many at once, `memory` the private and shared share (PSS) of all
processes while nothing runs. `equal` compares the JSON less the times of decisions; exit code 1 where it differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from rlctl.agents.training.cluster.connection import connected, require_ray
from rlctl.commands.bench_verify import NOT_REPEATABLE
from rlctl.report.page import render

MANY = 500


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    parser.add_argument("--scenario", default="thesis")
    parser.add_argument("--managers", default="all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--duration", type=float, metavar="SECONDS", help="of a run (default: the scenario's)")


def bench(asked: argparse.Namespace, file: Path, *options: str) -> tuple[float, Any]:
    """Seconds of one `rlctl bench`, and its result less what no two runs share."""
    words = [sys.executable, "-m", "rlctl", "bench", "--scenario", asked.scenario, "--managers", asked.managers]
    words += ["--seeds", str(asked.seeds), "--json", str(file), *options]
    words += ["--duration", f"{asked.duration:g}"] if asked.duration else []
    begun = time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True)
    seconds = time.perf_counter() - begun
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr}")
    result = json.loads(file.read_text())
    for manager in result["managers"].values():
        for name in NOT_REPEATABLE:
            del manager[name]
    return seconds, result


def overhead() -> dict[str, float]:
    """Start, round trips and memory of a cluster of two workers."""
    begun = time.perf_counter()
    with connected("local", cpus=2) as cluster:
        from rlctl.agents.training.cluster.tasks import map_tasks

        def seconds_each(count: int) -> float:
            begun = time.perf_counter()
            list(map_tasks(cluster, abs, list(range(count))))
            return (time.perf_counter() - begun) / count

        seconds_each(1)
        start = time.perf_counter() - begun
        seconds_each(MANY)  # both workers have begun
        alone = sorted(seconds_each(1) for _ in range(51))[25]
        many = seconds_each(MANY)
        mine = psutil.Process()
        memory = sum(one.memory_full_info().pss for one in (mine, *mine.children(recursive=True)))
    return {
        "start_seconds": start,
        "task_alone_milliseconds": 1e3 * alone,
        "task_of_many_milliseconds": 1e3 * many,
        "pss_megabytes": memory / 2**20,
    }


def run(asked: argparse.Namespace) -> tuple[Any, int]:
    """Every way to run it, with and without Ray in turn."""
    require_ray()
    cost = overhead()
    print(", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in cost.items()), flush=True)
    ways: dict[str, tuple[str, ...]] = {}
    for count in ("1", "2"):
        ways[f"{count} processes"] = ("--jobs", count)
        ways[f"Ray, {count} workers"] = ("--ray", "local", "--jobs", count)
    rows: dict[str, dict[str, Any]] = {}
    first = None
    with tempfile.TemporaryDirectory() as folder:
        for name, options in ways.items():
            seconds, result = bench(asked, Path(folder) / "result.json", *options)
            first = first or result
            rows[name] = {"wall_seconds": round(seconds, 1), "equal": result == first, "load": os.getloadavg()[0]}
    print(render([("run", "wall s", "equal", "load after"), *(
        (name, f"{row['wall_seconds']:.1f}", "yes" if row["equal"] else "NO", f"{row['load']:.1f}")
        for name, row in rows.items())]))  # fmt: skip
    return {"overhead": cost, "runs": rows}, int(not all(row["equal"] for row in rows.values()))
