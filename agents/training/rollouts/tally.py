"""What became of the transitions that hosts were asked for: learned from, stale, or lost; host by host."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlctl.envs.whole_file import write_whole

__all__ = ["FILE", "HostTally", "Tally"]

FILE = "rollouts.json"


@dataclass(slots=True)
class HostTally:
    """Of one host.

    Attributes:
        kind: `simulated`, or the scenario of a live one.
        learned: Transitions that were learned from.
        stale: Those that were dropped, for the policy had gone on too far.
        lost: Those that it was asked for and that never came: what it had of them is gone with it. An upper bound.
        segments: That came.
        losses: How often it was lost.
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
    """Of all hosts of a run.

    Attributes:
        hosts: By name.
    """

    hosts: dict[str, HostTally] = field(default_factory=dict)

    def of(self, name: str, kind: str) -> HostTally:
        """A host's; it is added if it is new."""
        return self.hosts.setdefault(name, HostTally(kind))

    def came(self, name: str, transitions: int, behind: int, age_seconds: float, *, stale: bool) -> None:
        """A segment has come."""
        one = self.hosts[name]
        one.segments += 1
        one.behind_sum += behind
        one.behind_most = max(one.behind_most, behind)
        one.age_sum += age_seconds
        one.age_most = max(one.age_most, age_seconds)
        if stale:
            one.stale += transitions
        else:
            one.learned += transitions

    def lost(self, name: str, transitions: int) -> None:
        """A host was lost, with what it was asked for."""
        self.hosts[name].losses += 1
        self.hosts[name].lost += transitions

    def total(self, what: str) -> float:
        """A sum over all hosts."""
        return float(sum(getattr(one, what) for one in self.hosts.values()))

    def curves(self) -> dict[str, float]:
        """For TensorBoard, by name."""
        segments = max(self.total("segments"), 1)
        return {
            **{name: self.total(name) for name in ("learned", "stale", "lost", "losses")},
            "versions_behind": self.total("behind_sum") / segments,
            "age_seconds": self.total("age_sum") / segments,
        }

    def line(self) -> str:
        """In one line, for the user."""
        return (
            f"rollouts: {len(self.hosts)} testbeds, {self.total('losses'):.0f} losses; {self.total('learned'):,.0f} "
            f"transitions learned from, {self.total('stale'):,.0f} stale and dropped, at most "
            f"{self.total('lost'):,.0f} lost"
        )

    def rows(self) -> list[tuple[str, ...]]:
        """As a table."""
        head = ("testbed", "kind", "learned", "stale", "lost", "losses", "segments", "behind", "most", "age s", "most")
        return [head, *(self._row(name, one) for name, one in self.hosts.items())]

    @staticmethod
    def _row(name: str, one: HostTally) -> tuple[str, ...]:
        count = max(one.segments, 1)
        numbers = (one.learned, one.stale, one.lost, one.losses, one.segments)
        behind = (f"{one.behind_sum / count:.2f}", str(one.behind_most))
        age = (f"{one.age_sum / count:.2f}", f"{one.age_most:.2f}")
        return (name, one.kind, *map(str, numbers), *behind, *age)

    def as_json(self) -> dict[str, Any]:
        """By name, rounded."""
        return {name: _rounded(asdict(one)) for name, one in self.hosts.items()}

    def write(self, folder: Path) -> None:
        """Write it into the folder of the run."""
        write_whole(folder / FILE, json.dumps(self.as_json(), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Tally:
        """What an earlier session of the run wrote; empty when none did."""
        file = folder / FILE
        kept = json.loads(file.read_text()) if file.is_file() else {}
        return cls({name: HostTally(**one) for name, one in kept.items()})


def _rounded(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in data.items()}
