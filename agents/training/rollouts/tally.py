"""What became of the transitions that hosts were asked for: learned from, stale, or lost; host by host."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlctl.envs.whole_file import write_json

FILE = "rollouts.json"

SIMULATED = "simulated"
"""Kind of a testbed without a live host."""


@dataclass(slots=True)
class HostTally:
    """What became of one host's transitions.

    Attributes:
        kind: SIMULATED, or the scenario of a live one.
        stale: Those that were dropped, for the policy had gone on too far.
        lost: Those that it was asked for and that never came: what it had of them is gone with it. An upper bound.
        segments, losses: Number of segments that came, and how often the host was lost.
        behind_sum, behind_most: Versions that segments were behind the policy when they came.
        age_sum, age_most: Seconds from asking for a segment until it came, by the learner's clock: none is older.
    """

    kind: str
    learned: int = 0
    stale: int = 0
    lost: int = 0
    segments: int = 0
    losses: int = 0
    behind_sum: int = 0
    behind_most: int = 0
    age_sum: float = 0.0
    age_most: float = 0.0


@dataclass(slots=True)
class Tally:
    """What became of the transitions of all hosts of a run, by the host's name."""

    hosts: dict[str, HostTally] = field(default_factory=dict)

    def of(self, name: str, kind: str) -> HostTally:
        """A host's; it is added if it is new."""
        return self.hosts.setdefault(name, HostTally(kind))

    def came(self, name: str, transitions: int, behind: int, age_seconds: float, *, stale: bool) -> None:
        """Count a segment that has come."""
        one = self.hosts[name]
        one.segments += 1
        one.behind_sum += behind
        one.behind_most = max(one.behind_most, behind)
        one.age_sum += age_seconds
        one.age_most = max(one.age_most, age_seconds)
        one.stale += transitions * stale
        one.learned += transitions * (not stale)

    def lost(self, name: str, transitions: int) -> None:
        """Count a host that was lost, with what it was asked for."""
        self.hosts[name].losses += 1
        self.hosts[name].lost += transitions

    def total(self, what: str) -> float:
        """The sum of one count over all hosts."""
        return float(sum(getattr(one, what) for one in self.hosts.values()))

    def curves(self) -> dict[str, float]:
        """Points of TensorBoard's curves, by name."""
        segments = max(self.total("segments"), 1)
        return {
            **{name: self.total(name) for name in ("learned", "stale", "lost", "losses")},
            "versions_behind": self.total("behind_sum") / segments,
            "age_seconds": self.total("age_sum") / segments,
        }

    def line(self) -> str:
        """All hosts in one line, for the user."""
        return (
            f"rollouts: {len(self.hosts)} testbeds, {self.total('losses'):.0f} losses; {self.total('learned'):,.0f} "
            f"transitions learned from, {self.total('stale'):,.0f} stale and dropped, at most "
            f"{self.total('lost'):,.0f} lost"
        )

    def rows(self) -> list[tuple[str, ...]]:
        """A table with a row per host, header first."""
        head = ("testbed", "kind", "learned", "stale", "lost", "losses", "segments", "behind", "most", "age s", "most")
        rows: list[tuple[str, ...]] = [head]
        for name, one in self.hosts.items():
            count = max(one.segments, 1)
            numbers = map(str, (one.learned, one.stale, one.lost, one.losses, one.segments))
            behind = (f"{one.behind_sum / count:.2f}", str(one.behind_most))
            rows.append((name, one.kind, *numbers, *behind, f"{one.age_sum / count:.2f}", f"{one.age_most:.2f}"))
        return rows

    def as_json(self) -> dict[str, Any]:
        """All counts by the host's name, rounded."""
        return {
            host: {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(one).items()}
            for host, one in self.hosts.items()
        }

    def write(self, folder: Path) -> None:
        """Write it into the folder of the run."""
        write_json(folder / FILE, self.as_json())

    @classmethod
    def read(cls, folder: Path) -> Tally:
        """What an earlier session of the run wrote; empty when none did."""
        file = folder / FILE
        kept = json.loads(file.read_text()) if file.is_file() else {}
        return cls({name: HostTally(**one) for name, one in kept.items()})
