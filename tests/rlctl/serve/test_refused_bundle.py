"""A bundle that is refused at the start: the file's fallback decides and everybody is told, or the start ends."""

import logging

import pytest

from rlctl.agents.served.fallback import FallbackPolicy
from rlctl.cli import main
from rlctl.envs.errors import BundleError
from rlctl.loop.stopping import Request
from rlctl.serve.policy_setup import Configuration
from tests.doubles.host import FakeHost, run_service
from tests.doubles.tick_logs import read_ticks


@pytest.fixture
def configured(make_bundle, serve_yaml, tmp_path):
    """A configuration with a bundle whose network is damaged, and what else it says."""
    folder = make_bundle(tmp_path / "tiny")
    (folder / "weights.npz").write_bytes(b"garbage")

    def write(more=""):
        return serve_yaml("policy: {name: frozen}", f"policy: {{name: {folder}}}\n{more}")

    return write


FALLBACK = "fallback: {name: static}"


def test_the_fallback_decides_and_the_log_says_why(configured, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="rlctl")
    deciders = Configuration(configured(FALLBACK)).deciders
    assert isinstance(deciders.policy, FallbackPolicy)
    assert "tiny is refused, static decides in its place" in caplog.text
    run_service(FakeHost(loads=(0.2,), tick_seconds=0.05), deciders, Request(), tmp_path, seconds=0.3)
    ticks = list(read_ticks(tmp_path / "ticks.jsonl"))
    assert {(tick["policy"], tick["acting"]) for tick in ticks} == {(str(tmp_path / "tiny"), "static")}
    assert all("damaged or replaced" in tick["fallback"] for tick in ticks)
    assert not ticks[-1]["applied"]["frozen"], "BE is controlled, not only kept safe"


def test_whoever_asks_gets_an_exit_code(configured, capsys):
    with_it = configured(FALLBACK)
    for words in ({"strict": True}, {"policy": "./no-such-bundle"}):
        with pytest.raises(BundleError):
            Configuration(with_it, **words)
    running = Configuration(with_it)
    running.reload.set()
    assert running.take_reload() is None, "at a reload the policy that decides goes on"
    assert main(["config", "check", str(with_it)]) == 78
    assert "damaged or replaced" in capsys.readouterr().err
    with pytest.raises(BundleError, match="damaged or replaced"):
        Configuration(configured())
