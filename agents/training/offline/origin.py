"""What a dataset says of itself, and where it is.

    origin = read_origin(dataset_folder("nginx-v0"))
    origin.policies["heracles"].qos_percent

It needs no Minari: the metadata are JSON. What a dataset holds says `dataset`.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from rlctl.envs.actions import MOVES_VERSION
from rlctl.envs.errors import ConfigError, PermissionMissing, require_installed
from rlctl.envs.observation import LAGS, VERSION
from rlctl.envs.workload import Weight
from rlctl.envs.yaml_edge import Strict, validate

TERMS = ("qos", "severity", "be_work", "reconfiguration", "override")
"""Columns of `reward_terms`, the parts of `rlctl.envs.reward.RewardTerms`."""

KEY = "rlctl"
"""Of the metadata that is ours."""

_ID = re.compile(r"(?:[A-Za-z0-9_][-\w]*/)*[A-Za-z0-9_][-\w]*-v\d+", re.ASCII)


class Source(Strict):
    """Where transitions are from.

    Attributes:
        kind, name: What it is, and its file, folder, scenario or kind of host.
        sha256: Digest of the files; of simulated runs that of everything that they follow from.
        host, host_digest: The simulated host's profile; of a log the host's limits in words.
        weight, work: BE's CPU weight, and what its work is worth by a violation to those who learn on such hosts in the
            simulator. Of a log they are not known.
        shield, shield_digest: The safety profile in force; empty for none.
        absent: Sensors that simulated hosts lacked; of a log they are not known.
        hosts: Number of hosts, or of runs that a log holds.
        ticks, transitions: How many control periods there were, and how many are in the dataset.
    """

    kind: Literal["simulator", "tick log", "train-live"]
    name: str
    sha256: str
    host: str
    host_digest: str = ""
    weight: Weight | None = None
    work: float | None = None
    shield: str = ""
    shield_digest: str = ""
    absent: tuple[str, ...] = ()
    hosts: int = Field(ge=1)
    ticks: int = Field(ge=0)
    transitions: int = Field(ge=0)


class PolicyCounts(Strict):
    """What one policy's transitions came to, over all sources.

    Attributes:
        qos_percent: Share of them that held the target.
        override_percent, explored_percent: Shares that the shield changed, and that were exploration.
    """

    transitions: int
    qos_percent: float
    be_percent: float
    override_percent: float
    explored_percent: float


class Origin(Strict):
    """What a dataset says of itself.

    Attributes:
        rlctl, code: Version and commit that wrote it.
        observation_version, moves_version, lags: What its numbers mean.
        sha256: Digest over all episodes: the dataset's own identity, wherever it is copied to.
        ticks: Control periods of the recordings, more than there are transitions.
        censored: Ticks or breaks by reason, for which episodes were cut; see `rlctl.learn.transitions`.
        policies: Who decided, in the order of the numbers in `policy`.
    """

    schema_version: Literal[1] = 1
    rlctl: str
    code: str
    observation_version: int
    moves_version: int
    lags: tuple[int, ...]
    tick_seconds: float
    sha256: str
    episodes: int
    ticks: int
    transitions: int
    censored: dict[str, int]
    policies: dict[str, PolicyCounts]
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class DatasetFolder:
    """Where a dataset is, or is to be: its folder, with the data in `data/` below."""

    name: str
    folder: Path

    @property
    def data(self) -> Path:
        """The folder that `minari.MinariDataset` opens."""
        return self.folder / "data"


def require_minari() -> None:
    """Raise ConfigError where Minari is not installed."""
    require_installed("a dataset", "data", "minari", "h5py")


def dataset_folder(named: str) -> DatasetFolder:
    """An id such as `nginx-v0` or `rlctl/nginx-v0` is Minari's to place, anything else is a folder.

    Minari's folder is MINARI_DATASETS_PATH or ~/.minari/datasets. A folder that looks like an id is written with ./
    in front.
    """
    if _ID.fullmatch(named):
        root = os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets"
        return DatasetFolder(named, Path(root) / named)
    folder = Path(named)
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.resolve().name).strip("-") or "dataset"
    return DatasetFolder(plain if re.search(r"-v\d+$", plain) else f"{plain}-v0", folder)


def read_origin(place: DatasetFolder) -> Origin:
    """What a dataset says of itself; ConfigError where it is none of an rlctl with these observations and moves."""
    file = place.data / "metadata.json"
    if not file.is_file():
        raise ConfigError("holds no dataset; `rlctl dataset export` and `record` write them", place.folder)
    try:
        said = json.loads(file.read_text())
    except PermissionError as error:
        raise PermissionMissing(f"{file}: may not be read; run as a user who may") from error
    except (OSError, ValueError) as error:
        raise ConfigError("cannot be read; export it again from its sources", file) from error
    if not isinstance(said, dict) or KEY not in said:
        raise ConfigError("is no dataset of rlctl's: its metadata do not say what its numbers mean", file)
    origin = validate(Origin, said[KEY], file)
    here = (VERSION, MOVES_VERSION, LAGS)
    if (origin.observation_version, origin.moves_version, origin.lags) != here:
        raise ConfigError(
            f"is of observations {origin.observation_version} and moves {origin.moves_version}, this rlctl has "
            f"{VERSION} and {MOVES_VERSION}; export it again from its sources",
            file,
        )
    return origin
