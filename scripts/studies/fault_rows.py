#!/usr/bin/env python3
"""The rows of ../shared/reference/faults-found.md: the command that showed each fault, in two checkouts, and its tests.

    git worktree add ../base 9418a4cd
    .venv/bin/python scripts/studies/fault_rows.py --before ../base            # a Markdown table
    .venv/bin/python scripts/studies/fault_rows.py --tests A "operator 1"      # with the tests of these rows

The commands are in fault_rows.yaml; some make control groups and need root. Exit code 1 if a test fails.
"""

from __future__ import annotations

import argparse
import collections
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 120
MOST_LETTERS = 900

_OF_PATH = "import sys; sys.meta_path[:] = [one for one in sys.meta_path if 'editable' not in str(one)]"
"""What is not in PYTHONPATH is not there: an editable installation would have today's modules in."""

Row = Mapping[str, str]


def main() -> int:
    """Print a line for each row as soon as it is known."""
    rows: dict[str, Row] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="default: all")
    parser.add_argument("--before", type=Path, metavar="DIR", help="a checkout that has the faults")
    parser.add_argument("--tests", action="store_true", help="run the tests of the rows too")
    asked = parser.parse_args()
    wanted = asked.rows or list(rows)
    counts = run_tests([rows[name].get("tests", "") for name in wanted]) if asked.tests else {}
    failed = 0
    print("| row | before | now | tests | more |\n| --- | --- | --- | --- | --- |")
    for name in wanted:
        row = rows[name]
        before = row.get("was") or (shown(row, asked.before.resolve()) if asked.before else "")
        found = sum((counts.get(test, collections.Counter()) for test in row.get("tests", "").split()), _NONE)
        failed += found["failure"] + found["error"]
        passed = ", ".join(f"{count} {kind}" for kind, count in found.items()) or row.get("tests", "")
        cells = (name, before, shown(row, ROOT), passed, f"`{row['see']}`" if "see" in row else "")
        print(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |", flush=True)
    return int(failed > 0)


_NONE = collections.Counter[str]()


def shown(row: Row, checkout: Path) -> str:
    """What a row's command says in a checkout, its lines one behind the other; empty where there is none."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "rlctl.py").write_text(f"{_OF_PATH}\nfrom rlctl.cli import main\nsys.exit(main())\n")
        (folder / "command.py").write_text(f"{_OF_PATH}\n{row.get('command', '')}")
        (folder / "command.sh").write_text(row.get("shell", ""))
        python = f"{sys.executable} -P -W ignore"
        words = [*python.split(), "command.py"] if "command" in row else ["bash", "command.sh"]
        told = {"PYTHONPATH": str(checkout), "CHECKOUT": str(checkout), "RLCTL": f"{python} {folder / 'rlctl.py'}"}
        try:
            done = subprocess.run(
                words, cwd=folder, env=os.environ | told, capture_output=True, text=True, check=False,
                timeout=PATIENCE_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"no end in {PATIENCE_SECONDS} s"
    lines, errors = done.stdout.strip().splitlines(), done.stderr.strip().splitlines()
    also = [line for line in errors if line.startswith("rlctl: ")] or ([] if lines else errors[-1:])
    return "; ".join([*lines, *also]).replace(f"{text}/", "")[:MOST_LETTERS]


def run_tests(tests: Sequence[str]) -> dict[str, collections.Counter[str]]:
    """How many of each file, or test, passed, failed or were left out; all in one go."""
    each = dict.fromkeys(test for some in tests for test in some.split())
    counts = {test: collections.Counter[str]() for test in each}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", f"--junitxml={report}"]
        subprocess.run(
            [*command, *(f"tests/{test}" for test in each)], cwd=ROOT, check=False, stdout=sys.stderr
        )  # fmt: skip
        for case in ElementTree.parse(report).iter("testcase"):
            kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
            file = case.get("classname", "").replace(".", "/").removeprefix("tests/") + ".py"
            for test in (file, f"{file}::{case.get('name', '').partition('[')[0]}"):
                if test in counts:
                    counts[test][min(kinds, default="passed")] += 1
    return counts


if __name__ == "__main__":
    sys.exit(main())
