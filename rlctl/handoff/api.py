"""The three calls of the Kubernetes API that a hand-off takes, from within a pod: list, label, evict.

With the standard library alone, so that the image stays small. Sources: "Accessing the Kubernetes API from a Pod" and
"API-initiated Eviction" of the Kubernetes documentation; `tests/rlctl/handoff` holds each call against its OpenAPI.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlctl import __version__
from rlctl.envs.errors import ConfigError, HostError, PermissionMissing, on_one_line, reading

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Holds `token`, `ca.crt` and `namespace` of the pod's service account."""

ANSWER_SECONDS = 5.0
"""So long a call may take, its answer included."""

MOST_BYTES = 32 << 20
"""Of an answer: some hundred pods with all that a node says of them."""

ROLE_FILE = "configs/deploy/kubernetes-hand-off.yaml"
PATCH_FILE = "configs/deploy/kubernetes-hand-off-patch.yaml"

Plain = Mapping[str, Any]
"""An object as its JSON has it."""


class Declined(HostError):
    """The API was reached and did not do it: nothing has changed.

    Attributes:
        status: Of HTTP: 404, 409 and 422 are of a pod that is gone, 429 of a disruption budget or of too many calls.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Pod:
    """What a hand-off goes by.

    Attributes:
        created: Time at which it was made, as RFC 3339 in UTC; its order is that of the texts.
        controller: Kind of the object that makes another when it is gone; empty where nobody does.
        ends: It was deleted and has not ended yet.
    """

    namespace: str
    name: str
    uid: str
    created: str = ""
    controller: str = ""
    ends: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @classmethod
    def of(cls, plain: Plain) -> Pod:
        """From an item of a list of pods; KeyError, TypeError or AttributeError where it is none."""
        about = plain["metadata"]
        owners = about.get("ownerReferences") or ()
        return cls(
            namespace=about["namespace"],
            name=about["name"],
            uid=about["uid"],
            created=about.get("creationTimestamp") or "",
            controller=next((owner["kind"] for owner in owners if owner.get("controller")), ""),
            ends=bool(about.get("deletionTimestamp")),
            labels=dict(about.get("labels") or {}),
        )


class Api:
    """The API server, as the service account of this pod.

    Args:
        context: Takes no certificate but the cluster's; None is HTTP without TLS.
    """

    def __init__(self, host: str, port: int, token: str, context: ssl.SSLContext | None) -> None:
        self._host, self._port, self._token, self._context = host, port, token, context

    @classmethod
    def in_cluster(cls, account: Path = ACCOUNT, environ: Mapping[str, str] = os.environ) -> Api:
        """As kubelet tells every pod.

        Raises:
            ConfigError: This is no pod, or it has no token.
            PermissionMissing: The token may not be read.
        """
        host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
        if not host or not port.isdecimal():
            raise ConfigError("KUBERNETES_SERVICE_HOST and _PORT are not set: run it within a pod of the cluster")
        token, authority = secret(account / "token"), account / "ca.crt"
        with reading(authority):
            try:
                context = ssl.create_default_context(cafile=str(authority))
            except ssl.SSLError as error:
                raise ConfigError("is no certificate of an authority", authority) from error
        return cls(host, int(port), token, context)

    def pods(self, namespace: str, node: str, selector: str) -> list[Pod]:
        """The pods of a namespace that are on a node and have these labels. Raises as `_call` does."""
        query = {"fieldSelector": f"spec.nodeName={node}", "labelSelector": selector}
        answer = self._call("GET", _pods(namespace), query, f"list pods in namespace {namespace}")
        try:
            return [Pod.of(item) for item in answer["items"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise HostError(f"{self}: what it calls a list of pods is none: {error!r}") from error

    def label(
        self, pod: Pod, labels: Mapping[str, str | None], notes: Mapping[str, str | None], *, dry_run: bool = False
    ) -> None:
        """Set labels and annotations of this very pod, and of no later one of its name; None takes one away.

        Raises as `_call` does.
        """
        about: dict[str, object] = {"uid": pod.uid, "labels": dict(labels)}
        if notes:
            about["annotations"] = dict(notes)
        query = {"fieldManager": "rlctl"} | _dry(dry_run)
        kind = "application/merge-patch+json"
        self._call("PATCH", _pods(pod.namespace, pod.name), query, f"label pod {pod}", {"metadata": about}, kind)

    def evict(self, pod: Pod, *, dry_run: bool = False) -> None:
        """Ask for the eviction of this very pod, within every PodDisruptionBudget. Raises as `_call` does."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": pod.uid}},
        }
        self._call("POST", _pods(pod.namespace, pod.name, "eviction"), _dry(dry_run), f"evict pod {pod}", body)

    def __str__(self) -> str:
        return f"the Kubernetes API at {self._host}:{self._port}"

    def _call(
        self, method: str, path: str, query: Mapping[str, str], what: str,
        body: Plain | None = None, kind: str = "application/json",
    ) -> Plain:  # fmt: skip
        """One call and its answer.

        Args:
            what: What it is to do, for messages.

        Raises:
            PermissionMissing: The service account may not.
            Declined: It was not done.
            HostError: Nobody answers in time, or in another language; whether it was done is not known.
        """
        target = path + (f"?{urllib.parse.urlencode(query)}" if query else "")
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        headers["User-Agent"] = f"rlctl/{__version__}"
        if body is not None:
            headers["Content-Type"] = kind
        try:
            status, text = self._exchange(method, target, None if body is None else json.dumps(body).encode(), headers)
        except (OSError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
            raise HostError(f"{self}: no answer within {ANSWER_SECONDS:g} s when asked to {what}: {why}") from error
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            answer = None
        if isinstance(answer, dict) and answer.get("status") == "Failure":
            status = _code(answer, status)  # an eviction that several disruption budgets forbid is told within a 201
        if 200 <= status < 300 and isinstance(answer, dict):
            return answer
        raise self._error(status, answer, text, what)

    def _exchange(self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        where, deadline = (self._host, self._port), time.monotonic() + ANSWER_SECONDS
        if self._context is None:
            connection = http.client.HTTPConnection(*where, timeout=ANSWER_SECONDS)
        else:
            connection = http.client.HTTPSConnection(*where, timeout=ANSWER_SECONDS, context=self._context)
        try:
            connection.request(method, target, body, dict(headers))
            response, text = connection.getresponse(), b""
            while part := response.read1(1 << 16):
                text += part
                if len(text) > MOST_BYTES or time.monotonic() > deadline:
                    raise OSError(f"{len(text)} bytes so far, and more to come")
            return response.status, text
        finally:
            connection.close()

    def _error(self, status: int, answer: object, text: bytes, what: str) -> Exception:
        said = answer.get("message") if isinstance(answer, dict) else None
        said = on_one_line(str(said or text[:200].decode(errors="replace"))) or "without a word"
        if status == 401:
            return PermissionMissing(f"{self} does not take the token in {ACCOUNT}: {said}")
        if status == 403:
            return PermissionMissing(f"may not {what}: {said}; kubectl apply -f {ROLE_FILE}, with BE's namespace in it")
        if 400 <= status < 500:
            return Declined(f"{self} did not {what} ({status}): {said}", status)
        return HostError(f"{self}: {status} when asked to {what}: {said}")


def secret(path: Path) -> str:
    """What a file of the service account says, one word. Raises as `in_cluster` does."""
    if not path.is_file():
        way_out = f"kubectl -n rlctl patch daemonset rlctl --patch-file {PATCH_FILE}"
        raise ConfigError(f"{path} is not there: this pod has no token of its service account; {way_out}")
    with reading(path):
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    if not text or not text.isascii() or len(text.split()) != 1:
        raise ConfigError("is not one word", path)
    return text


def _pods(*parts: str) -> str:
    """Path of a namespace's pods, of one of them, or of what is below it."""
    namespace, *rest = (urllib.parse.quote(part, safe="") for part in parts)
    return "/".join((f"/api/v1/namespaces/{namespace}/pods", *rest))


def _code(failure: Plain, status: int) -> int:
    """The status of HTTP that an answer of kind Status stands for, where that is an error."""
    code = failure.get("code")
    if not isinstance(code, int) or not 400 <= code < 600:
        code = status if status >= 400 else 500
    # Told within a success, it is not the server that failed: it kept the pod, as two disruption budgets make it do.
    return 429 if status < 300 and code >= 500 else code


def _dry(dry_run: bool) -> dict[str, str]:
    """The server does all but keep it: permissions and disruption budgets are tried too."""
    return {"dryRun": "All"} if dry_run else {}
