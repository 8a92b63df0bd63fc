"""Names of the control groups that kubelet makes, under both of its cgroup drivers.

cgroupfs driver: `kubepods/besteffort/podUID/CONTAINER`; guaranteed pods lie directly in `kubepods`.
systemd driver: `kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podUID.slice/RUNTIME-CONTAINER.scope`,
with the dashes of the UID as underscores, since a dash in a slice's name means nesting. A kubelet within a container
(kind, k3d) puts a prefix of its own ahead of each name.

Which UID a pod's name means is told by kubelet's folders of logs, `/var/log/pods/NAMESPACE_NAME_UID`; the API is not
asked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rlctl.envs.yaml_edge import Strict

POD_LOGS = Path("/var/log/pods")

_ABOVE = r"(?:/[^/]+)*"
_PREFIX = r"(?:[^/]+-)?"


class ByKubernetes(Strict):
    """One pod, one container of it, or all pods of a QoS class.

    Attributes:
        pod: The pod by its name on this node, NAMESPACE/NAME; one that is made anew under that name is followed.
        pod_uid: The pod with this UID, as its metadata has it (`kubectl get pod NAME -o jsonpath={.metadata.uid}`); a
            static pod's is a hash without dashes.
        container_id: Id of a container of that pod, or the beginning of it.
        qos: QoS class: all pods of it instead.
        each_pod: The pods' groups rather than the one of the class; guaranteed pods have no group in common and are
            always taken one by one.
    """

    pod: Annotated[str, Field(pattern=r"^[a-z0-9-]+/[a-z0-9.-]+$")] | None = None
    pod_uid: Annotated[str, Field(pattern=r"^[0-9a-f]+(-[0-9a-f]+)*$")] | None = None
    container_id: Annotated[str, Field(pattern=r"^[0-9a-f]{1,64}$")] | None = None
    qos: Literal["besteffort", "burstable", "guaranteed"] | None = None
    each_pod: bool = False

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if [self.pod, self.pod_uid, self.qos].count(None) != 2:
            raise ValueError("needs one of 'pod', 'pod_uid' and 'qos'")
        if self.pod_uid is None and self.container_id is not None:
            raise ValueError("'container_id' goes with 'pod_uid' only")
        if self.qos is None and self.each_pod:
            raise ValueError("'each_pod' goes with 'qos' only")
        return self


def kubernetes_matcher(spec: ByKubernetes, logs: Path = POD_LOGS) -> Callable[[str], bool]:
    """Tells the group of a pod or of a container in it, that of a QoS class, or those of its pods."""
    if spec.pod is not None:
        return NamedPod(spec.pod, logs)
    if spec.pod_uid is not None:
        return _pod_matcher(spec.pod_uid, spec.container_id)
    guaranteed = spec.qos == "guaranteed"
    cgroupfs = "/kubepods" + ("" if guaranteed else f"/{spec.qos}")
    systemd = f"/{_PREFIX}kubepods" + ("" if guaranteed else f"-{spec.qos}")
    expressions = (cgroupfs, rf"{systemd}\.slice")
    if guaranteed or spec.each_pod:
        expressions = (rf"{cgroupfs}/pod[^/]+", rf"{systemd}\.slice{systemd}-pod[^/]+\.slice")
    return _matcher(*expressions)


class NamedPod:
    """Tells the groups of a pod by its namespace and name; its UID is looked up again whenever pods come or go.

    Args:
        name: The pod's namespace and name, with a slash between them.
        logs: Where kubelet has a folder for the logs of each pod.
    """

    def __init__(self, name: str, logs: Path = POD_LOGS) -> None:
        self._prefix, self._logs = name.replace("/", "_") + "_", logs
        self._listed_ns = -1
        self._matchers: list[Callable[[str], bool]] = []

    def __call__(self, path: str) -> bool:
        """Whether the group at this path is the pod's."""
        # Asked of every group at every look: the folder is read only when it has changed.
        try:
            changed_ns = self._logs.stat().st_mtime_ns
            if changed_ns != self._listed_ns:
                uids = [
                    one.removeprefix(self._prefix) for one in os.listdir(self._logs) if one.startswith(self._prefix)
                ]
                self._matchers, self._listed_ns = [_pod_matcher(uid, None) for uid in uids], changed_ns
        except OSError:
            self._matchers = []
        return any(matches(path) for matches in self._matchers)


def _pod_matcher(uid: str, container_id: str | None) -> Callable[[str], bool]:
    pods = (f"/pod{uid}", rf"/{_PREFIX}kubepods-(?:[a-z]+-)?pod{uid.replace('-', '_')}\.slice")
    if container_id is None:
        return _matcher(*pods)
    # CRI-O may have the monitor's group beside the container's.
    container = rf"/(?!(?:crio|libpod)-conmon-)(?:[a-z-]+-)?{re.escape(container_id)}[0-9a-f]*(?:\.scope)?"
    return _matcher(*(pod + container for pod in pods))


def _matcher(*expressions: str) -> Callable[[str], bool]:
    compiled = re.compile(f"{_ABOVE}(?:{'|'.join(expressions)})")
    return lambda path: compiled.fullmatch(path) is not None
