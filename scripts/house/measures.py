"""The measures by which design/seat.md says whether a newcomer can hold the house in an hour."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.house.packages import UNREACHED_BY_DESIGN, circles, import_graph, unreached
from scripts.house.rulings import policy_leaks, rule_calls, sentences
from scripts.house.sources import Source, sources
from scripts.house.words import empty_attributes, short_docstrings, vague_nouns

__all__ = ["LEGEND", "Measure", "measures"]

LEGEND = f"""\
sentences: classes, and functions outside classes, whose body calls both a shield (`.rule(`, `judge(`) and an observer,
a policy or a decoder (`.observe(`, `.act(`, `propose(`, `decode(`, `logits(`). leaks: modules that ask a policy for its
class (isinstance, cast, class pattern). frames: functions on the stack from `Controller.tick` to the kernel's `write`
of BE's quota, both counted, in a tick that was run. circles: pairs of sibling modules or packages that import one
another, also for types only, and longer ways round without such a pair. unreached: lines of modules that no command
imports or starts, without {", ".join(UNREACHED_BY_DESIGN)}.
comments: comments per 100 lines, without `noqa`, `fmt:` and `type:`. docstrings: public ones whose first line has three
words or fewer. attributes: entries of Args and Attributes with fewer than three words, or only those of the name.
vague: said, told, found, asked, kept, given and `for one in`, in code and in text.
"""

COMMENTED: Mapping[str, str] = {
    "control": r"rlctl/(loop/)?(control|failsafe)\.py",
    "shield": r"safety/.*",
    "actuator": r"envs/host/cgroup/.*",
    "managers": (
        r"agents/(managers/.*|(barbeque|feedforward|greedy_shield|heracles\w*|hipster|koord_suppress|manager|parties"
        r"|prm_(eris|hybrid|latency|model|thesis)|readings|references|sideload|timers)\.py)"
    ),
    "simulator": r"envs/sim/.*",
}
"""Where laws and formulas stand, which want their source beside them; before and after agents and rlctl had folders."""

FRAMES_SECONDS = 120.0
"""Longest that the run of a few ticks may take."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One row of the table.

    Attributes:
        key: Short name, for `--list` and in the JSON.
        title: What is counted, in words.
        value: The count, or a share; None where it could not be measured.
        most: Largest value that meets the target; None where there is no such target.
        least: Smallest value that meets the target, likewise.
        places: What was counted, one line each; for a value that could not be measured, why.
    """

    key: str
    title: str
    value: float | None
    most: float | None = None
    least: float | None = None
    places: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """The target as text; empty where there is none."""
        if self.least is not None:
            return f">= {self.least:g}"
        return "" if self.most is None else f"<= {self.most:g}" if self.most else "0"

    @property
    def met(self) -> bool | None:
        """Whether the value meets its target; None without either."""
        if self.value is None or (self.most is None and self.least is None):
            return None
        return (self.most is None or self.value <= self.most) and (self.least is None or self.value >= self.least)


def measures(checkout: Path) -> list[Measure]:
    """All rows of the table for a checkout."""
    product = sources(checkout)
    graph = import_graph(checkout)
    left = unreached(graph, product)
    return [
        _counted("sentences", "places that spell observe - act - rule", sentences(product), most=4),
        _counted("rules", "`.rule(` calls in the product", rule_calls(product), most=6),
        _counted("leaks", "leaks through the Policy protocol", policy_leaks(product), most=0),
        _counted("ls-rlctl", "names in `ls rlctl`", _listed(checkout / "rlctl"), most=22),
        _counted("ls-agents", "names in `ls agents`", _listed(checkout / "agents"), most=14),
        _frames(checkout),
        _counted("circles", "circles between packages", circles(graph), most=0),
        Measure(
            "unreached", "product lines that no command reaches", sum(left.values()), most=0,
            places=tuple(f"{module} {lines}" for module, lines in left.items()),
        ),
        Measure("lines", "product lines in the wheel", sum(source.line_count for source in product), most=58_000),
        *_comments(product),
        *_words(product),
    ]  # fmt: skip


def _counted(key: str, title: str, places: Sequence[str], most: float | None = None) -> Measure:
    return Measure(key, title, len(places), most=most, places=tuple(places))


def _listed(folder: Path) -> list[str]:
    """What `ls` shows, without Python's caches."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith((".", "__pycache__")))


def _frames(checkout: Path) -> Measure:
    """A tick of the checkout, run in a process of its own."""
    words = [sys.executable, str(Path(__file__).with_name("tick_frames.py")), str(checkout)]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=FRAMES_SECONDS)
    key, title, most = "frames", "frames from tick to the kernel write", 10
    if done.returncode:
        return Measure(key, title, None, most=most, places=(done.stderr.strip().splitlines()[-1],))
    return _counted(key, title, json.loads(done.stdout), most)


def _comments(product: Sequence[Source]) -> list[Measure]:
    """Comments per 100 lines overall, and of each place that has laws and formulas."""
    rows = [Measure("comments", "comments per 100 lines", _per_100(product))]
    for name, pattern in COMMENTED.items():
        own = [source for source in product if re.fullmatch(pattern, str(source.path))]
        by_file = tuple(f"{source.path} {source.comments} in {source.line_count}" for source in own)
        rows.append(Measure(f"comments-{name}", f"  in the {name}", _per_100(own), least=3, places=by_file))
    return rows


def _per_100(files: Sequence[Source]) -> float:
    lines = sum(source.line_count for source in files)
    return round(100.0 * sum(source.comments for source in files) / lines, 2) if lines else 0.0


def _words(product: Sequence[Source]) -> list[Measure]:
    return [
        _counted(
            "docstrings",
            "public docstrings of three words or fewer",
            [line for source in product for line in short_docstrings(source)],
            most=0,
        ),
        _counted(
            "attributes",
            "attribute lines that say nothing",
            [line for source in product for line in empty_attributes(source)],
            most=0,
        ),
        _counted(
            "vague",
            "said, told, found, asked, kept, given, for one in",
            [line for source in product for line in vague_nouns(source)],
        ),
    ]
