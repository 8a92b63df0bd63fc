"""nginx and memcached of our own: they serve what the generator asks, and nothing of them stays."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlctl.envs.errors import TestbedError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.latency.line_formats import NGINX_PATTERN
from rlctl.envs.testbed.generator import GeneratorStats, LoadGenerator
from rlctl.envs.testbed.knee import KneeSection, find_knee, probe_with
from rlctl.envs.testbed.launch import Launcher, find_program
from rlctl.envs.testbed.services import Memcached, Nginx
from rlctl.envs.testbed.workloads import LcProgram, Program, talk
from scripts.studies.bench.guard import LoggingNginx
from tests.waiting import until

Make = Callable[[], LcProgram]


@pytest.mark.parametrize("make", [Nginx, Memcached])
def test_service_that_was_not_started_says_so(make: Make) -> None:
    service = make()
    assert service.pids() == ()
    service.stop()
    for use in (service.ready, service.load):
        with pytest.raises(TestbedError, match="has not been started"):
            use()


# ---- live ------------------------------------------------------------------------------------------------------------


class Script(Program):
    """A shell script as a program of the testbed."""

    def __init__(self, name: str, script: str) -> None:
        self.name, self._script = name, script

    def _command(self, launcher: Launcher) -> list[str]:
        return ["/bin/sh", "-c", self._script]


def needs(*programs: str) -> None:
    for program in programs:
        try:
            find_program(program, program)
        except TestbedError as error:
            pytest.skip(str(error))


def loaded(service: LcProgram, rate_rps: float, seconds: float = 0.3) -> GeneratorStats:
    with LoadGenerator(service.load(), rate_rps=rate_rps) as generator:
        generator.stats()

        def window() -> GeneratorStats:
            time.sleep(seconds)
            return generator.stats()

        return until(lambda: (stats := window()).samples > 0 and stats)  # type: ignore[return-value]


@pytest.fixture
def compiler() -> None:
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no C compiler: the load generator is compiled")


@pytest.mark.host
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("make", "processes"), [(Nginx, 2), (Memcached, 1)])
def test_service_runs_in_its_group_and_answers(be_launcher: Launcher, group: Group, make: Make, processes: int) -> None:
    needs(make.__name__.lower())
    service = make()
    service.start(be_launcher)
    service.ready()
    with pytest.raises(TestbedError, match="runs already"):
        service.start(be_launcher)
    assert len(service.pids()) == processes
    assert frozenset(service.pids()) == group.pids()
    stats = loaded(service, 100.0)
    assert stats.samples > 0
    assert (stats.errors, stats.misses) == (0, 0)
    service.stop()
    assert service.pids() == ()
    assert group.pids() == frozenset()
    service.start(be_launcher)
    service.ready()


@pytest.mark.slow
@pytest.mark.host
@pytest.mark.usefixtures("compiler")
def test_nginx_compresses_and_logs_as_read(launcher: Launcher) -> None:
    needs("nginx")
    nginx = LoggingNginx()
    nginx.start(launcher)
    nginx.ready()
    request = b"GET /text.txt HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n"
    assert b"Content-Encoding: gzip" in talk(nginx.socket, request)
    assert loaded(nginx, 100.0).samples > 0
    lines = nginx.access_log.read_text().splitlines()
    assert lines
    assert all(re.fullmatch(NGINX_PATTERN, line) for line in lines)


@pytest.mark.slow
@pytest.mark.host
def test_ended_service_is_told_with_last_words(launcher: Launcher) -> None:
    ended = Script("fake", "echo bind: no way >&2; exit 1")
    ended.start(launcher)
    with pytest.raises(TestbedError, match="fake ended with code 1: bind: no way"):
        ended.await_that(lambda: False, "answer", 5.0)
    hung = Script("hung", "echo thinking; sleep 60")
    hung.start(launcher)
    hung.await_that(lambda: bool(hung.process.output.read_text()), "think")
    with pytest.raises(TestbedError, match=r"hung did not answer in 0\.2 s: thinking"):
        hung.await_that(lambda: False, "answer", 0.2)


@pytest.mark.slow
@pytest.mark.host
def test_socket_path_that_is_too_long_is_told(tmp_path: Path) -> None:
    needs("memcached")
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    with pytest.raises(TestbedError, match="too long for a unix socket"):
        Memcached().start(Launcher(deep))


@pytest.mark.slow
@pytest.mark.host
@pytest.mark.usefixtures("compiler")
def test_memcached_has_memory_and_threads_for_all(launcher: Launcher) -> None:
    needs("memcached")
    memcached = Memcached(threads=2, preload_keys=400_000)
    memcached.start(launcher)
    memcached.ready()
    stats = loaded(memcached, 100.0)
    assert stats.samples > 0
    assert stats.misses == 0


@pytest.mark.slow
@pytest.mark.host
@pytest.mark.usefixtures("compiler")
def test_knee_search_drives_a_real_service(launcher: Launcher) -> None:
    """Far below any knee: only that the pieces fit together."""
    needs("memcached")
    memcached = Memcached(preload_keys=100)
    memcached.start(launcher)
    memcached.ready()
    with LoadGenerator(memcached.load()) as generator:
        measure = probe_with(generator, 0.95, settle_seconds=0.05, window_seconds=0.1)
        assert find_knee(measure, 10.0, KneeSection(start_rps=100.0, step_rps=100.0, top_rps=300.0)) == 300.0
