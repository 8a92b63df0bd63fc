"""The report of a simulator benchmark: `index.html` that needs nothing but itself, `report.md`, `result.json`, PNGs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl import __version__
from rlctl.bench.comparison import compare, present_baselines
from rlctl.bench.sim_outcome import SimOutcome
from rlctl.envs.whole_file import write_whole
from rlctl.report.figures import png, svg
from rlctl.report.page import html_page, html_table, render
from rlctl.report.pareto import Styles, draw_scenario, draw_suite, estimates_of, styles
from rlctl.report.suite_table import paired_rows, summary_rows
from rlctl.report.timeline import timeline_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "rlctl: managers in the simulator"

OPEN_RUNS = 8
"""More timelines than this are folded away until the reader opens them."""

PAIRED_NOTE = (
    "Differences per seed, the seeds being the same for both. t: Student's t interval; bootstrap: BCa over seeds, "
    "expanded for few of them. * both leave out zero. Each interval is for its own comparison; with many of them one "
    "in twenty misses."
)
READING = (
    "QoS is the share of windows whose tail latency held the target: 1 s counts every window, 15 s one in fifteen "
    "seconds as the thesis sampled. BE is work done by that of BE running alone. Worst x is the worst window by the "
    "target and recover the longest time in violation, each a mean over seeds. Changes counts reconfigurations. The "
    "axis of nines gives ten times fewer misses the same step; oracles are bounds and not on the Pareto front."
)
TIMELINE_NOTE = (
    "The first seed, as in the thesis' figures 5.3 to 5.7: offered load, tail latency by the target (log; dashed: "
    "the target), BE work by BE alone. Shaded: BE suspended. Bands span the ticks that share a column."
)


def suite_json(results: Sequence[SimOutcome], command: str = "") -> dict[str, object]:
    """The JSON of `rlctl bench`, one scenario by itself and several by name, each with its paired comparisons."""
    by_label = [replace(result, names={}) for result in results]
    by_name = {result.scenario: {**result.as_json(), "paired": _paired_json(result)} for result in by_label}
    origin: dict[str, object] = {"command": command, "rlctl": __version__}
    if len(results) == 1:
        return {**by_name[results[0].scenario], **origin}
    return {"schema": 1, "scenarios": by_name, **origin}


def write_suite_report(results: Sequence[SimOutcome], folder: Path, command: str = "") -> None:
    """Write `result.json`, `report.md`, `index.html`, `pareto.png` and `pareto-SCENARIO.png`.

    The figures of an earlier report in this folder go, which may be of scenarios that this one does not have: those
    that its `result.json` names. The page shows `command`, which gives this report again.

    Raises:
        ConfigError: matplotlib is not installed; JSON and Markdown have been written by then.
        ValueError: No result.
    """
    if not results:
        raise ValueError("a report of nothing")
    folder.mkdir(parents=True, exist_ok=True)
    for figure in list(_earlier(folder)):
        figure.unlink(missing_ok=True)
    write_whole(folder / "result.json", json.dumps(suite_json(results, command), indent=1, allow_nan=False) + "\n")
    write_whole(folder / "report.md", _markdown(results, command))
    write_whole(folder / "index.html", _html(results, folder, command))


def _earlier(folder: Path) -> Iterator[Path]:
    """The figures of a report that stands in a folder; none where no result says of which scenarios they are."""
    try:
        told = json.loads((folder / "result.json").read_text())
        names = list(told["scenarios"]) if "scenarios" in told else [told["scenario"]]
    except (OSError, ValueError, KeyError, TypeError):
        return
    yield from (folder / f"pareto-{name}.png" for name in names)


def _html(results: Sequence[SimOutcome], folder: Path, command: str) -> str:
    style = styles(manager for result in results for manager in result.managers)
    links = " ".join(f'<a href="#{escape(one.scenario)}">{escape(one.scenario)}</a>' for one in results)
    parts = [
        f"<p>{escape(_provenance(results, command))}</p>",
        f"<p>Run again: <code>{escape(command)}</code></p>" if command else "",
        f'<nav aria-label="Scenarios">{links}</nav>',
        _overview(results, style, folder),
        f'<p class="note">{escape(READING)}</p>',
        *(_scenario(result, style, folder) for result in results),
    ]
    return html_page(TITLE, "\n".join(parts))


def _overview(results: Sequence[SimOutcome], style: Styles, folder: Path) -> str:
    """All scenarios in one figure; a single one has its own below."""
    if len(results) == 1:
        (folder / "pareto.png").write_bytes(png(_figure_of(results[0], style)))
        return ""
    overview = draw_suite(results, style)
    (folder / "pareto.png").write_bytes(png(overview))
    return _figure(svg(overview, "All scenarios: QoS against BE throughput"))


def _figure_of(result: SimOutcome, style: Styles) -> Figure:
    return draw_scenario(estimates_of(result), f"{result.scenario}: {result.seeds} seeds, 95 % intervals", style)


def _scenario(result: SimOutcome, style: Styles, folder: Path) -> str:
    figure = _figure_of(result, style)
    (folder / f"pareto-{result.scenario}.png").write_bytes(png(figure))
    parts = [
        f"<p>{escape(result.description)}</p>",
        html_table(summary_rows(result), f"{result.scenario}: all managers"),
        f'<p class="note">{escape(result.caption)}</p>',
        _remarks(result),
        _figure(svg(figure, f"{result.scenario}: QoS against BE throughput"), "single"),
        *(_paired(result, baseline) for baseline in present_baselines(result)),
        _timelines(result),
    ]
    name, inner = escape(result.scenario), "\n".join(part for part in parts if part)
    return f'<section id="{name}">\n<h2>{name}</h2>\n{inner}\n</section>'


def _paired(result: SimOutcome, baseline: str) -> str:
    rows = paired_rows(result, baseline)
    return (
        f"<h3>Against {escape(baseline)}, seed by seed</h3>\n"
        f'{html_table(rows, f"{result.scenario}: against {baseline}")}\n<p class="note">{escape(PAIRED_NOTE)}</p>'
    )


def _timelines(result: SimOutcome) -> str:
    if not result.traces:
        return ""
    figures = "\n".join(
        f"<figure><figcaption>{escape(name)}</figcaption>{timeline_svg(name, run, result.tick_seconds)}</figure>"
        for name, run in result.traces.items()
    )
    unfolded = " open" if len(result.traces) <= OPEN_RUNS else ""
    return (
        f"<details{unfolded}><summary>One run of each manager</summary>\n"
        f'<p class="note">{escape(TIMELINE_NOTE)}</p>\n<div class="runs">{figures}</div></details>'
    )


def _remarks(result: SimOutcome) -> str:
    items = "".join(
        f"<li>{escape(name)}: {escape(remark)}</li>" for name, remarks in result.remarks.items() for remark in remarks
    )
    return f'<ul class="note">{items}</ul>' if items else ""


def _figure(drawing: str, kind: str = "") -> str:
    return f'<div class="{f"box figure {kind}".strip()}" tabindex="0">{drawing}</div>'


def _markdown(results: Sequence[SimOutcome], command: str) -> str:
    lines = [f"# {TITLE}", _provenance(results, command)]
    lines += [f"Run again: `{command}`"] if command else []
    lines += ["![QoS against BE throughput, all scenarios](pareto.png)", READING]
    for result in results:
        lines += [f"## {result.scenario}", result.description, render(summary_rows(result)), result.caption]
        lines += [f"- {name}: {remark}" for name, remarks in result.remarks.items() for remark in remarks]
        lines.append(f"![QoS against BE throughput, {result.scenario}](pareto-{result.scenario}.png)")
        for baseline in present_baselines(result):
            lines += [f"### Against {baseline}, seed by seed", render(paired_rows(result, baseline)), PAIRED_NOTE]
    return "\n\n".join(lines) + "\n"


def _provenance(results: Sequence[SimOutcome], command: str) -> str:
    managers = len(dict.fromkeys(name for result in results for name in result.managers))
    seeds = sorted({result.seeds for result in results})
    return (
        f"{managers} managers, {len(results)} scenario{'s' * (len(results) > 1)}, "
        f"{' or '.join(map(str, seeds))} seeds each, the same for every manager. rlctl {__version__}."
        + ("" if command else " The command was not recorded.")
    )


def _paired_json(result: SimOutcome) -> dict[str, object]:
    return {
        baseline: {one.manager: one.as_json() for one in compare(result, baseline)}
        for baseline in present_baselines(result)
    }
