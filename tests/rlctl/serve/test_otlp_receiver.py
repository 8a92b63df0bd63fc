"""The receiver: what a service sends becomes readings, and whatever else comes does no harm."""

import gzip
import http.client
import threading
import time
from pathlib import Path

import pytest

from rlctl.config.sources import OtlpLatency
from rlctl.envs.errors import HostError
from rlctl.envs.host.latency.newest import NOTHING, LatencySource
from rlctl.envs.telemetry import Missing, Quantile, Why
from rlctl.envs.workload import SLO
from rlctl.serve.latency import latency_source

pytest.importorskip("opentelemetry.proto", reason="needs rlctl[otlp]")

FIXTURES = Path(__file__).parents[2] / "fixtures/latency"
BODIES = [(FIXTURES / f"otlp-cumulative-{number}.pb").read_bytes() for number in (1, 2)]
NAME = "http.server.request.duration"
PROTOBUF = {"Content-Type": "application/x-protobuf"}


@pytest.fixture
def receive():
    """Starts receivers, and closes them at the end."""
    running = []

    def start(**given):
        latency = OtlpLatency(kind="otlp", listen="127.0.0.1:0", histogram=NAME, **given)
        running.append(latency_source(latency, SLO(0.010, max_load_rps=1000.0)))
        return running[-1]

    yield start
    for source in running:
        source.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "rlctl-lc.latency"]


def send(source, body, method="POST", page="/v1/metrics", **headers):
    connection = http.client.HTTPConnection(source.url.split("/")[2])
    connection.request(
        method, page, body, {**PROTOBUF, **{key.replace("_", "-"): said for key, said in headers.items()}}
    )
    answer = connection.getresponse()
    said = answer.status, answer.read()
    connection.close()
    return said


def tail(source):
    return source.read(time.monotonic())["tail_latency_seconds"]


@pytest.mark.parametrize("how", ["plain", "gzip", "chunked"])
def test_two_exports_are_a_window(receive, how):
    source = receive()
    before = tail(source)
    assert isinstance(before, Missing)
    assert before.why is Why.NO_DATA
    for body in BODIES:
        packed = gzip.compress(body) if how == "gzip" else body
        given = iter([packed[:700], packed[700:]]) if how == "chunked" else packed
        more = {"Content_Encoding": "gzip"} if how == "gzip" else {}
        assert send(source, given, **more) == (200, b"")
    found = tail(source)
    assert isinstance(found, Quantile)
    assert found.samples == 31
    assert isinstance(source, LatencySource)
    assert source.newest().tail_seconds == found.value
    assert source.newest() == NOTHING


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"method": "GET"}, 405),
        ({"page": "/v1/traces"}, 404),
        ({"Content_Type": "text/plain"}, 415),
        ({"body": b"\xff" * 20}, 400),
        ({"body": b"{", "Content_Type": "application/json"}, 400),
        ({"Content_Encoding": "gzip"}, 400),
        ({"Content_Length": str(2 << 20)}, 413),
        ({"Content_Length": "-1"}, 400),
        ({"body": iter([b"x" * (1 << 20), b"x"])}, 413),
    ],
)
def test_what_is_no_export_is_answered_as_such(receive, asked, status):
    assert send(receive(), **{"body": BODIES[0], **asked})[0] == status


def test_an_export_that_cannot_be_read_is_no_good_news(receive):
    """Half of what a service says is not the better half."""
    source = receive()
    for body in (*BODIES, BODIES[1][:-9]):
        send(source, body)
    found = tail(source)
    assert isinstance(found, Missing)
    assert found.why is Why.MALFORMED


def test_an_export_that_is_too_long_is_told_where_latencies_are_missed(receive):
    source = receive()
    assert send(source, iter([b"x" * (1 << 20), b"x"]))[0] == 413
    found = tail(source)
    assert isinstance(found, Missing)
    assert "an export of more than 1 MiB" in found.detail


def test_silence_grows_old(receive):
    source = receive()
    for body in BODIES:
        send(source, body)
    found = source.read(time.monotonic() + 10.0)["tail_latency_seconds"]
    assert isinstance(found, Missing)
    assert found.why is Why.STALE


def test_a_token_is_asked_of_who_sends(receive, tmp_path):
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    token.chmod(0o400)
    source = receive(bearer_token_file=token)
    assert send(source, BODIES[0])[0] == 401
    assert isinstance(tail(source), Missing)
    assert send(source, BODIES[0], Authorization="Bearer 0123456789abcdef")[0] == 200


def test_a_taken_port_is_said_in_one_line(receive):
    port = receive().url.split(":")[2].partition("/")[0]
    latency = OtlpLatency(kind="otlp", listen=f"127.0.0.1:{port}", histogram=NAME)
    with pytest.raises(HostError, match=r"lc\.latency\.listen: .* is in use"):
        latency_source(latency, SLO(0.010))
