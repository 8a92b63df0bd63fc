"""What became of the transitions that hosts were asked for: learned from, or lost; testbed by testbed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from rlctl.envs.whole_file import write_json

FILE = "rollouts.json"

SIMULATED = "simulated"
"""Kind of a testbed without a live host."""


@dataclass(slots=True)
class HostTally:
    """What became of one testbed's transitions.

    Attributes:
        kind: SIMULATED, or the scenario of a live one.
        lost: Those that it was asked for and that never came: what it had of them is gone with it. An upper bound.
        losses: How often it was lost.
    """

    kind: str
    learned: int = 0
    lost: int = 0
    losses: int = 0


@dataclass(slots=True)
class Tally:
    """What became of the transitions of all testbeds of a run, by the testbed's name."""

    hosts: dict[str, HostTally] = field(default_factory=dict)

    def of(self, name: str, kind: str) -> HostTally:
        """A testbed's; it is added if it is new."""
        return self.hosts.setdefault(name, HostTally(kind))

    def total(self, what: str) -> int:
        """The sum of one count over all testbeds."""
        return sum(getattr(one, what) for one in self.hosts.values())

    def line(self) -> str:
        """All testbeds in one line, for the user."""
        return (
            f"rollouts: {len(self.hosts)} testbeds, {self.total('losses')} losses; {self.total('learned'):,} "
            f"transitions learned from, at most {self.total('lost'):,} lost"
        )

    def rows(self) -> list[tuple[str, ...]]:
        """A table with a row per testbed, header first."""
        rows = [(name, *map(str, asdict(one).values())) for name, one in self.hosts.items()]
        return [("testbed", *(one.name for one in fields(HostTally))), *rows]

    def as_json(self) -> dict[str, Any]:
        """All counts by the testbed's name."""
        return {name: asdict(one) for name, one in self.hosts.items()}

    def write(self, folder: Path) -> None:
        """Write it into the folder of the run."""
        write_json(folder / FILE, self.as_json())

    @classmethod
    def read(cls, folder: Path) -> Tally:
        """What an earlier session of the run wrote, of what is counted today; empty when none did."""
        file, known = folder / FILE, [one.name for one in fields(HostTally)]
        kept = json.loads(file.read_text()) if file.is_file() else {}
        return cls({name: HostTally(**{key: one[key] for key in known if key in one}) for name, one in kept.items()})
