#!/usr/bin/env python3
"""The rows of ../shared/reference/faults-found.md, each by the tests that would fail if its fault came back.

    .venv/bin/python scripts/studies/fault_rows.py [ROW ...]

Prints for each row what is run and what came of it. As root the live ones run too. Exit code 1 if one fails.
"""

from __future__ import annotations

import collections
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

ROWS = {
    "A": "envs/host/test_cgroup_families.py safety/test_watchdog.py",
    "B": "envs/host/latency/test_prometheus_source.py envs/host/latency/test_histogram.py",
    "C": "envs/host/test_cgroup_weights.py rlctl/commands/test_doctor.py",
    "D": "envs/host/test_following.py",
    "E": "envs/host/test_one_window.py",
    "F": "scripts/test_faults.py",
    "G": "envs/host/sensors/test_cpu_sensors.py safety/test_overrun.py",
    "H": "envs/host/latency/test_growing_file.py",
    "I": "envs/host/test_cgroup_failures.py::test_a_threaded_group_hides_no_escape",
    "J": "envs/host/test_cgroup_failures.py::test_frozen_task_that_is_killed_dies_at_once",
    "K": "envs/host/latency/test_json_sources.py envs/host/test_cgroup_journal.py",
    "operator 1": "envs/host/test_quiet.py envs/host/latency/test_tcp_requests.py safety/test_shield_properties.py",
    "operator 2, 3": "envs/host/test_max_load.py",
    "operator 4": "rlctl/serve/test_default_latency.py envs/host/latency/test_waiting.py",
    "operator 6, 7": "rlctl/serve/test_self_usage.py",
    "operator 8": "rlctl/loop/test_narrator.py rlctl/log/test_waits.py",
    "operator 9": "rlctl/serve/test_build.py rlctl/commands/test_learn_load.py rlctl/commands/test_advise.py",
    "trainer 1": "agents/training/test_export.py",
    "trainer 2": "docs/test_site.py",
    "trainer 5, 7, 8, 9": "envs/test_env_edges.py envs/test_registration.py",
    "trainer 6": "rlctl/learn/test_dataset.py",
    "trainer 10": "agents/training/test_learn.py",
    "trainer 11": "rlctl/bench/test_aggregates.py rlctl/report/test_html_report.py",
    "audit 5": "safety/test_gates.py safety/test_growth.py envs/test_level_counts.py",
}
"""Not by tests: operator 5 by `scripts/bench operators`, trainer 3 by `scripts/release-check --environments each`,
trainer 4, audit 1 and 2 by `scripts/results stale`, audit 3 and 6 by `scripts/bench sim` and `serve`,
audit 5 also by `scripts/mutants`."""


def main() -> int:
    """Run the rows' tests in one go, and print the table."""
    wanted = sys.argv[1:] or list(ROWS)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        tests = dict.fromkeys(f"tests/{test}" for row in wanted for test in ROWS[row].split())
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", f"--junitxml={report}", *tests]
        subprocess.run(command, cwd=ROOT, check=False)
        counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for case in ElementTree.parse(report).iter("testcase"):
            kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
            file = case.get("classname", "").replace(".", "/") + ".py"
            counts[file.removeprefix("tests/")][min(kinds, default="passed")] += 1
    failed = 0
    for row in wanted:
        found = sum((counts[test.partition("::")[0]] for test in ROWS[row].split()), collections.Counter[str]())
        failed += found["failure"] + found["error"]
        print(f"{row:20} {', '.join(f'{count} {kind}' for kind, count in found.items())}  ({ROWS[row]})")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
