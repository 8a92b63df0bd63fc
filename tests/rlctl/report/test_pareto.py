"""The Pareto figure: nobody who is beaten is on the front, labels can be read, and colours work on both schemes."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.bench.intervals import Estimate
from rlctl.bench.score import SimOutcome
from rlctl.envs.run_metrics import METRICS
from rlctl.report.figures import png, svg
from rlctl.report.plots import COLOURS, MARKERS, draw_pareto, estimates_of, front, nines, styles

Bbox = pytest.importorskip("matplotlib.transforms", reason="figures need rlctl[cli]").Bbox
Text = pytest.importorskip("matplotlib.text").Text

points = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=12)


def suite(managers, scenario="thesis", seeds=5):
    rng = np.random.default_rng(len(managers))
    values = {}
    for name in managers:
        values[name] = {metric: rng.uniform(1.0, 3.0, seeds) for metric in METRICS}
        values[name]["qos_guarantee_percent"] = 100.0 - rng.choice([0.0, 0.01, 0.1, 5.0]) * rng.uniform(0, 1, seeds)
        values[name]["be_throughput_percent"] = rng.uniform(0, 60) + rng.uniform(0, 2, seeds)
    return SimOutcome(scenario, "made up", "caption", values, {}, 3000.0)


def test_the_front_by_hand():
    assert front([0, 10, 50, 50, 60], [100, 100, 99, 98, 40]).tolist() == [False, True, True, False, True]


@given(points)
def test_everybody_off_the_front_is_beaten(both):
    be, qos = zip(*both, strict=True)
    on = front(be, qos)
    assert on.any()
    for index in np.flatnonzero(~on):
        assert any(be[i] >= be[index] and qos[i] >= qos[index] for i in np.flatnonzero(on))


def test_step_up_is_ten_times_fewer_misses():
    assert nines(0.0) == pytest.approx(0.0)
    assert nines(100.0) == pytest.approx(4.0, abs=1e-3)
    assert nines(99.0) - nines(90.0) == pytest.approx(1.0, abs=0.01)
    assert np.all(np.diff(nines(np.array([0, 50, 90, 99, 99.9, 99.99, 100.0]))) > 0.25)


@pytest.mark.parametrize("paper", ["#ffffff", "#15171b"])
def test_colours_can_be_seen_on_light_and_dark(paper):
    def luminance(colour):
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    for colour in COLOURS:
        light, dark = sorted((luminance(colour), luminance(paper)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3.0, colour


def test_seventy_managers_look_different_everywhere():
    names = [f"m{index}" for index in range(len(COLOURS) * len(MARKERS))]
    looks = styles([*names[:30], *names])
    assert len({look[1:] for look in looks.values()}) == len(names)
    assert [looks[name][0] for name in names] == list(range(1, len(names) + 1))


def drawn(result):
    return draw_pareto({result.scenario: estimates_of(result)}, styles(result.managers))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_twenty_labels_of_a_crowd_do_not_overlap(seed):
    rng = np.random.default_rng(seed)
    places = [(rng.uniform(20, 60), rng.choice([99.9, 99.8, 98.0])) for _ in range(20)]
    both = {f"m{at}": tuple(Estimate(one, (one, one), (one, one)) for one in place) for at, place in enumerate(places)}
    figure = draw_pareto({"a crowd": both}, styles(both))
    png(figure)  # which moves the labels to their places
    (axis,) = figure.axes
    boxes = [Text.get_window_extent(text) for text in axis.texts]  # without the line to the marker
    assert len(boxes) == 20
    assert not [(one, other) for one, other in itertools.combinations(boxes, 2) if Bbox.intersection(one, other)]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 6, 20])
def test_figures_are_drawn_at_any_number_of_managers(count):
    results = [suite(["frozen", "oracle", *(f"m{i}" for i in range(count - 2))][:count], name) for name in ("a", "b")]
    style = styles(results[0].managers)
    for figure in (
        draw_pareto({"a": estimates_of(results[0])}, style),
        draw_pareto({one.scenario: estimates_of(one) for one in results}, style),
    ):
        assert png(figure).startswith(b"\x89PNG")
        drawing = svg(figure, "a & b")
        assert drawing.startswith("<svg viewBox=")
        assert "<title>a &amp; b</title>" in drawing
        assert "frozen" in drawing
        assert not re.search(r"https?://", drawing)


def test_same_figure_twice_shares_no_id():
    result = suite(["frozen", "none"])
    one, again = (svg(drawn(result), "one") for _ in range(2))
    other = svg(drawn(result), "other")
    assert one == again
    assert not set(re.findall(r' id="([^"]+)"', one)) & set(re.findall(r' id="([^"]+)"', other))


def test_a_single_seed_is_drawn_without_bars():
    result = suite(["frozen", "none"], seeds=1)
    assert png(drawn(result))
