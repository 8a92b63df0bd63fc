"""`rlctl serve --lc NAME --be NAME --target TIME`: what people type is found, or they are told what to type."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rlctl.cli import main
from rlctl.config.serve import load_config
from rlctl.envs.errors import ConfigError, HostError
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.serve.two_names import TwoNames, find_workload, parse_target
from tests.doubles.cgroup_kernel import FakeKernel

STAT = "{pid} ({name}) S 1 " + " ".join(["0"] * 50)


class FakeHost:
    """Control groups of a fake v2 kernel, and processes in them."""

    def __init__(self, folder: Path) -> None:
        self.fake = FakeKernel(folder, "v2")
        self.proc = self.fake.proc
        self.layout = Layout.detect(self.fake.root, self.proc)

    def process(self, pid: int, name: str, group: str, command: str = "") -> None:
        own = self.proc / str(pid)
        own.mkdir()
        (own / "stat").write_text(STAT.format(pid=pid, name=name[:15]))
        (own / "cmdline").write_bytes((command or name).encode() + b"\0")
        (own / "cgroup").write_text(f"0::{group}\n")
        if group != "/":
            folder = self.fake.root / group.strip("/")
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / "cgroup.procs").open("a") as listing:
                listing.write(f"{pid}\n")

    def find(self, name: str) -> tuple[dict[str, object], str]:
        found = find_workload(name, self.layout, self.proc)
        return found.section.model_dump(), found.words


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    made = FakeHost(tmp_path)
    made.process(10, "nginx", "/system.slice/nginx.service", "nginx: master process /usr/sbin/nginx")
    made.process(11, "nginx", "/system.slice/nginx.service", "nginx: worker process")
    made.process(12, "redis-server", "/system.slice/redis-server.service", "/usr/bin/redis-server 127.0.0.1:6379")
    made.process(13, "stress-ng", "/batch.slice")
    made.process(14, "loose", "/")
    made.process(15, "twice", "/a")
    made.process(16, "twice", "/b")
    made.process(17, "job", f"/machine.slice/libpod-{'cafe' * 16}.scope")
    made.process(18, "task", "/kubepods/besteffort/pod1")
    return made


@pytest.mark.parametrize(("name", "section", "words"), [
    ("nginx.service", {"kind": "unit", "unit": "nginx.service"}, "2 processes (nginx)"),
    ("nginx", {"kind": "unit", "unit": "nginx"}, "2 processes (nginx)"),
    ("batch.slice", {"kind": "unit", "unit": "batch.slice"}, "1 process (stress-ng)"),
    ("/batch.slice", {"kind": "cgroup", "path": "/batch.slice"}, "1 process (stress-ng)"),
    ("a", {"kind": "cgroup", "path": "/a"}, "1 process (twice)"),
    ("name:nginx", {"kind": "cgroup", "path": "/system.slice/nginx.service"}, "2 processes (nginx)"),
    ("name:redis-server", {"kind": "cgroup", "path": "/system.slice/redis-server.service"}, "(redis-server)"),
    ("cafecafecafe", {"kind": "container", "name": "cafecafecafe"}, "1 process (job)"),
    ("qos:besteffort", {"kind": "kubernetes", "pod": None, "pod_uid": None, "container_id": None, "qos": "besteffort",
                        "each_pod": True}, "1 process (task)"),
])  # fmt: skip
def test_a_name_is_found_and_said(host: FakeHost, name: str, section: dict[str, object], words: str) -> None:
    found, said = host.find(name)
    assert found == section
    assert words in said


@pytest.mark.parametrize(("name", "error", "words"), [
    ("nothing", HostError, "name:nothing"),
    ("gone.service", HostError, "systemd unit gone.service"),
    ("name:nobody", HostError, "no process is called 'nobody'"),
    ("name:loose", ConfigError, "systemd-run --unit=loose"),
    ("name:twice", ConfigError, "2 control groups (/a, /b)"),
    ("/none/here", HostError, "/none/here"),
    ("pod:web/front-0", HostError, "Kubernetes pod web/front-0"),
    ("pod:front", ConfigError, "pod"),
    ("qos:best", ConfigError, "besteffort"),
    ("..", ConfigError, "group below the root"),
])  # fmt: skip
def test_what_is_not_found_says_what_to_type(host: FakeHost, name: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        host.find(name)


@pytest.mark.parametrize(("text", "milliseconds"), [("10ms", 10.0), ("500us", 0.5), ("1.5s", 1500.0)])
def test_a_target_has_its_unit(text: str, milliseconds: float) -> None:
    assert parse_target(text) == pytest.approx(milliseconds)


@pytest.mark.parametrize("text", ["10", "ms", "-1ms", "0ms", "1e3ms", "10 minutes"])
def test_a_target_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="10ms"):
        parse_target(text)


def test_the_file_says_what_the_flags_said(host: FakeHost, tmp_path: Path) -> None:
    found = TwoNames.find("nginx.service", "batch.slice", "10ms", host.layout, host.proc)
    path = tmp_path / "serve.yaml"
    path.write_text(found.file)
    assert load_config(path) == found.config
    assert "tcp" in found.config.model_dump_json()
    assert "nginx" in str(found)


def test_a_strange_process_name_breaks_no_file(host: FakeHost) -> None:
    host.process(20, "a\nlc: {", "/c")
    assert TwoNames.find("/c", "batch.slice", "10ms", host.layout, host.proc).config.lcs


@pytest.mark.parametrize(("arguments", "words"), [
    (["--lc", "a", "--target", "10ms"], "--be must be given too"),
    ([], "--lc and --be and --target"),
    (["--config", "x.yaml", "--lc", "a"], "`rlctl init` makes a file"),
])  # fmt: skip
def test_what_is_missing_is_said(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *arguments]) == 78
    assert words in capsys.readouterr().err


def test_init_overwrites_nothing_and_refuses_an_overlap(
    host: FakeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find: Callable[..., TwoNames] = TwoNames.find
    monkeypatch.setattr(TwoNames, "find", lambda *names: find(*names, host.layout, host.proc))
    monkeypatch.setattr(Layout, "detect", lambda: host.layout)
    typed = ["init", "--lc", "nginx.service", "--be", "batch.slice", "--target", "10ms", "--out", str(tmp_path / "x")]
    assert main(typed) == 0
    assert main(typed) == 78
    assert "name another file" in capsys.readouterr().err
    typed[2], typed[-1] = "/batch.slice/one", str(tmp_path / "y")
    host.process(19, "one", "/batch.slice/one")
    assert main(typed) == 78
    assert "batch.slice/one overlap: what limits one limits both" in capsys.readouterr().err
    assert not (tmp_path / "y").exists()
