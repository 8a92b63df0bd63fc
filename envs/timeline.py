"""The last ticks of a host as a picture, for Gymnasium's render mode "rgb_array" and its `RecordVideo`."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import require_installed
from rlctl.envs.telemetry import Telemetry, number_or_nan

SHOWN_TICKS = 120
INCHES, DOTS_PER_INCH = (6.4, 4.8), 100  # 640 x 480 pixels


class Timeline:
    """Latency against its target, load, and what BE has, tick by tick; ConfigError: Matplotlib is not installed."""

    def __init__(self) -> None:
        require_installed("render_mode rgb_array", "cli", "matplotlib")
        self._rows: deque[tuple[float, float, float, float]] = deque(maxlen=SHOWN_TICKS)

    def add(self, telemetry: Telemetry, current: Allocation, limits: Limits) -> None:
        """Take a tick: what was read, and what BE had meanwhile."""
        cpus = 0.0 if current.frozen else min(current.quota_cpus, float(current.cpuset_cpus))
        latency_ratio = number_or_nan(telemetry.latency_seconds) / telemetry.target_seconds
        row = telemetry.time_seconds, latency_ratio, number_or_nan(telemetry.load_ratio), cpus / limits.cpus
        if self._rows and row[0] <= self._rows[-1][0]:  # the clock began anew with an episode
            self._rows.clear()
        self._rows.append(row)

    def picture(self) -> NDArray[np.uint8]:
        """The ticks that are kept, shape (480, 640, 3)."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        seconds, latency, load, be = np.array(self._rows, float).T if self._rows else np.empty((4, 0))
        figure = Figure(INCHES, DOTS_PER_INCH, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        above, below = figure.subplots(2, sharex=True)
        above.plot(seconds, latency, color="tab:blue")
        above.axhline(1.0, color="tab:red", linestyle="--")
        above.set(ylabel="latency by target", ylim=(0.0, 2.0))
        below.step(seconds, be, where="pre", color="tab:green", label="BE's CPUs")
        below.plot(seconds, load, color="tab:gray", label="load")
        below.set(xlabel="seconds", ylabel="share", ylim=(0.0, 1.1))
        below.legend(loc="upper left")
        canvas.draw()  # type: ignore[no-untyped-call]
        return np.asarray(canvas.buffer_rgba())[..., :3].copy()  # type: ignore[no-untyped-call]
