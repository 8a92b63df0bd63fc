"""The endpoint: whoever may, gets the metrics; whoever would hold it up, holds up nothing."""

import contextlib
import http.client
import logging
import os
import socket
import socketserver
import ssl
import subprocess
import threading

import pytest
from pydantic import ValidationError

import rlctl.serve.metrics_server
from rlctl.cli import main
from rlctl.config.sections import LimitsSection, MetricsSection
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import ConfigError, HostError, PermissionMissing
from rlctl.envs.telemetry import Telemetry
from rlctl.log.record import Tick
from rlctl.safety.verdict import Verdict
from rlctl.serve.metrics import Metrics, ServiceFigures
from rlctl.serve.metrics_server import MOST_CONNECTIONS, MetricsServer
from rlctl.serve.service import _check_metrics as look_at
from tests.doubles.clock import Clock
from tests.waiting import PATIENCE_SECONDS

SAFE = Limits(2).safe
TOKEN = "0123456789abcdef0123456789abcdef"
LOOPBACK = MetricsSection(listen="127.0.0.1:0")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A server that ends looks for it every 10 ms, not every half second."""
    monkeypatch.setattr(socketserver.BaseServer.serve_forever, "__defaults__", (0.01,))


@pytest.fixture
def clock():
    return Clock(5.0)


@pytest.fixture
def metrics(clock):
    return Metrics("ppo", ("responsive", "0a"), Limits(2), 1.0, clock=clock)


@pytest.fixture
def serve(metrics):
    """Starts servers, and closes them at the end."""
    running = []

    def start(section=LOOPBACK):
        running.append(MetricsServer(metrics, section, fresh_seconds=3.0))
        return running[-1]

    yield start
    for server in running:
        server.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "rlctl-metrics"]


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o400)
    return path


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    return self_signed(tmp_path_factory.mktemp("tls"), "localhost")


def self_signed(folder, name):
    key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


def port(server):
    return int(server.url.rpartition(":")[2].partition("/")[0])


def ask(server, path="/metrics", method="GET", tls=None, **headers):
    kind = {"context": tls} if tls else {}
    connection = (http.client.HTTPSConnection if tls else http.client.HTTPConnection)(
        "127.0.0.1", port(server), timeout=PATIENCE_SECONDS, **kind
    )
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


def raw(server, request):
    with socket.create_connection(("127.0.0.1", port(server)), timeout=PATIENCE_SECONDS) as peer:
        peer.sendall(request)
        said = b""
        while more := peer.recv(65536):
            said += more
        return said


def a_tick():
    return Tick(0, 1e9, Telemetry(1.0, 0.01), SAFE, SAFE, Verdict(SAFE, SAFE), SAFE, "ppo")


def test_a_scraper_gets_the_text_format(serve, metrics):
    metrics.write(a_tick())
    status, body, headers = ask(serve())
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert 'rlctl_ticks_total{slo="unknown"} 1.0\n' in body
    assert "python_gc" not in body


def test_head_tells_the_length_and_sends_nothing(serve):
    status, body, headers = ask(serve(), method="HEAD")
    assert (status, body) == (200, "")
    assert int(headers["Content-Length"]) > 1000


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/", "GET", 404), ("/metrics/../etc/passwd", "GET", 404), ("/metrics", "POST", 501), ("/healthz", "DELETE", 501),
     ("/metrics?name[]=x", "GET", 200)],
)  # fmt: skip
def test_two_pages_two_methods_nothing_else(serve, path, method, status):
    assert ask(serve(), path, method)[0] == status


def test_health_is_a_fresh_tick(serve, metrics, clock):
    server = serve()
    assert ask(server, "/healthz")[:2] == (503, "no tick yet\n")
    metrics.write(a_tick())
    assert ask(server, "/healthz")[:2] == (200, "ok\n")
    clock.now += 3.5
    assert ask(server, "/healthz")[:2] == (503, "no tick for 3.5 s\n")


def test_token_is_asked_of_scrapers_not_of_kubelet(serve, token):
    server = serve(MetricsSection(listen="127.0.0.1:0", bearer_token_file=token))
    status, _, headers = ask(server)
    assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
    assert ask(server, Authorization=f"Bearer {TOKEN}")[0] == 200
    assert ask(server, Authorization=f"bearer  {TOKEN}")[0] == 200
    for wrong in (f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}0", "Bearer", "Bearer ü", f"Basic {TOKEN}", TOKEN):
        assert ask(server, Authorization=wrong.encode("latin-1").decode("latin-1"))[0] == 401
    twice = f"GET /metrics HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    assert raw(server, twice.encode()).startswith(b"HTTP/1.0 401")
    assert ask(server, "/healthz")[0] == 503


def test_tls(serve, certificate, token):
    certificate, key = certificate
    section = MetricsSection(listen="0.0.0.0:0", tls_certificate=certificate, tls_key=key, bearer_token_file=token)
    server = serve(section)
    trusting = ssl.create_default_context(cafile=certificate)
    assert ask(server, tls=trusting)[0] == 401
    assert ask(server, tls=trusting, Authorization=f"Bearer {TOKEN}")[0] == 200
    assert not raw(server, b"GET /metrics HTTP/1.1\r\n\r\n").startswith(b"HTTP")  # no plain text on this port
    assert ask(server, "/healthz", tls=trusting)[0] == 503  # and it is still there


@pytest.mark.parametrize("request_", [b"\x00\xff\r\n\r\n", b"GET /metrics HTTP/9\r\n\r\n", b"GET /" + b"x" * 70000])
def test_nonsense_gets_no_metrics(serve, request_):
    server = serve()
    with contextlib.suppress(OSError):  # reset while it is still sent
        assert b"rlctl_" not in raw(server, request_ + b"\r\n\r\n")
    assert ask(server)[0] == 200


def test_who_says_nothing_is_left_after_a_while(serve, monkeypatch):
    monkeypatch.setattr(rlctl.serve.metrics_server, "ANSWER_SECONDS", 0.2)
    server = serve()
    with socket.create_connection(("127.0.0.1", port(server)), timeout=PATIENCE_SECONDS) as peer:
        peer.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert peer.recv(1) == b""  # no patience for a head that does not end


def test_idle_connections_make_room_for_a_scraper(serve):
    server = serve()
    idle = [
        socket.create_connection(("127.0.0.1", port(server)), timeout=PATIENCE_SECONDS)
        for _ in range(3 * MOST_CONNECTIONS)
    ]
    try:
        assert ask(server)[0] == 200
    finally:
        for peer in idle:
            peer.close()


def test_tls_handshake_that_never_comes_holds_up_nobody(serve, certificate, token):
    certificate, key = certificate
    server = serve(MetricsSection(listen="127.0.0.1:0", tls_certificate=certificate, tls_key=key))
    with socket.create_connection(("127.0.0.1", port(server)), timeout=PATIENCE_SECONDS):
        assert ask(server, tls=ssl.create_default_context(cafile=certificate))[0] == 200


def test_bug_in_metric_costs_answer_and_nothing_else(serve, metrics, monkeypatch, caplog):
    server = serve()
    monkeypatch.setattr(metrics, "_service", ServiceFigures(lambda: {"log_records_dropped": 1 // 0}))
    with caplog.at_level(logging.WARNING, "rlctl"):
        assert ask(server)[0] == 500
    assert "ZeroDivisionError" in caplog.text
    monkeypatch.undo()
    assert ask(server)[0] == 200


def test_a_taken_port_is_said_in_one_line(serve):
    taken = port(serve())
    with pytest.raises(HostError, match=rf"^metrics.listen: 127.0.0.1:{taken} is in use: choose another port") as told:
        serve(MetricsSection(listen=f"127.0.0.1:{taken}"))
    assert told.value.exit_code == 75


def test_address_not_here_yet_is_tried_again(serve, certificate, token):
    certificate, key = certificate
    elsewhere = MetricsSection(
        listen="192.0.2.1:0", tls_certificate=certificate, tls_key=key, bearer_token_file=token
    )  # TEST-NET-1: nobody's
    with pytest.raises(HostError, match=r"metrics.listen: 192.0.2.1:0: no such address here"):
        serve(elsewhere)


def test_a_closed_server_lets_go_of_the_port(serve):
    server = serve()
    server.close()
    server.close()
    with pytest.raises(ConnectionRefusedError):
        ask(server)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"listen": "0.0.0.0:9842"}, "not loopback"),
        ({"listen": "[::]:9842"}, "not loopback"),
        ({"listen": "10.0.0.1:9842", "bearer_token_file": "t"}, "needs 'tls_certificate', 'tls_key'"),
        ({"listen": "10.0.0.1:9842", "tls_certificate": "c", "tls_key": "k"}, "'bearer_token_file'"),
        ({"tls_certificate": "c"}, "go together"),
        ({"listen": "9842"}, "not an IP address and port"),
        ({"listen": "127.0.0.1:70000"}, "not an IP address and port"),
        ({"listen": "metrics.example:9842"}, "not an IP address and port"),
        ({"listen": "1.2.3:9842"}, "1.2.3"),
    ],
)
def test_what_strangers_could_read_is_refused(given, told):
    with pytest.raises(ValidationError, match=told):
        MetricsSection(**given)


@pytest.mark.parametrize(
    ("listen", "address"),
    [("localhost:1", ("127.0.0.1", 1)), ("[::1]:9842", ("::1", 9842)), ("127.9.9.9:0", ("127.9.9.9", 0))],
)
def test_loopback_needs_nothing(listen, address):
    section = MetricsSection(listen=listen)
    assert (section.address, section.loopback) == (address, True)


def test_token_that_everybody_may_read_is_no_secret(serve, token):
    token.chmod(0o444)
    with pytest.raises(ConfigError, match=r"everybody may use .*: chmod o= "):
        serve(MetricsSection(listen="127.0.0.1:0", bearer_token_file=token))


@pytest.mark.parametrize("what", ["token", "key"])
def test_secret_that_is_fifo_is_not_waited_for(serve, tmp_path, what):
    certificate, _ = self_signed(tmp_path, "open")
    os.mkfifo(fifo := tmp_path / "fifo", 0o600)
    files = {"bearer_token_file": fifo} if what == "token" else {"tls_certificate": certificate, "tls_key": fifo}
    with pytest.raises(ConfigError, match="fifo: is no regular file"):
        serve(MetricsSection(listen="127.0.0.1:0", **files))


def test_directory_as_secret_is_said_no_descriptor_stays(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError, match=r"metrics.bearer_token_file: .*: Is a directory"):
        look_at(MetricsSection(bearer_token_file=tmp_path))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("content", ["", "short", "two words that are long enough", "x" * 5000])
def test_a_token_is_one_long_word(serve, token, content):
    token.chmod(0o600)
    token.write_text(content)
    with pytest.raises(ConfigError, match="is not one line of 16 characters or more: openssl rand"):
        serve(MetricsSection(listen="127.0.0.1:0", bearer_token_file=token))


def test_key_everybody_may_read_is_no_secret(serve, tmp_path):
    certificate, key = self_signed(tmp_path, "open")
    key.chmod(0o644)
    with pytest.raises(ConfigError, match=rf"^metrics.tls_key: everybody may use {key}: chmod o= {key}$"):
        serve(MetricsSection(listen="127.0.0.1:0", tls_certificate=certificate, tls_key=key))


def test_absent_files_are_named_by_their_key(serve, tmp_path, certificate):
    certificate, _ = certificate
    with pytest.raises(ConfigError, match=r"^metrics.bearer_token_file: .*: No such file"):
        serve(MetricsSection(listen="127.0.0.1:0", bearer_token_file=tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"^metrics.tls_key: .*: No such file"):
        serve(MetricsSection(listen="127.0.0.1:0", tls_certificate=certificate, tls_key=tmp_path / "none"))
    with pytest.raises(ConfigError, match="are not a certificate and its key"):
        serve(MetricsSection(listen="127.0.0.1:0", tls_certificate=certificate, tls_key=certificate))


def test_key_with_passphrase_asks_nobody_for_it(serve, tmp_path, certificate):
    certificate, key = certificate
    locked = tmp_path / "locked.key"
    subprocess.run(["openssl", "ec", "-in", key, "-aes128", "-passout", "pass:secret", "-out", locked],
                   check=True, capture_output=True)  # fmt: skip
    with pytest.raises(ConfigError, match="are not a certificate and its key"):
        serve(MetricsSection(listen="127.0.0.1:0", tls_certificate=certificate, tls_key=locked))


def test_a_low_port_without_the_right_to_it(monkeypatch, metrics):
    def refuse(_self, _address):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(PermissionMissing, match="take a port above 1023"):
        MetricsServer(metrics, MetricsSection(listen="127.0.0.1:80"), 3.0)


def test_defaults_of_limits_leave_room_for_a_policy():
    assert LimitsSection().memory_bytes > 2 * LimitsSection().warn_resident_bytes


def exchange(path, content):
    """As whoever rotates secrets should do it: in one step."""
    path.with_suffix(".new").write_text(content)
    path.with_suffix(".new").chmod(0o400)
    path.with_suffix(".new").replace(path)


def test_rotated_token_counts_wrong_one_changes_nothing(serve, token, caplog):
    server = serve(MetricsSection(listen="127.0.0.1:0", bearer_token_file=token))
    other = TOKEN[::-1]
    assert ask(server, Authorization=f"Bearer {other}")[0] == 401
    exchange(token, other)
    assert ask(server, Authorization=f"Bearer {other}")[0] == 200
    assert ask(server, Authorization=f"Bearer {TOKEN}")[0] == 401
    exchange(token, "short")
    for _ in range(2):
        assert ask(server, Authorization=f"Bearer {other}")[0] == 200
    assert sum("old certificate and token stay in effect" in line for line in caplog.messages) == 1
    token.unlink()
    assert ask(server, Authorization=f"Bearer {other}")[0] == 200
    exchange(token, TOKEN)
    assert ask(server, Authorization=f"Bearer {TOKEN}")[0] == 200


def test_rotated_certificate_is_shown_with_its_key(serve, tmp_path, certificate, caplog):
    now, new = tmp_path / "tls.crt", self_signed(tmp_path, "new")
    key = tmp_path / "tls.key"
    exchange(now, certificate[0].read_text())
    exchange(key, certificate[1].read_text())
    server = serve(MetricsSection(listen="127.0.0.1:0", tls_certificate=now, tls_key=key))

    def shown(trusted):
        return ask(server, tls=ssl.create_default_context(cafile=trusted))[0]

    assert shown(certificate[0]) == 200
    exchange(now, new[0].read_text())
    assert shown(certificate[0]) == 200, "the new certificate has no key yet"
    assert "stay in effect" in caplog.text
    exchange(key, new[1].read_text())
    assert shown(new[0]) == 200
    with pytest.raises(ssl.SSLCertVerificationError):
        shown(certificate[0])


def test_key_that_goes_leaves_the_old_one(serve, tmp_path, certificate, caplog, monkeypatch):
    now, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    exchange(now, certificate[0].read_text())
    exchange(key, certificate[1].read_text())
    server = serve(MetricsSection(listen="127.0.0.1:0", tls_certificate=now, tls_key=key))
    monkeypatch.setattr(rlctl.serve.metrics_server, "open_regular", lambda *_: contextlib.nullcontext())
    key.unlink()
    assert ask(server, tls=ssl.create_default_context(cafile=certificate[0]))[0] == 200
    assert "stay in effect" in caplog.text


def test_what_start_would_refuse_is_said_before_it(serve_yaml, certificate, token, capsys):
    crt, key = certificate
    path = serve_yaml("lc:", f"metrics: {{tls_certificate: {crt}, tls_key: {key}, bearer_token_file: {token}}}\nlc:")
    assert main(["config", "check", str(path)]) == 0
    token.chmod(0o644)
    assert main(["config", "check", str(path)]) == 78
    assert capsys.readouterr().err.endswith(f"metrics.bearer_token_file: everybody may use {token}: chmod o= {token}\n")
    token.unlink()
    assert main(["config", "check", str(path)]) == 0, "it may be meant for another host"
    told = f"rlctl: warning: metrics.bearer_token_file: {token}: No such file or directory: a start as this user"
    assert capsys.readouterr().err.startswith(told)


def test_dry_run_looks_at_the_files_too(token, caplog, monkeypatch):
    look_at(section := MetricsSection(bearer_token_file=token))
    monkeypatch.setattr("rlctl.serve.metrics_server.Secrets", raises(PermissionMissing("metrics.tls_key: /k: denied")))
    look_at(section)
    assert caplog.messages == ["metrics.tls_key: /k: denied: whoever serves has to read it"]
    monkeypatch.undo()
    token.chmod(0o644)
    with pytest.raises(ConfigError, match="everybody may use"):
        look_at(section)


def raises(error):
    def call(*_):
        raise error

    return call
