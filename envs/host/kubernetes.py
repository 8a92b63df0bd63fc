"""Names of the control groups that kubelet makes, under both of its cgroup drivers.

cgroupfs driver: `kubepods/besteffort/podUID/CONTAINER`; guaranteed pods lie directly in `kubepods`.
systemd driver: `kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podUID.slice/RUNTIME-CONTAINER.scope`,
with the dashes of the UID as underscores, since a dash in a slice's name means nesting. A kubelet within a container
(kind, k3d) puts a prefix of its own ahead of each name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rlctl.envs.errors import ConfigError

_ABOVE = r"(?:/[^/]+)*"
_PREFIX = r"(?:[^/]+-)?"


@dataclass(frozen=True, slots=True)
class ByKubernetesQos:
    """All pods of a Kubernetes QoS class.

    Attributes:
        each_pod: The pods' groups rather than the one of the class. Guaranteed pods have no group in common and are
            always taken one by one.
    """

    qos: Literal["besteffort", "burstable", "guaranteed"] = "besteffort"
    each_pod: bool = False


@dataclass(frozen=True, slots=True)
class ByKubernetesPod:
    """A pod by its uid (`kubectl get pod NAME -o jsonpath={.metadata.uid}`), or one container of it."""

    uid: str
    container_id: str | None = None


def qos_matcher(spec: ByKubernetesQos) -> Callable[[str], bool]:
    """Tells the groups of a QoS class, or of its pods."""
    guaranteed = spec.qos == "guaranteed"
    cgroupfs = "/kubepods" + ("" if guaranteed else f"/{spec.qos}")
    systemd = f"/{_PREFIX}kubepods" + ("" if guaranteed else f"-{spec.qos}")
    expressions = (cgroupfs, rf"{systemd}\.slice")
    if guaranteed or spec.each_pod:
        expressions = (rf"{cgroupfs}/pod[^/]+", rf"{systemd}\.slice{systemd}-pod[^/]+\.slice")
    return _matcher(*expressions)


def pod_matcher(spec: ByKubernetesPod) -> Callable[[str], bool]:
    """Tells the group of a pod, or of a container in it. Raises ConfigError where the uid is none."""
    if not re.fullmatch(r"[0-9a-f]+(-[0-9a-f]+)*", spec.uid):  # static pods have a hash without dashes
        raise ConfigError(f"{spec.uid!r} is no pod uid; `kubectl get pod NAME -o jsonpath={{.metadata.uid}}` tells it")
    pods = (f"/pod{spec.uid}", rf"/{_PREFIX}kubepods-(?:[a-z]+-)?pod{spec.uid.replace('-', '_')}\.slice")
    if spec.container_id is None:
        return _matcher(*pods)
    # CRI-O may have the monitor's group beside the container's.
    container = rf"/(?!(?:crio|libpod)-conmon-)(?:[a-z-]+-)?{re.escape(spec.container_id)}[0-9a-f]*(?:\.scope)?"
    return _matcher(*(pod + container for pod in pods))


_POD = re.compile(rf"/(?:{_PREFIX}kubepods-(?:[a-z]+-)?)?pod(?P<uid>[0-9a-f]+(?:[-_][0-9a-f]+)*)(?:\.slice)?(?:/|$)")


def pod_uid(path: str) -> str | None:
    """UID of the pod whose group, or part of whose group, has this path; None where it is no pod's."""
    found = _POD.search(path)
    return found["uid"].replace("_", "-") if found else None


def _matcher(*expressions: str) -> Callable[[str], bool]:
    compiled = re.compile(f"{_ABOVE}(?:{'|'.join(expressions)})")
    return lambda path: compiled.fullmatch(path) is not None
