"""The figures: they can be drawn from any run, also from one that has holes, and need no display."""

from dataclasses import replace

import pytest

from rlctl.bench.score import LiveRun, score
from rlctl.envs.allocation import UNLIMITED, Allocation
from rlctl.envs.telemetry import Missing, Quantile, Telemetry, Value, Why
from rlctl.log.record import Tick
from rlctl.report.figures import png
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
def test_a_run_is_drawn(missing):
    from rlctl.report.plots import draw_live_run

    assert png(draw_live_run(run("none", missing), 2)).startswith(b"\x89PNG")


def test_missed_load_with_less_be_is_seen():
    from rlctl.report.plots import draw_by_load

    def at(load, milliseconds, be_cpus, tick):
        telemetry = tick.telemetry.but(
            load_ratio=Value(load), tail_latency_seconds=Quantile(milliseconds / 1e3, 99), be_cpus=Value(be_cpus)
        )
        return replace(tick, telemetry=telemetry)

    calm, missed = run("ppo").ticks, run("ppo").ticks
    ticks = (*(at(0.2, 5.0, 0.5, tick) for tick in calm), *(at(0.8, 20.0, 0.1, tick) for tick in missed))
    qos, be, tails = draw_by_load([LiveRun("ppo", ticks, 0.3, 0.0)], "a title").axes
    assert qos.lines[0].get_ydata().tolist() == [100.0, 0.0]
    assert be.lines[0].get_ydata().tolist() == pytest.approx([0.5, 0.1])
    assert tails.lines[0].get_xdata()[[0, -1]].tolist() == pytest.approx([5.0, 20.0])


@pytest.mark.filterwarnings("ignore::UserWarning")  # a log axis without a single value
def test_runs_without_readings_are_drawn_by_load():
    from rlctl.report.plots import draw_by_load

    figure = draw_by_load([run("none", missing=True), run("frozen", missing=True)], "a title")
    assert [line.get_ydata().tolist() for line in figure.axes[0].lines] == [[], []]
    assert png(figure).startswith(b"\x89PNG")


@pytest.mark.parametrize("missing", [False, True])
def test_live_scores_are_drawn_as_simulated(missing):
    from rlctl.report.plots import draw_pareto, styles

    scores = {name: score([run(name, missing)] * count) for name, count in (("none", 1), ("frozen", 3))}
    both = {name: (one.be_throughput_percent, one.qos_guarantee_percent) for name, one in scores.items()}
    assert png(draw_pareto({"a title": both}, styles(both))).startswith(b"\x89PNG")
