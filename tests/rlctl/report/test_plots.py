"""The figures: they can be drawn from any run, also from one that has holes, and need no display."""

import pytest

from rlctl.bench.score import LiveRun, score
from rlctl.envs.allocation import UNLIMITED, Allocation
from rlctl.envs.telemetry import Missing, Quantile, Telemetry, Value, Why
from rlctl.loop.record import Tick
from rlctl.safety.verdict import Verdict

pytest.importorskip("matplotlib", reason="plots need rlctl[cli]")


def run(manager, missing=False):
    ticks = []
    for index in range(6):
        applied = Allocation(UNLIMITED, 2) if index < 3 else Allocation(0.1, 1, frozen=True)
        tail = Missing(Why.GONE) if missing else Quantile(0.004 * (index + 1), samples=99)
        telemetry = Telemetry(float(index), 0.01, tail_latency_seconds=tail, load_ratio=Value(0.5), lc_cpus=Value(0.4))
        ticks.append(Tick(index, 0.0, telemetry, applied, applied, Verdict(applied, applied), applied, manager))
    return LiveRun(manager, tuple(ticks), 0.3, 0.0)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.filterwarnings("ignore::UserWarning")  # a log axis without a single value
def test_a_run_and_the_summary_are_drawn(tmp_path, missing):
    from rlctl.report.plots import plot_run, plot_summary

    plot_run(run("none", missing), tmp_path / "run.png", 2)
    scores = {name: score([run(name, missing)] * count) for name, count in (("none", 1), ("frozen", 3))}
    plot_summary(scores, tmp_path / "summary.png", "a title")
    for name in ("run.png", "summary.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
