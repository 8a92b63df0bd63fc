"""The table of the README's front: live hosts, BE at the kernel's least weight, from docs/results/*.json.

Run it to write the table into README.md; a test compares the two. What the first table of a host lacks is from the
others, of other days; those cells have an asterisk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlctl.report.table import percent

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "docs/results"
HOSTS = {
    "link": "live-network",
    "link that halves": "live-network-credits",
    "disk": "live-disk",
    "CPU: nginx": "live-nginx-minimum",
    "CPU: memcached": "live-memcached-minimum",
    "memory": "live-memory",
}
"""Columns of the table, and the stored result of each."""

MANAGERS = ("none", "weights", "heracles", "parties", "prm-hybrid-tuned", "ppo")
BEGIN, END = "<!-- front table: scripts/studies/front_table.py -->\n", "<!-- end of the table -->"


def front_table() -> str:
    """The table as Markdown, in its two marks."""
    rows = [("QoS % / BE %", *HOSTS, "lowest QoS %")]
    for manager in MANAGERS:
        cells, qualities = [], []
        for name in HOSTS.values():
            scores, mark = scores_of(name, manager)
            # BE at the kernel's least weight is `weights`.
            if scores is None or (manager == "none" and scores["be_weight"] != "equal"):
                cells.append("-")
                continue
            quality, work = scores["qos_guarantee_percent"]["mean"], scores["be_throughput_percent"]["mean"]
            qualities.append(quality)
            cells.append(f"{percent(quality, 0)} / {work:.0f}{mark}")
        rows.append((f"`{manager}`", *cells, percent(min(qualities), 0)))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    rule = "| --- |" + " ---: |" * (len(rows[0]) - 1)
    return f"{BEGIN}\n" + "\n".join([lines[0], rule, *lines[1:]]) + f"\n\n{END}"


def scores_of(result: str, manager: str) -> tuple[Mapping[str, Any] | None, str]:
    """A manager's scores on a host, from its first table or, with an asterisk, from another one; None: not measured."""
    files = [file for end in ("", "-others") if (file := STORED / f"{result}{end}.json").exists()]
    for file in files:
        managers = json.loads(file.read_text())["managers"]
        if manager in managers:
            return managers[manager], "" if file is files[0] else "*"
    return None, ""


def with_table(text: str) -> str:
    """The README with the table as it is now."""
    before, _, rest = text.partition(BEGIN)
    return before + front_table() + rest.partition(END)[2]


if __name__ == "__main__":
    README = ROOT / "README.md"
    README.write_text(with_table(README.read_text()))
