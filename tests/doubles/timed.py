"""Sensors whose clock is the test's."""

from pathlib import Path
from typing import Any

from rlctl.envs.host.latency.text_log import TextLog
from rlctl.envs.host.sensors.cpu import GroupCpus


class TimedLog(TextLog):
    """Its clock stands at the time that `read` is given, or that the test sets."""

    def __init__(self, path: Path, *args: Any, **options: Any) -> None:
        self.now = 0.0
        super().__init__(path, *args, clock=lambda: self.now, **options)

    def read(self, now_seconds: float) -> Any:
        """As of this time."""
        self.now = now_seconds
        return super().read(now_seconds)


class TimedCpus(GroupCpus):
    """Its clock stands at the time that `read` is given."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.now = 0.0
        super().__init__(*args, clock=lambda: self.now, **options)

    def read(self, now_seconds: float) -> Any:
        """As of this time."""
        self.now = now_seconds
        return super().read(now_seconds)
