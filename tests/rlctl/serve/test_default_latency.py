"""Where no latency source is configured the kernel's is taken, and what the LC waits for where that does not fit."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlctl.config.serve import LcSection
from rlctl.envs.errors import ConfigError, HostError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.sensors.cpu import LcAlive
from rlctl.serve import build
from rlctl.serve.build import _latency
from tests.doubles.cgroup_kernel import FakeKernel

SAID: dict[str, dict[str, object]] = {
    "workload": {"kind": "cgroup", "path": "/lc"},
    "slo": {"target_milliseconds": 100},
}


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Group]:
    """The group of a process without any socket."""
    fake = FakeKernel(tmp_path, "v2")
    group = Group.create(Layout.detect(fake.root, fake.proc), "lc", Knobs(None, fake))
    with subprocess.Popen(["sleep", "60"]) as process:
        group.procs_file.write_text(f"{process.pid}\n")
        yield group
        process.kill()


@pytest.fixture
def grown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process is old enough at once."""
    monkeypatch.setattr(build, "YOUNG_SECONDS", 0.0)


def test_waiting_is_held_where_tcp_does_not_fit(silent: Group, grown: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        source = _latency(LcSection.model_validate(SAID), [LcAlive(silent.procs_file)], silent)
    source.close()
    assert "weaker than a latency" in source.name
    (said,) = caplog.messages
    assert "listens on no TCP port" in said
    assert source.name in said


def test_new_lc_may_listen_yet(silent: Group) -> None:
    """A JVM that opens its port after 15 s must not be held by what it waits for until somebody restarts rlctl."""
    with pytest.raises(HostError, match=r"began to run \d s ago"):
        _latency(LcSection.model_validate(SAID), [LcAlive(silent.procs_file)], silent)


def test_stated_load_needs_a_source_that_sees_requests(silent: Group, grown: None) -> None:
    section = LcSection.model_validate(SAID | {"slo": SAID["slo"] | {"max_load_rps": 9000}})
    with pytest.raises(ConfigError, match=r"remove slo\.max_load_rps"):
        _latency(section, [LcAlive(silent.procs_file)], silent)


def test_lc_without_a_process_is_not_there_yet(silent: Group) -> None:
    silent.procs_file.write_text("")
    with pytest.raises(HostError, match="has no process"):
        _latency(LcSection.model_validate(SAID), [LcAlive(silent.procs_file)], silent)


def test_a_source_that_is_configured_is_not_replaced(silent: Group) -> None:
    section = LcSection.model_validate(SAID | {"latency": {"kind": "tcp"}})
    with pytest.raises(HostError, match="no TCP port"):
        _latency(section, [LcAlive(silent.procs_file)], silent)
