"""Feeds one target with hypothesis' inputs, counts what came of them, and keeps what breaks a property.

A case is some named bytes: a file's content, an answer, a line. Hypothesis draws and shrinks it; `database=None` and a
seed make a run repeatable. Every check has two seconds of CPU time, runs under the audit hook of `watch`, and is
written down before it begins: so what hangs, or kills the interpreter, is known too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from rlctl.envs.errors import RlctlError

Case = Mapping[str, bytes]
Check = Callable[[Case], str]

MOST_CPU_SECONDS, MOST_WALL_SECONDS = 2.0, 120.0
"""Of one input. The first is the bound; the second finds one that waits for ever."""

MOST_DATA_BYTES = 2 << 30
"""Of the whole process: an input that takes this much memory is a MemoryError, and so a finding."""

BATCH = 2000
"""Inputs to a run of hypothesis. One that fails ends with its finding, and the next begins."""

CURRENT = "current.json"
"""In the target's folder: the case that is being checked."""

REPEATED = 5
"""Findings after which a target is given up: they are likely all the same."""


@dataclass(frozen=True)
class Target:
    """Something that reads what others wrote.

    Attributes:
        name: As on the command line.
        cases: What may come.
        opened: A context around all checks; gives the check: what came of a case, as "accepted" or "refused: why". It
            raises where a property does not hold.
    """

    name: str
    cases: SearchStrategy[Case]
    opened: Callable[[Path], contextlib.AbstractContextManager[Check]]


@dataclass
class Tally:
    """What came of a run.

    Attributes:
        inputs: Cases checked.
        outcomes: By kind: accepted, or the class of refusal.
        messages: Distinct refusals, numbers and quoted words apart.
        slowest_seconds: CPU time of the slowest input.
        cpu_seconds: Of the run.
        findings: What broke a property, and where the case was kept.
    """

    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)
    slowest_seconds: float = 0.0
    cpu_seconds: float = 0.0
    findings: list[str] = field(default_factory=list)

    def take(self, outcome: str, seconds: float) -> None:
        """Count one case."""
        kind, _, message = outcome.partition(": ")
        self.inputs += 1
        self.outcomes[kind] += 1
        if message:
            self.messages[f"{kind}: {_plain(message)}"] += 1
        self.slowest_seconds = max(self.slowest_seconds, seconds)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "inputs": self.inputs,
            "outcomes": dict(self.outcomes.most_common()),
            "distinct_refusals": len(self.messages),
            "refusals": dict(self.messages.most_common(200)),
            "slowest_seconds": round(self.slowest_seconds, 4),
            "cpu_seconds": round(self.cpu_seconds, 1),
            "findings": self.findings,
        }


class _TooLong(BaseException):
    """No `except Exception` on the way may take it."""


def fuzz(target: Target, check: Check, folder: Path, kept: Path, inputs: int, first_seed: int, seconds: float) -> Tally:
    """Check so many cases, or as many as fit into the time.

    Args:
        target: What to feed.
        check: Its check, opened.
        folder: For the target's files; the current case is written there too.
        kept: Where failing cases are kept.
        inputs: How many.
        first_seed: Of the first batch; each further one has the next.
        seconds: Most CPU time.
    """
    tally = Tally()
    began = time.process_time()
    for batch_seed in range(first_seed, first_seed + inputs):
        left = inputs - tally.inputs
        if left <= 0 or time.process_time() - began > seconds or len(tally.findings) >= REPEATED:
            break
        last: dict[str, Case] = {}
        try:
            _batch(target, check, folder, tally, last, min(left, BATCH), batch_seed)
        except Exception as error:  # noqa: BLE001 - a target may fail in any way; each is a finding
            case = last.get("failed", {})
            path = save_case(kept, target.name, case)
            tally.findings.append(f"{type(error).__name__}: {_first_line(error)} ({path})")
    tally.cpu_seconds = time.process_time() - began
    return tally


def replay(check: Check, cases: Sequence[Path]) -> list[str]:
    """Check kept cases again; what breaks a property, in a line each."""
    broken = []
    for path in cases:
        try:
            with _bounded():
                check(load_case(path))
        except (Exception, _TooLong) as error:  # noqa: BLE001 - as above
            broken.append(f"{path}: {type(error).__name__}: {_first_line(error)}")
    return broken


def refusal(error: RlctlError) -> str:
    """A refusal as an outcome; it is one line that a terminal can show."""
    said = str(error)
    assert "\n" not in said, f"more than one line: {said!r}"
    assert len(said) <= MOST_MESSAGE, f"{len(said)} characters: {said[:200]!r}..."
    return f"{type(error).__name__}: {said}"


MOST_MESSAGE = 2010


def load_case(path: Path) -> Case:
    """A kept case."""
    return {name: text.encode("latin-1") for name, text in json.loads(path.read_text()).items()}


def save_case(folder: Path, target: str, case: Case) -> Path:
    """Keep a case as JSON; every byte is one character."""
    text = _text(case)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{target}-{hashlib.sha256(text.encode()).hexdigest()[:10]}.json"
    path.write_text(text)
    return path


def _text(case: Case) -> str:
    return json.dumps({name: data.decode("latin-1") for name, data in case.items()}, indent=1) + "\n"


def limit_memory() -> None:
    """Of this process, and for good."""
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_DATA_BYTES, resource.RLIM_INFINITY))


def _batch(
    target: Target,
    check: Check,
    folder: Path,
    tally: Tally,
    last: dict[str, Case],
    inputs: int,
    batch_seed: int,
) -> None:
    @seed(batch_seed)
    @settings(
        max_examples=inputs,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    @given(target.cases)
    def one(case: Case) -> None:
        (folder / CURRENT).write_text(_text(case))
        began = time.process_time()
        try:
            with _bounded():
                outcome = check(case)
        except _TooLong as slow:
            last["failed"] = case
            raise AssertionError(str(slow)) from None
        except Exception:
            last["failed"] = case
            raise
        tally.take(outcome, time.process_time() - began)

    one()


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    def late(number: int, _frame: object) -> None:
        kind = "of CPU time" if number == signal.SIGPROF else "by the clock"
        raise _TooLong(f"takes more than {MOST_CPU_SECONDS if 'CPU' in kind else MOST_WALL_SECONDS:g} s {kind}")

    before = [signal.signal(number, late) for number in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, MOST_CPU_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, MOST_WALL_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in zip((signal.SIGPROF, signal.SIGALRM), before, strict=True):
            signal.signal(number, handler)


def _plain(message: str) -> str:
    """A refusal without what differs from input to input."""
    text = re.sub(r"'(?:[^'\\]|\\.)*'?|\"(?:[^\"\\]|\\.)*\"?", "'", message)
    text = re.sub(r"/[^ :;,]*", "/", text)
    return re.sub(r"[-+]?\d[\d.,e+-]*", "0", text)[:90]


def _first_line(error: BaseException) -> str:
    inner = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__ or error
    return next(iter(str(inner).splitlines()), "")[:300]
