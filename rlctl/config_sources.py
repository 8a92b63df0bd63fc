"""What a configuration may name on a host: running workloads, and where the LC's latency is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from rlctl.config_fields import Name, Strict, Url
from rlctl.envs.host.latency.figures import TimeUnit

__all__ = [
    "CgroupWorkload",
    "ContainerWorkload",
    "HttpLatency",
    "JsonlLatency",
    "KubernetesWorkload",
    "Latency",
    "NginxLogLatency",
    "PidWorkload",
    "PrometheusLatency",
    "UnitWorkload",
    "Workload",
]


class CgroupWorkload(Strict):
    """A control group, by its path below the root of the hierarchy."""

    kind: Literal["cgroup"]
    path: Name

    @field_validator("path")
    @classmethod
    def _no_escape(cls, path: str) -> str:
        if ".." in path.split("/") or not path.strip("/"):
            raise ValueError(f"{path!r} is no group below the root; write it as in /proc/PID/cgroup")
        return path


class UnitWorkload(Strict):
    """A systemd service, slice or scope."""

    kind: Literal["unit"]
    unit: Annotated[str, Field(pattern=r"^[^/\s]+\.(service|slice|scope)$")]


class PidWorkload(Strict):
    """The control group of a process, as it is when the controller starts."""

    kind: Literal["pid"]
    pid: int = Field(gt=1)


class ContainerWorkload(Strict):
    """A container of Docker, Podman, containerd or CRI-O, by its id or the first 12 or more digits of it."""

    kind: Literal["container"]
    id: Annotated[str, Field(pattern=r"^[0-9a-f]{12,64}$")]


class KubernetesWorkload(Strict):
    """A pod, or one container of it."""

    kind: Literal["kubernetes"]
    pod_uid: Annotated[str, Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
    container_id: Annotated[str, Field(pattern=r"^[0-9a-f]{12,64}$")] | None = None


Workload = Annotated[
    CgroupWorkload | UnitWorkload | PidWorkload | ContainerWorkload | KubernetesWorkload,
    Field(discriminator="kind"),
]
"""How a workload that runs already is found."""


class _Polled(Strict):
    url: Url
    timeout_seconds: float = Field(default=0.5, gt=0.0, le=60.0)
    stale_seconds: float = Field(default=3.0, gt=0.0, le=3600.0)
    unit: TimeUnit = TimeUnit.SECONDS


class PrometheusLatency(_Polled):
    """A histogram on a Prometheus endpoint; see `rlctl.envs.host.latency.prometheus.PrometheusNames`."""

    kind: Literal["prometheus"]
    histogram: Name
    labels: dict[str, str] = Field(default_factory=dict)
    oldest: Name | None = None
    in_flight: Name | None = None


class HttpLatency(_Polled):
    """A JSON document on an HTTP endpoint; keys are dotted paths, see `rlctl.envs.host.latency.keys.FigureKeys`."""

    kind: Literal["http"]
    tail: Name
    samples: Name | None = None
    oldest: Name | None = None
    offered_rps: Name | None = None
    done_rps: Name | None = None
    error_rps: Name | None = None
    window: Name | None = None
    stamp: Name | None = None
    window_seconds: float = Field(default=1.0, gt=0.0, le=3600.0)

    @model_validator(mode="after")
    def _countable(self) -> HttpLatency:
        if self.samples is None and self.done_rps is None:
            raise ValueError("needs 'samples' or 'done_rps', else nobody knows how far to trust the tail")
        return self


class JsonlLatency(Strict):
    """A file or FIFO with one JSON object per completed request."""

    kind: Literal["jsonl"]
    path: Path
    latency: Name = "latency_seconds"
    ok: Name | None = None
    unit: TimeUnit = TimeUnit.SECONDS
    window_seconds: float = Field(default=1.0, gt=0.0, le=3600.0)


class NginxLogLatency(Strict):
    """nginx's access log; without a pattern, the log format that `rlctl.envs.host.latency.nginx_log` documents."""

    kind: Literal["nginx-log"]
    path: Path
    pattern: Name | None = None
    window_seconds: float = Field(default=1.0, gt=0.0, le=3600.0)


Latency = Annotated[
    PrometheusLatency | HttpLatency | JsonlLatency | NginxLogLatency,
    Field(discriminator="kind"),
]
"""Where the LC's tail latency and load come from."""
