"""The report: a page that is whole by itself, says every number, and takes names as text."""

import csv
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from rlctl.bench.score import SimOutcome
from rlctl.envs.run_metrics import METRICS, TIMINGS, Windows
from rlctl.report.bench_report import write_suite_report
from rlctl.report.figures import svg
from rlctl.report.plots import draw_windows
from rlctl.report.table import fine_percent, paired_rows, summary_rows

pytest.importorskip("matplotlib", reason="figures need rlctl[cli]")

VOID = {"meta", "br", "link", "img", "hr", "input"}
MANAGERS = ("frozen", "prm-hybrid-tuned", "prm-hybrid", 'odd <b>&"name"')


class Page(HTMLParser):
    """Fails on tags that do not match; keeps attributes and text."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.attributes, self.text, self.ids = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, *attr) for attr in attrs]
        self.ids += [value for key, value in attrs if key == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(tag, *attr) for attr in attrs]
        self.ids += [value for key, value in attrs if key == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def trace(ticks=700, frozen=False):
    wave = 0.9 + 0.1 * np.sin(np.arange(ticks) / 30)
    stopped = np.full(ticks, frozen) | (wave > 0.95)
    run = Windows.none(ticks, 1)
    columns = (("load_ratio", wave), ("latency_ratio", wave**8), ("be_work_ratio", np.where(stopped, 0.0, 0.3)))
    for name, values in (*columns, ("frozen", stopped)):
        getattr(run, name)[:, 0] = values
    return run


def result(scenario="thesis", seeds=6):
    rng = np.random.default_rng(2)
    managers = {name: {metric: rng.uniform(10, 90, seeds) for metric in (*METRICS, *TIMINGS)} for name in MANAGERS}
    managers["frozen"] |= {"be_throughput_percent": np.zeros(seeds), "qos_guarantee_percent": np.full(seeds, 100.0)}
    traces = {name: trace(frozen=name == "frozen") for name in MANAGERS}
    return SimOutcome(scenario, "made <up>", "6 seeds; shield responsive (aabbcc)", managers, traces, 3000.0)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_suite_report([result("thesis"), result("noisy")], folder, "rlctl bench --plant sim && <more>")
    return folder


def test_page_is_well_formed_with_own_ids(report):
    page = Page((report / "index.html").read_text())
    assert len(page.ids) == len(set(page.ids))
    wanted = {value[1:] for _, key, value in page.attributes if key == "href"}
    assert wanted <= set(page.ids)


@pytest.mark.slow
def test_second_report_keeps_no_figure(tmp_path):
    write_suite_report([result("noisy")], tmp_path)
    (tmp_path / "pareto-mine.png").touch()
    write_suite_report([result("thesis")], tmp_path)
    assert {one.name for one in tmp_path.glob("*.png")} == {"pareto.png", "pareto-mine.png"}


def test_the_page_needs_nothing_from_outside(report):
    text = (report / "index.html").read_text()
    page = Page(text)
    assert all(value.startswith("#") for _, key, value in page.attributes if key in {"href", "src", "xlink:href"})
    assert not re.search(r"https?:|@import|url\((?!#)|<script|<link", text)


def test_every_manager_is_on_page_and_markdown(report):
    page, markdown = Page((report / "index.html").read_text()), (report / "report.md").read_text()
    rows = [*summary_rows(result()), *paired_rows(result(), "frozen"), *paired_rows(result(), "prm-hybrid-tuned")]
    for row in rows:
        for cell in row:
            assert cell in page.text
            assert cell in markdown


def test_spreadsheet_has_every_run(report):
    head, *rows = csv.reader((report / "runs.csv").read_text().splitlines())
    assert head[:4] == ["scenario", "manager", "seed", "qos_guarantee_percent"]
    assert len(rows) == 2 * len(MANAGERS) * 6
    values = result().managers["prm-hybrid"]["qos_guarantee_percent"]
    assert [float(row[3]) for row in rows if row[:2] == ["thesis", "prm-hybrid"]] == values.tolist()


def test_latex_has_the_tables_escaped(report):
    text = (report / "tables.tex").read_text()
    assert (
        text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 7
    )  # together; all and two baselines of each
    assert r'odd $<$b$>$\&"name"' in text, "a bare < is printed as another sign"
    assert not re.search(r"(?<!\\)[%&#$](?! )", re.sub(r"(?m)^% .*$|\$[<>]\$", "", text))


def test_differences_are_from_whom_one_asks_for(tmp_path):
    write_suite_report([result()], tmp_path, against="prm-hybrid")
    assert list(json.loads((tmp_path / "result.json").read_text())["paired"]) == ["prm-hybrid"]
    report = (tmp_path / "report.md").read_text()
    assert "Against prm-hybrid, seed by seed" in report
    assert "P(> prm-hybrid)" in report


def test_how_to_run_again_is_there(report):
    text = "".join(Page((report / "index.html").read_text()).text)
    for told in ("rlctl bench --plant sim && <more>", "6 seeds; shield responsive (aabbcc)", "rlctl 0", "made <up>"):
        assert told in text
    assert "<b>" not in (report / "index.html").read_text()


def test_the_json_is_the_contract_with_paired_comparisons(report):
    scenario = json.loads((report / "result.json").read_text())["scenarios"]["thesis"]
    assert scenario["schema"] == 1
    frozen = scenario["managers"]["frozen"]
    assert frozen["qos_guarantee_percent"]["mean"] == 100.0
    assert frozen["qos_guarantee_percent"]["ci95"][0] < 100.0
    assert len(frozen["per_seed"]["be_throughput_percent"]) == 6
    ratio = scenario["paired"]["frozen"]["prm-hybrid"]["be_throughput_ratio"]
    assert ratio == {"ratio": None, "bootstrap95": [None, None]}


def test_single_scenario_is_a_report_too(tmp_path):
    whole = result(seeds=1)
    lone = SimOutcome("one", "d", "c", {"prm-hybrid": whole.managers["prm-hybrid"]}, {}, 3000.0)
    write_suite_report([lone], tmp_path)
    assert json.loads((tmp_path / "result.json").read_text())["scenario"] == "one"
    assert (tmp_path / "pareto.png").exists()
    Page((tmp_path / "index.html").read_text())


def with_be(name, values):
    whole = result()
    changed = {**whole.managers, name: {**whole.managers[name], "be_throughput_percent": np.asarray(values, float)}}
    return SimOutcome("s", "", "", changed, {}, 3000.0)


def test_multiple_of_nothing_is_not_told():
    few = with_be("frozen", [0.0, 0.0, 0.0, 0.0, 0.0, 2.9])
    assert all(row[-2:] == ("-", "-") for row in paired_rows(few, "frozen")[1:])
    assert all(row[-2] != "-" for row in paired_rows(with_be("frozen", np.full(6, 0.6)), "frozen")[1:])


def test_zero_to_zero_has_no_star():
    close = with_be("prm-hybrid", 0.01 + 0.001 * np.arange(6))
    row = next(row for row in paired_rows(close, "frozen") if row[0] == "prm-hybrid")
    assert row[6:9] == ("0.0", "0.0 to 0.0", "0.0 to 0.0")
    assert any(row[6].endswith(" *") for row in paired_rows(close, "frozen"))


def test_almost_100_percent_is_not_told_as_100():
    assert [fine_percent(value) for value in (100.0, 99.9999, 99.5, 0.0001, 0.0)] == [
        "100.00",
        "99.999",
        "99.50",
        "0.01",
        "0.00",
    ]


@pytest.mark.parametrize("ticks", [1, 2, 640, 3000])
def test_a_run_of_any_length_is_drawn(ticks):
    drawing = svg(draw_windows("a <b>", trace(ticks), 1.0), "a <b>")
    Page(drawing)
    assert "nan" not in drawing
    assert len(drawing) < 200_000


def test_result_for_a_wrong_table_is_refused():
    good = result().managers["frozen"]
    for bad in ({"frozen_percent": np.zeros(5)}, {"frozen_percent": np.full(6, np.nan)}):
        with pytest.raises(ValueError, match="frozen_percent"):
            SimOutcome("s", "", "", {"a": good, "b": {**good, **bad}}, {}, 3000.0)
    with pytest.raises(ValueError, match="lacks"):
        SimOutcome("s", "", "", {"a": {"qos_guarantee_percent": np.zeros(3)}}, {}, 3000.0)
