"""The ranges that a manager's constants are searched over, and the candidates that a search takes from them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, RootModel

from rlctl.agents import catalogue
from rlctl.agents.training.search.space import Draw
from rlctl.envs.arrays import Array
from rlctl.envs.errors import ConfigError
from rlctl.envs.yaml_edge import configs_folder, load_model

Options = Mapping[str, float]
"""Constructor options by name."""

REACH_RATIOS = (0.20, 0.10, 0.05)
"""Standard deviation of a perturbation as a share of the range, round by round."""


class Range(Draw):
    """Where one option is drawn from.

    Attributes:
        at_most: Another option of the manager that this one never exceeds.
    """

    at_most: str | None = None

    def at(self, share: float) -> float:
        """The value at a share of the range, from 0, the lowest, to 1."""
        low, high = self.ends
        return float(self.value(low * (high / low) ** share if self.log_uniform else low + share * (high - low)))

    def share(self, value: float) -> float:
        """Where a value stands in the range; the nearer end for one outside."""
        low, high = self.ends
        if self.log_uniform:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        return float(min(max((value - low) / (high - low), 0.0), 1.0))


def latin_hypercube(random: np.random.Generator, count: int, dimensions: int) -> Array:
    """Points of the unit cube, shape (count, dimensions), that meet each of `count` parts of every side once.

    McKay, Beckman and Conover, Technometrics 21(2), 1979.
    """
    columns = [(random.permutation(count) + random.random(count)) / max(count, 1) for _ in range(dimensions)]
    return np.array(columns).T.reshape(count, dimensions)


def folded(shares: Array) -> Array:
    """Shares beyond an end of the range mirrored back into it: cut off, they would pile up at the ends."""
    return np.asarray(1.0 - np.abs(1.0 - np.abs(shares) % 2.0))


class Search(RootModel[dict[str, dict[str, Range]]]):
    """`configs/managers/search.yaml`: option ranges by manager."""

    model_config = ConfigDict(frozen=True)
    root: dict[str, dict[str, Range]] = Field(min_length=1)


@dataclass(frozen=True)
class Space:
    """What is searched for one manager.

    Raises:
        ConfigError: An option is not the manager's to search, or its published value is outside its range.
        PolicyError: There is no such manager.
    """

    manager: str
    ranges: Mapping[str, Range]

    def __post_init__(self) -> None:
        known = catalogue.options(self.manager)
        for name, one in self.ranges.items():
            value, low, high = known.get(name), one.ends[0], one.ends[-1]
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"{self.manager}: {name} is no option with a number to search from")
            if not low <= value <= high:
                raise ConfigError(f"{self.manager}: {name} is published as {value:g}, outside [{low:g}, {high:g}]")
            if one.at_most is not None and one.at_most not in self.ranges:
                raise ConfigError(f"{self.manager}: {name} is bounded by {one.at_most}, which is not searched")

    @property
    def published(self) -> Options:
        """The constants that the manager has when none is given."""
        known = catalogue.options(self.manager)
        return {name: known[name] for name in self.ranges}  # type: ignore[misc] # __post_init__ saw to it

    def spread(self, count: int) -> list[Options]:
        """Candidates over all ranges, the same for the same manager and count."""
        return [self._options(shares) for shares in latin_hypercube(self._random(0), count, len(self.ranges))]

    def near(self, best: Options, count: int, step: int) -> list[Options]:
        """Candidates around the best so far; about half of the options move, at least one.

        Args:
            step: Round of perturbation, from 0 on; each later one looks closer.
        """
        random = self._random(1 + step)
        centre = np.array([one.share(best[name]) for name, one in self.ranges.items()])
        reach = REACH_RATIOS[min(step, len(REACH_RATIOS) - 1)]
        found = []
        for _ in range(count):
            moved = random.random(len(centre)) < 0.5
            moved[random.integers(len(centre))] = True
            found.append(self._options(folded(centre + moved * random.normal(0.0, reach, len(centre)))))
        return found

    def _options(self, shares: NDArray[np.float64]) -> Options:
        """Whole numbers where the published value is one; the bounds between options kept."""
        published = self.published
        drawn = {name: one.at(float(share)) for (name, one), share in zip(self.ranges.items(), shares, strict=True)}
        bounded = {name: min(drawn[name], drawn[one.at_most or name]) for name, one in self.ranges.items()}
        return {name: round(value) if isinstance(published[name], int) else value for name, value in bounded.items()}

    def _random(self, stream: int) -> np.random.Generator:
        return np.random.default_rng([zlib.crc32(self.manager.encode()), stream])


def load_search(path: Path | None = None) -> dict[str, Space]:
    """What is searched, by manager in the catalogue's order.

    Args:
        path: The file; the shipped one when None.

    Raises:
        ConfigError: The file is wrong, or does not fit the managers.
    """
    source = path or configs_folder("managers") / "search.yaml"
    searched = load_model(Search, source).root
    for name in searched:
        catalogue.options(name)
    return {name: Space(name, searched[name]) for name in catalogue.NAMES if name in searched}


def spaces(names: tuple[str, ...]) -> tuple[Space, ...]:
    """The shipped spaces of these managers, all for none.

    Raises:
        ConfigError: A manager has no constants to search.
    """
    known = load_search()
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"{', '.join(unknown)}: no constants to search; there are {', '.join(known)}")
    return tuple(known[name] for name in names or known)
