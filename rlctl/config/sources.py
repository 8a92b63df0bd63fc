"""What a configuration may name on a host: running workloads, and where the LC's latency is read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from rlctl.config.fields import Described, GroupPath, Name, Regex, Url
from rlctl.config.listening import Listening
from rlctl.envs.host.latency.figures import TimeUnit


class CgroupWorkload(Described):
    """A control group, or several by a pattern.

    Attributes:
        path: Below the root of the hierarchy, as /proc/PID/cgroup has it; `*`, `?` and `[...]` match within one
            component, `**` any number of components.
    """

    kind: Literal["cgroup"]
    path: GroupPath


class UnitWorkload(Described):
    """A systemd unit that runs.

    Attributes:
        unit: Its name; one without a suffix is a service.
    """

    kind: Literal["unit"]
    unit: Annotated[str, Field(pattern=r"^[^/\s]+$")]


class PidWorkload(Described):
    """The control group of a process, as it is when the controller starts.

    Attributes:
        pid: Number of the process.
    """

    kind: Literal["pid"]
    pid: int = Field(gt=1)


class ContainerWorkload(Described):
    """A container of Docker, Podman, containerd, CRI-O or runc.

    Attributes:
        name: Its name, its id, or 12 digits of the id.
    """

    kind: Literal["container"]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")]


class KubernetesWorkload(Described):
    """One pod, one container of it, or all pods of a QoS class.

    Attributes:
        pod_uid: The pod with this UID, as its metadata has it.
        container_id: Id of a container of that pod, or the beginning of it.
        qos: QoS class: all pods of it instead.
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
        unit: Of the times that it gives: `seconds`, `milliseconds`, `microseconds` or `nanoseconds`.
    """

    url: Url
    timeout_seconds: float = Field(default=0.5, gt=0.0, le=60.0)
    stale_seconds: float = Field(default=3.0, gt=0.0, le=3600.0)
    unit: TimeUnit = TimeUnit.SECONDS


class PrometheusLatency(_Polled):
    """A histogram on a Prometheus endpoint: that of the service itself, not a Prometheus server.

    Attributes:
        histogram: The latency histogram, without `_bucket`.
        labels: Only series that carry all of these; the rest of the series are added up. Of the other metrics, series
            that carry one of these labels with another value are left out.
        oldest: A gauge with the age of the oldest outstanding request, if there is one.
        in_flight: A gauge with the number of outstanding requests; makes offered load known in overload too.
        errors: A counter of requests that is there from the start; `error_labels` says which of them failed. Without it
            requests that fail fast are good requests.
        error_labels: Regular expressions, each for the whole of a label: `{code: "5.."}`.
    """

    kind: Literal["prometheus"]
    histogram: Name
    labels: dict[str, str] = Field(default_factory=dict)
    oldest: Name | None = None
    in_flight: Name | None = None
    errors: Name | None = None
    error_labels: dict[str, Regex] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _failures_are_chosen(self) -> Self:
        if (self.errors is None) != (not self.error_labels):
            raise ValueError("'errors', a counter of requests, and 'error_labels', which of them failed, go together")
        return self


class HttpLatency(_Polled):
    """A JSON document on an HTTP endpoint; what it calls things are dotted paths, such as `latency.p95`.

    Attributes:
        tail: The SLO's quantile of latency over the endpoint's last window.
        samples: Requests completed in that window. Without it, `done_rps` times the window stands in.
        oldest: Age of the oldest outstanding request.
        offered_rps: Requests that came, per second.
        done_rps: Requests that were completed, per second.
        error_rps: Requests that failed, per second.
        window: Length of the window; without it `window_seconds` counts.
        stamp: Anything that changes with every new set of figures; while it stays, the figures grow old.
        window_seconds: Length of the endpoint's window, if it does not say.
    """

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


class JsonlLatency(Described):
    """A file with one JSON object per completed request.

    Attributes:
        path: A regular file, no FIFO; it may be rotated, truncated, or not exist yet.
        latency: The member that says how long the request took, a dotted path.
        ok: The member that is true when it succeeded; without it and `status` every line is a success.
        status: The member with its HTTP status: 500 and above is a failure, and so is none.
        unit: Of `latency`: `seconds`, `milliseconds`, `microseconds` or `nanoseconds`.
        window_seconds: The tail is that of the requests of so long.
    """

    kind: Literal["jsonl"]
    path: Path
    latency: Name = "latency_seconds"
    ok: Name | None = None
    status: Name | None = None
    unit: TimeUnit = TimeUnit.SECONDS
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


_HOST_PORT = re.compile(r"([^/\s:]+|\[[0-9a-fA-F:.]+\]):(?P<port>[0-9]{1,5})")


class RedisLatency(Described):
    """Redis (from version 7 on) or Valkey, asked for its `LATENCY HISTOGRAM`.

    Attributes:
        address: HOST:PORT, or the path of its socket.
        commands: Those that are the LC's requests; all that were ever called if there are none.
        username: Whom to be, where it is not the default user; may run `LATENCY HISTOGRAM`.
        password_file: One line with the password; not readable by everybody.
        timeout_seconds: How long an answer is waited for.
        stale_seconds: Age from which figures count as missing.
    """

    kind: Literal["redis"]
    address: str
    commands: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+(\|[A-Za-z0-9._-]+)?$")], ...] = ()
    username: Name | None = None
    password_file: Path | None = None
    timeout_seconds: float = Field(default=0.5, gt=0.0, le=60.0)
    stale_seconds: float = Field(default=3.0, gt=0.0, le=3600.0)

    @field_validator("address")
    @classmethod
    def _askable(cls, address: str) -> str:
        parts = _HOST_PORT.fullmatch(address)
        if not address.startswith("/") and (parts is None or int(parts["port"]) > 65535):
            raise ValueError(f"{address!r} is neither HOST:PORT nor the path of a socket, such as 127.0.0.1:6379")
        return address

    @model_validator(mode="after")
    def _users_have_passwords(self) -> Self:
        if self.username is not None and self.password_file is None:
            raise ValueError("'username' needs 'password_file'")
        return self


class OtlpLatency(Listening):
    """A histogram of OpenTelemetry that is sent here, by OTLP over HTTP; needs the extra `otlp`.

    Attributes:
        histogram: Its name, such as `http.server.request.duration`.
        labels: Attributes, of the point or of the resource, that a series must have; those that have are added up.
        unit: Of its values, where it does not say itself.
        stale_seconds: Age from which figures count as missing; it must be exported more often.
    """

    kind: Literal["otlp"]
    listen: str = "127.0.0.1:4318"
    histogram: Name
    labels: dict[str, str] = Field(default_factory=dict)
    unit: TimeUnit = TimeUnit.SECONDS
    stale_seconds: float = Field(default=3.0, gt=0.0, le=3600.0)


Latency = Annotated[
    PrometheusLatency
    | HttpLatency
    | JsonlLatency
    | NginxLogLatency
    | CyclictestLatency
    | PostgresLatency
    | RedisLatency
    | OtlpLatency,
    Field(discriminator="kind"),
]
"""Where the LC's tail latency and load come from."""
