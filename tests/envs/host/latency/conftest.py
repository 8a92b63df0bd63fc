"""An SLO, and an HTTP endpoint on loopback that says what the test wants."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from rlctl.envs.workload import SLO
from tests.doubles.http import answering

Answer = Callable[[], tuple[int, bytes]]


@pytest.fixture
def slo() -> SLO:
    return SLO(target_seconds=0.010, quantile=0.95, max_load_rps=1000.0)


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], str]]:
    """Starts an endpoint; its URL is returned and it ends with the test."""
    with contextlib.ExitStack() as servers:

        def start(answer: Answer) -> str:
            return f"http://127.0.0.1:{servers.enter_context(answering(lambda _: answer()))}/metrics"

        yield start
