"""The perf sensor with a played child: readings, restarts, giving up."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlctl.envs.errors import SensorError
from rlctl.envs.host.sensors.perf import PerfSensor, perf_command, perf_root
from rlctl.envs.host.sensors.perf_keeper import MOST_RAPID_DEATHS, Shape
from rlctl.envs.telemetry import Missing, Reading, Value, Why

from .conftest import Stage  # noqa: TID252
