"""A Kubernetes API server on loopback that knows pods, says what a test wants it to say, and records every call."""

import json
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Call:
    method: str
    path: str
    query: dict
    headers: dict
    body: object


def failure(code, message, reason=""):
    """A Status as the API answers with it."""
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": reason, "code": code,
    }  # fmt: skip


SUCCESS = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


class RecordingApi:
    """Begins with its construction and ends with `close`.

    Attributes:
        pods: Those of the list, by name.
        answers: What is said in place of the right answer, by what is asked: a status and an object, or bytes.
        calls: All that came, in order.
    """

    def __init__(self, pods, context=None):
        self.pods = {pod["metadata"]["name"]: pod for pod in pods}
        self.answers, self.calls, self.patience = {}, [], 0.0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                size = int(self.headers.get("Content-Length") or 0)
                body, parts = json.loads(self.rfile.read(size)) if size else None, urlsplit(self.path)
                call = Call(self.command, parts.path, dict(parse_qsl(parts.query)), dict(self.headers), body)
                outer.calls.append(call)
                time.sleep(outer.patience)
                status, said = outer.answer(call)
                text = said if isinstance(said, bytes) else json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def do_GET(self):
                self.answer()

            def do_PATCH(self):
                self.answer()

            def do_POST(self):
                self.answer()

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        if context:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def answer(self, call):
        what = {"GET": "list", "PATCH": "label"}.get(call.method, "evict")
        if what in self.answers:
            return self.answers[what]
        if what == "list":
            return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self._chosen(call)}
        if what == "evict":
            return 201, SUCCESS
        pod = self.pods[call.path.rpartition("/")[2]]
        labels = {**pod["metadata"].get("labels", {}), **call.body["metadata"]["labels"]}
        changed = {"labels": {name: value for name, value in labels.items() if value is not None}}  # of a merge patch
        pod = pod | {"metadata": pod["metadata"] | changed}
        if "dryRun" not in call.query:
            self.pods[pod["metadata"]["name"]] = pod
        return 200, pod

    def _chosen(self, call):
        """What the two selectors let through; of labels, those with `=`."""
        node = call.query["fieldSelector"].removeprefix("spec.nodeName=")
        wanted = dict(term.split("=") for term in call.query["labelSelector"].split(","))
        return [
            pod
            for pod in self.pods.values()
            if pod["spec"]["nodeName"] == node and wanted.items() <= pod["metadata"].get("labels", {}).items()
        ]

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def pod(name, minute=0, owner="Job", node="worker-7", **metadata):
    """A pod as the API has it, made in this minute of an hour."""
    owners = [{"apiVersion": "batch/v1", "kind": owner, "name": "jobs", "uid": "77", "controller": True}]
    about = {
        "name": name, "namespace": "batch", "uid": uid_of(name), "labels": {"rlctl.io/be": "true"},
        "creationTimestamp": f"2026-11-24T10:{minute:02d}:00Z",
    }  # fmt: skip
    about |= {"ownerReferences": owners} if owner else {}
    spec = {"nodeName": node, "containers": [{"name": "work", "image": "work"}]}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": about | metadata, "spec": spec, "status": {}}


def uid_of(name):
    return f"0a1b2c3d-1111-4a5b-8c6d-{name.encode().hex().zfill(12)[-12:]}"
