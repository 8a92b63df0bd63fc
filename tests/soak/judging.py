"""What a long run may do to memory, descriptors, threads and the tick log, and what it did."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rlctl.safety.profile import DEFAULT
from rlctl.serve.self_usage import self_usage

MOST_GROWTH_BYTES = 5 << 20
ROTATE_BYTES, KEEP = 1 << 16, 4
LOG_BOUND_BYTES = (KEEP + 1) * ROTATE_BYTES

SHIELDS = (DEFAULT, "heracles")
"""What reloads exchange."""

BROKEN = "policy: {name: ["
"""A configuration that is none: its reload must change nothing."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a process takes at one moment."""

    resident_bytes: int
    open_files: int
    threads: int

    @classmethod
    def of(cls, pid: int | str) -> Sample:
        """Now.

        Raises:
            OSError: There is no such process.
        """
        process = Path(f"/proc/{pid}")
        usage = self_usage(process)
        return cls(usage.resident_bytes, usage.open_files, len(os.listdir(process / "task")))


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of a process between warm-up and end.

    Descriptors and threads are the least of the first and of the last third: groups come and go, and scrapes are
    answered meanwhile, and only what never goes down again has leaked.
    """

    first_resident_bytes: int
    last_resident_bytes: int
    most_resident_bytes: int
    first_open_files: int
    last_open_files: int
    first_threads: int
    last_threads: int

    @classmethod
    def over(cls, samples: Sequence[Sample]) -> Judgement:
        """Of samples after the warm-up, one at least."""
        third = max(len(samples) // 3, 1)
        head, tail = samples[:third], samples[-third:]
        return cls(
            samples[0].resident_bytes,
            samples[-1].resident_bytes,
            max(one.resident_bytes for one in samples),
            min(one.open_files for one in head),
            min(one.open_files for one in tail),
            min(one.threads for one in head),
            min(one.threads for one in tail),
        )

    def complaints(self, who: str) -> Iterator[str]:
        """What is not as it should be."""
        growth = self.most_resident_bytes - self.first_resident_bytes
        if growth > MOST_GROWTH_BYTES:
            yield f"{who} grew by {growth / 2**20:.1f} MB"
        if self.last_open_files > self.first_open_files:
            yield f"{who} has {self.last_open_files} descriptors, at first {self.first_open_files}"
        if self.last_threads > self.first_threads:
            yield f"{who} has {self.last_threads} threads, at first {self.first_threads}"

    def __str__(self) -> str:
        resident = self.first_resident_bytes, self.last_resident_bytes, self.most_resident_bytes
        first, last, most = (one / 2**20 for one in resident)
        return (
            f"RSS {first:.2f} -> {last:.2f} MB (most +{most - first:.2f}), descriptors "
            f"{self.first_open_files} -> {self.last_open_files}, threads {self.first_threads} -> {self.last_threads}"
        )


def finish(
    figures: Mapping[str, object], judged: Mapping[str, Judgement], most_log_bytes: int, output: Path | None
) -> int:
    """Print and write what was found.

    Args:
        figures: What else goes into the file.
        judged: By process.
        most_log_bytes: What the tick log took at most.
        output: The JSON file; None writes none.

    Returns:
        The exit code: 1 if something is not as it should be.
    """
    for who, judgement in judged.items():
        print(f"{who}: {judgement}")
    print(f"tick log: at most {most_log_bytes / 1024:.0f} kB, its bound is {LOG_BOUND_BYTES / 1024:.0f} kB")
    complaints = [complaint for who, one in judged.items() for complaint in one.complaints(who)]
    if most_log_bytes > LOG_BOUND_BYTES:
        complaints.append("the tick log exceeded its bound")
    for complaint in complaints:
        print(f"FAILED: {complaint}")
    if output:
        log = {"most_log_bytes": most_log_bytes, "log_bound_bytes": LOG_BOUND_BYTES}
        more = {who: asdict(judgement) for who, judgement in judged.items()}
        output.write_text(json.dumps({**figures, **log, **more, "complaints": complaints}, indent=1) + "\n")
    return int(bool(complaints))


def log_bytes(folder: Path) -> int:
    """What all files of the tick log take together."""
    total = 0
    for path in folder.glob("ticks.jsonl*"):
        with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
            total += path.stat().st_size
    return total


def free_port() -> int:
    """A port of the loopback interface that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def watchdog_of(pid: int) -> int | None:
    """The watchdog of a controller; None while there is none."""
    with contextlib.suppress(OSError):  # a child that has ended meanwhile
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if "watchdog.py" in Path(f"/proc/{child}/cmdline").read_text():
                return int(child)
    return None
