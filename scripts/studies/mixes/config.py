"""What is measured, as YAML beside this file: applications with their working modes, and mixes of instances."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from rlctl.envs.applications import WorkingMode
from rlctl.envs.errors import ConfigError
from rlctl.envs.yaml_edge import Strict, load_model
from scripts.studies.mixes.tunable import MOST_THREADS, TunableWorkload

MOST_INSTANCES = 256
"""Of a mix: each is a process with a control group of its own."""

_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}$")]
_Count = Annotated[int, Field(ge=1, le=MOST_INSTANCES)]


class ModeSpec(Strict):
    """A working mode as it was published.

    Attributes:
        quota_percent: CPU time, in percent of one CPU of the machine it was published for.
        threads: How many threads run in it.
        value: What it is worth, 0 to 1.
    """

    quota_percent: float = Field(gt=0.0)
    threads: int = Field(ge=1, le=MOST_THREADS)
    value: float = Field(ge=0.0, le=1.0)


class ApplicationSpec(Strict):
    """An application: one of the testbed's tunable benchmarks, or any command.

    Attributes:
        workload: A tunable benchmark.
        work: Frames or images of each instance.
        command: Program and arguments instead of a benchmark.
        modes: From the least CPU time to the most; unmanaged it runs the threads of the last one.
    """

    workload: TunableWorkload | None = None
    work: int = Field(default=1, ge=1, le=1_000_000)
    command: tuple[str, ...] | None = Field(default=None, min_length=1)
    modes: tuple[ModeSpec, ...] = Field(min_length=1, max_length=32)

    @model_validator(mode="after")
    def _one_kind(self) -> ApplicationSpec:
        if (self.workload is None) == (self.command is None):
            raise ValueError("an application has either a workload (datapar, pipeline) or a command")
        if list(self.modes) != sorted(self.modes, key=lambda mode: mode.quota_percent):
            raise ValueError("modes go from the least quota to the most: sort them by 'quota_percent'")
        return self

    @property
    def threads(self) -> int:
        """The most it runs, and what runs unmanaged."""
        return max(mode.threads for mode in self.modes)

    def working_modes(self, cpus_scale: float) -> tuple[WorkingMode, ...]:
        """The modes on this machine, with `cpus_scale` CPUs for one CPU of the machine they were published for."""
        return tuple(
            WorkingMode(mode.quota_percent / 100.0 * cpus_scale, mode.threads, mode.value) for mode in self.modes
        )


class MeasureConfig(Strict):
    """Applications and mixes of them.

    Attributes:
        published_cpus: Managed CPUs of the machine that quotas were published for.
        published_clusters: Clusters of CPUs of that machine.
        applications: What a mix may have instances of, by name.
        mixes: How many instances of which application, by the mix's name; `burst` makes its own.
    """

    published_cpus: float = Field(gt=0.0)
    published_clusters: int = Field(default=1, ge=1, le=64)
    applications: dict[_Name, ApplicationSpec] = Field(min_length=1)
    mixes: dict[_Name, dict[_Name, _Count]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known(self) -> MeasureConfig:
        for name, mix in self.mixes.items():
            for application in mix:
                if application not in self.applications:
                    raise ValueError(f"mix {name} has {application!r}; applications are {', '.join(self.applications)}")
            if not 1 <= sum(mix.values()) <= MOST_INSTANCES:
                raise ValueError(f"mix {name} has {sum(mix.values())} instances: 1 to {MOST_INSTANCES}")
        return self


def load_measure(name_or_file: str | Path) -> MeasureConfig:
    """The configuration `mixes` or `burst` beside this file, or the user's by path; ConfigError has its line."""
    own = Path(name_or_file)
    if own.suffix not in (".yaml", ".yml"):
        own = Path(__file__).with_name(f"{own.name}.yaml")
        if not own.exists():
            raise ConfigError(f"no measurement {str(name_or_file)!r}; there are burst, mixes, or give a .yaml file")
    return load_model(MeasureConfig, own)
