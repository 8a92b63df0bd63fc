"""What a configuration may name on a host: running workloads, and where the LC's latency is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from rlctl.config.fields import Name, Strict, Url
from rlctl.envs.host.discovery import (
    ByCgroup,
    ByContainer,
    ByKubernetesPod,
    ByKubernetesQos,
    ByPid,
    ByUnit,
    WorkloadSpec,
)
from rlctl.envs.host.latency.figures import TimeUnit

__all__ = [
    "CgroupWorkload",
    "ContainerWorkload",
    "CyclictestLatency",
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
    """A control group, by its path below the root of the hierarchy; `*`, `?` and `**` as in `ByCgroup`."""

    kind: Literal["cgroup"]
    path: Name

    @field_validator("path")
    @classmethod
    def _no_escape(cls, path: str) -> str:
        if ".." in path.split("/") or not path.strip("/"):
            raise ValueError(f"{path!r} is no group below the root; write it as in /proc/PID/cgroup")
        return path

    def spec(self) -> WorkloadSpec:
        """For `rlctl.envs.host.discovery.discover`."""
        return ByCgroup(self.path)


class UnitWorkload(Strict):
    """A systemd unit that runs; a name without a suffix is a service."""

    kind: Literal["unit"]
    unit: Annotated[str, Field(pattern=r"^[^/\s]+$")]

    def spec(self) -> WorkloadSpec:
        """For `rlctl.envs.host.discovery.discover`."""
        return ByUnit(self.unit)


class PidWorkload(Strict):
    """The control group of a process, as it is when the controller starts."""

    kind: Literal["pid"]
    pid: int = Field(gt=1)

    def spec(self) -> WorkloadSpec:
        """For `rlctl.envs.host.discovery.discover`."""
        return ByPid(self.pid)


class ContainerWorkload(Strict):
    """A container of Docker, Podman, containerd, CRI-O or runc: its name, its id, or 12 digits of the id."""

    kind: Literal["container"]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")]

    def spec(self) -> WorkloadSpec:
        """For `rlctl.envs.host.discovery.discover`."""
        return ByContainer(self.name)


class KubernetesWorkload(Strict):
    """One pod, one container of it, or all pods of a QoS class.

    Attributes:
        pod_uid: The pod.
        container_id: Id of a container of that pod, or the beginning of it.
        qos: All pods of this class instead.
        each_pod: The pods' groups rather than the one of the class.
    """

    kind: Literal["kubernetes"]
    pod_uid: Annotated[str, Field(pattern=r"^[0-9a-f]+(-[0-9a-f]+)*$")] | None = None
    container_id: Annotated[str, Field(pattern=r"^[0-9a-f]{1,64}$")] | None = None
    qos: Literal["besteffort", "burstable", "guaranteed"] | None = None
    each_pod: bool = False

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.pod_uid is None) == (self.qos is None):
            raise ValueError("needs either 'pod_uid' or 'qos'")
        if self.qos is not None and self.container_id is not None:
            raise ValueError("'container_id' goes with 'pod_uid', not with 'qos'")
        if self.pod_uid is not None and self.each_pod:
            raise ValueError("'each_pod' goes with 'qos', not with 'pod_uid'")
        return self

    def spec(self) -> WorkloadSpec:
        """For `rlctl.envs.host.discovery.discover`."""
        if self.qos is not None:
            return ByKubernetesQos(self.qos, self.each_pod)
        return ByKubernetesPod(self.pod_uid or "", self.container_id)


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
    def _countable(self) -> Self:
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


class CyclictestLatency(Strict):
    """Standard output of `cyclictest --verbose`, see `rlctl.envs.host.latency.cyclictest`: the LC is a real-time task.

    With `--nsecs` the unit is nanoseconds.
    """

    kind: Literal["cyclictest"]
    path: Path
    unit: TimeUnit = TimeUnit.MICROSECONDS
    window_seconds: float = Field(default=1.0, gt=0.0, le=3600.0)


Latency = Annotated[
    PrometheusLatency | HttpLatency | JsonlLatency | NginxLogLatency | CyclictestLatency,
    Field(discriminator="kind"),
]
"""Where the LC's tail latency and load come from."""
