"""PRM's threshold model: what `rlctl fit-prm` writes and the PRM managers read. Needs no sklearn."""

from __future__ import annotations

import json
from bisect import bisect_right
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from rlctl.envs.errors import ConfigError
from rlctl.envs.whole_file import write_whole
from rlctl.envs.yaml_edge import Strict, load_model

Method = Literal["gmm-strict", "gmm-origin"]
Fence = Annotated[float, Field(ge=0.0)]


def check_free(path: Path, *, overwrite: bool) -> None:
    """Check that a model may be written there; ConfigError: there is one, and it may not be replaced."""
    if path.exists() and not overwrite:
        raise ConfigError("exists; --overwrite replaces it, or write elsewhere", path)


class ThresholdBin(Strict):
    """Thresholds for one range of the LC's CPU use.

    Attributes:
        low_percent, high_percent: LC CPU use, 100 being one CPU; the range is half-open.
        rows: Intervals that it was fitted to.
        upper: Largest value that is still normal, by metric (`cpi`, `lc_cpu_seconds_per_request`, `mpki`, ...).
        lower: Smallest value that is still normal, by metric (`mb`).
    """

    low_percent: float = Field(ge=0.0)
    high_percent: float = Field(gt=0.0)
    rows: int = Field(ge=1)
    upper: dict[str, Fence] = Field(default_factory=dict)
    lower: dict[str, Fence] = Field(default_factory=dict)


class PrmModel(Strict):
    """The LC's normal behaviour when it runs alone.

    Attributes:
        kind, version: What the file is.
        lc_cpus: CPUs of the LC; fixes the range of the bins.
        lcutilmax_percent: The LC's largest CPU use, 100 being one CPU; 0 when unknown.
        method, span_sigmas: How the fences were put.
        bins: In ascending order; ranges without enough records have none.
    """

    kind: Literal["prm-threshold"] = "prm-threshold"
    version: Literal[1] = 1
    lc_cpus: float = Field(gt=0.0)
    lcutilmax_percent: float = Field(ge=0.0)
    method: Method = "gmm-strict"
    span_sigmas: float = Field(default=4.0, gt=0.0)
    bins: tuple[ThresholdBin, ...] = ()

    @model_validator(mode="after")
    def _in_order(self) -> PrmModel:
        edges = [edge for bin_ in self.bins for edge in (bin_.low_percent, bin_.high_percent)]
        if edges != sorted(edges) or any(bin_.low_percent >= bin_.high_percent for bin_ in self.bins):
            raise ValueError("bins must ascend and not overlap; fit the model anew")
        return self

    def threshold(self, util_percent: float) -> ThresholdBin | None:
        """The bin that judges an LC CPU use: its own, else the nearest below; None below the first (eris)."""
        # Below the first bin nothing was recorded, so nothing there is abnormal.
        at = bisect_right([bin_.low_percent for bin_ in self.bins], util_percent)
        return self.bins[at - 1] if at else None

    @classmethod
    def load(cls, path: Path) -> PrmModel:
        """Read a model file.

        Raises:
            ConfigError: The file is absent or does not fit, with its line.
            PermissionMissing: The file may not be read.
        """
        return load_model(cls, path)  # JSON is YAML, and the YAML edge knows the lines

    def write(self, path: Path, *, overwrite: bool = False) -> None:
        """Write the model, whole or not at all.

        Raises:
            ConfigError: The file exists and may not be replaced: a model must not grow old in silence.
        """
        check_free(path, overwrite=overwrite)
        write_whole(path, json.dumps(self.model_dump(), indent=1) + "\n")
