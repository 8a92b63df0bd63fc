"""Tick logs of runs without a host, and tick logs as plain data for whoever judges what a service has written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rlctl.agents.policy import Policy
from rlctl.envs.log_lines import Damage, read_lines
from rlctl.envs.plant import Plant
from rlctl.envs.ticklog import LOG_NAME
from rlctl.log.record import TickLog, header_of
from rlctl.loop.control import Controller
from rlctl.safety.shield import Shield


def record_run(folder: Path, plant: Plant, policy: Policy, shield: Shield | None, ticks: int) -> Path:
    """Control a plant for so many ticks, with a tick log in the folder; gives the folder."""
    log = TickLog(folder / LOG_NAME)
    log.header = header_of(plant, policy, shield)
    Controller(plant, policy, shield, log).run(ticks=ticks)
    log.close()
    return folder


def read_ticks(path: Path, damaged: Callable[[Damage], None] = lambda _: None) -> Iterator[dict[str, Any]]:
    """The objects of one file of a tick log, headers left out; so are damaged lines, after they were reported."""
    for line in read_lines([path], damaged):
        if not line.is_header:
            yield dict(line.content)
