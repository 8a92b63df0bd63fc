"""What a configuration may name on a host: running workloads, and where the LC's latency is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from rlctl.config.fields import Described, Url
from rlctl.envs.errors import ConfigError
from rlctl.envs.host.containers import ByContainer
from rlctl.envs.host.discovery import ByCgroup, ByPid, ByUnit
from rlctl.envs.host.kubernetes import ByKubernetes
from rlctl.envs.host.latency.figures import TimeUnit
from rlctl.envs.host.latency.json_object import FigureKeys
from rlctl.envs.host.latency.jsonl import RequestKeys
from rlctl.envs.host.latency.prometheus import PrometheusNames
from rlctl.envs.yaml_edge import Name


class CgroupWorkload(Described, ByCgroup):
    """A control group, or several by a pattern."""

    kind: Literal["cgroup"]


class UnitWorkload(Described, ByUnit):
    """A systemd unit that runs."""

    kind: Literal["unit"]


class PidWorkload(Described, ByPid):
    """The control group of a process, as it is when the controller starts."""

    kind: Literal["pid"]


class ContainerWorkload(Described, ByContainer):
    """A container of Docker, Podman, containerd, CRI-O, runc or crun."""

    kind: Literal["container"]


class KubernetesWorkload(Described, ByKubernetes):
    """One pod, one container of it, or all pods of a QoS class."""

    kind: Literal["kubernetes"]


Workload = Annotated[
    CgroupWorkload | UnitWorkload | PidWorkload | ContainerWorkload | KubernetesWorkload,
    Field(discriminator="kind"),
]
"""How a workload that runs already is found."""


class _Polled(Described):
    """An endpoint that is asked.

    Attributes:
        url: Its address, http or https.
        timeout_seconds: How long an answer is waited for.
        stale_seconds: Age from which figures count as missing.
    """

    url: Url
    timeout_seconds: float = Field(default=0.5, gt=0.0, le=60.0)
    stale_seconds: float = Field(default=3.0, gt=0.0, le=3600.0)


class PrometheusLatency(_Polled, PrometheusNames):
    """A histogram on a Prometheus endpoint: that of the service itself, not a Prometheus server."""

    kind: Literal["prometheus"]


class HttpLatency(_Polled, FigureKeys):
    """A JSON document on an HTTP endpoint; what it calls things are dotted paths, such as `latency.p95`.

    Attributes:
        window_seconds: Length of the endpoint's window, if it does not say.
    """

    kind: Literal["http"]
    window_seconds: float = Field(default=1.0, gt=0.0, le=3600.0)


class JsonlLatency(Described, RequestKeys):
    """A file with one JSON object per completed request.

    Attributes:
        path: A regular file, no FIFO; it may be rotated, truncated, or not exist yet.
        window_seconds: The tail is that of the requests of so long.
    """

    kind: Literal["jsonl"]
    path: Path
    window_seconds: float = Field(default=1.0, gt=0.0, le=3600.0)


class NginxLogLatency(Described):
    """nginx's access log, in the format `log_format rlctl '$msec $status $request_time';` or one of your own.

    Attributes:
        path: The log; it may be rotated, truncated, or not exist yet.
        pattern: For another format, a regular expression that is found once in each line, with a group `seconds` and,
            if they are there, `msec` and `status`.
        window_seconds: The tail is that of the requests of so long.
    """

    kind: Literal["nginx-log"]
    path: Path
    pattern: Name | None = None
    window_seconds: float = Field(default=1.0, gt=0.0, le=3600.0)

    @field_validator("pattern")
    @classmethod
    def _finds_seconds(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            from rlctl.envs.host.latency.nginx_log import compiled

            try:
                compiled(pattern)
            except ConfigError as error:
                raise ValueError(str(error)) from error  # which pydantic reports with its place in the file
        return pattern


class CyclictestLatency(Described):
    """Standard output of `cyclictest --verbose`: the LC is a real-time task.

    Attributes:
        path: The file that it goes to.
        unit: Of the latencies: `microseconds`, or `nanoseconds` with `--nsecs`.
        window_seconds: The tail is that of the wake-ups of so long.
    """

    kind: Literal["cyclictest"]
    path: Path
    unit: TimeUnit = TimeUnit.MICROSECONDS
    window_seconds: float = Field(default=1.0, gt=0.0, le=3600.0)


class PostgresLatency(Described):
    """PostgreSQL's log in JSON (`log_destination = jsonlog`, from version 15 on), with `log_duration = on`.

    Attributes:
        path: The log, whose name ends in `.json`; it may be rotated, truncated, or not exist yet.
        one_in: Statements that each logged one stands for, where only some are: 1 / log_transaction_sample_rate.
        window_seconds: The tail is that of the statements of so long.
    """

    kind: Literal["postgres"]
    path: Path
    one_in: int = Field(default=1, ge=1, le=100_000)
    window_seconds: float = Field(default=1.0, gt=0.0, le=3600.0)


Latency = Annotated[
    PrometheusLatency | HttpLatency | JsonlLatency | NginxLogLatency | CyclictestLatency | PostgresLatency,
    Field(discriminator="kind"),
]
"""Where the LC's tail latency and load come from."""
