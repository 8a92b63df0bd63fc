"""What a configuration may name on a host: running workloads, and where the LC's latency is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from rlctl.config.fields import Described, Url
from rlctl.envs.errors import ConfigError
from rlctl.envs.host.containers import ByContainer
from rlctl.envs.host.discovery import ByCgroup, ByPid, ByUnit
from rlctl.envs.host.kubernetes import ByKubernetes
from rlctl.envs.host.latency.figures import FigureKeys, TimeUnit
from rlctl.envs.host.latency.line_formats import RequestKeys, compile_pattern
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


class _TextLog(Described):
    """A file with a line for each request.

    Attributes:
        path: A regular file, no FIFO; it may be rotated, truncated, or not exist yet.
        window_seconds: The tail is that of the requests of so long.
    """

    path: Path
    window_seconds: float = Field(default=1.0, gt=0.0, le=3600.0)


class JsonlLatency(_TextLog, RequestKeys):
    """A file with one JSON object per completed request."""

    kind: Literal["jsonl"]


def _check_pattern(pattern: str) -> str:
    try:
        compile_pattern(pattern)
    except ConfigError as error:
        raise ValueError(str(error)) from error  # which pydantic reports with its place in the file
    return pattern


_Pattern = Annotated[Name, AfterValidator(_check_pattern)]


class PatternLatency(_TextLog):
    """A file in which a regular expression is found once in the line of each completed request.

    Attributes:
        pattern: With a group `latency` and, if they are there, `status` (HTTP's) and `msec` (when the request ended, in
            seconds since the epoch).
        unit: Of the latency: `seconds`, `milliseconds`, `microseconds` or `nanoseconds`.
    """

    kind: Literal["text"]
    pattern: _Pattern
    unit: TimeUnit = TimeUnit.SECONDS


class NginxLogLatency(_TextLog):
    """nginx's access log, in the format `log_format rlctl '$msec $status $request_time';`, else take `text`."""

    kind: Literal["nginx-log"]


class PostgresLatency(_TextLog):
    """PostgreSQL's log in JSON (`log_destination = jsonlog`, from version 15 on), with `log_duration = on`.

    Attributes:
        path: The log, whose name ends in `.json`; it may be rotated, truncated, or not exist yet.
        one_in: Statements that each logged one stands for, where only some are: 1 / log_transaction_sample_rate.
    """

    kind: Literal["postgres"]
    one_in: int = Field(default=1, ge=1, le=100_000)


Port = Annotated[int, Field(ge=1, le=65535)]


class TcpLatency(Described):
    """Requests on the LC's TCP connections as the kernel sees them; the service needs no exporter and no log.

    One request at a time on a connection: not HTTP/2, gRPC or pipelining, which it refuses once it sees them.

    Attributes:
        ports: The LC's ports that count; by default all on which its own sockets listen.
        window_seconds: The tail is that of the requests of so long.
        cpu_percent: Of a core, the most that looking may cost: it looks up to 50 times a second, else less often.
    """

    kind: Literal["tcp"]
    ports: tuple[Port, ...] = ()
    window_seconds: float = Field(default=1.0, gt=0.0, le=3600.0)
    cpu_percent: float = Field(default=2.0, ge=0.1, le=100.0)


class WaitingLatency(Described):
    """No latency: the time that the LC waits for CPUs, disks and memory is held below a bound, a weaker promise.

    Attributes:
        bound_percent: Of the time, with a task of the LC waiting (PSI, or the run delay): more counts as a miss.
    """

    kind: Literal["waiting"]
    bound_percent: float = Field(default=10.0, gt=0.0, le=100.0)


TextLatency = JsonlLatency | PatternLatency | NginxLogLatency | PostgresLatency
"""A text log: by a JSON path or a regular expression, or by a program's preset."""

Latency = Annotated[
    TcpLatency | WaitingLatency | PrometheusLatency | HttpLatency | TextLatency,
    Field(discriminator="kind"),
]
"""Where the LC's tail latency and load come from."""
