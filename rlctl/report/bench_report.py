"""What a benchmark leaves in its report folder: tables, figures and data; simulated a page, live its tick logs."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl import __version__
from rlctl.agents.catalogue import label
from rlctl.bench.comparison import compare, present_baselines
from rlctl.bench.live_repeats import LiveOutcome, results_as_json
from rlctl.bench.rounds import LiveRounds
from rlctl.bench.score import LiveRun, SimOutcome
from rlctl.envs.errors import ConfigError
from rlctl.envs.run_metrics import METRICS
from rlctl.envs.whole_file import write_whole
from rlctl.log.kept import write_ticks
from rlctl.report.figures import png, svg
from rlctl.report.page import Fold, Grid, Heading, Note, Part, Picture, csv_text, html_page, latex, markdown, render
from rlctl.report.plots import draw_by_load, draw_live_run, draw_pareto, draw_windows, estimates_of, styles
from rlctl.report.table import (
    ROUNDS_LEGEND,
    aggregate_rows,
    live_hosts_rows,
    paired_rows,
    round_rows,
    score_rows,
    summary_rows,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


TITLE = "rlctl: managers in the simulator"

OPEN_RUNS = 8
"""More timelines than this are folded away until the reader opens them."""

PAIRED_NOTE = (
    "Differences per seed, the seeds being the same for both. t: Student's t interval; bootstrap: BCa over seeds, "
    "expanded for few of them. Each interval is for its own comparison; with many of them one in twenty misses. * both "
    "leave out zero, and Student's test is clear after Holm's correction for all differences of the table."
)
AGGREGATE_NOTE = (
    "IQM: mean of the middle half of all runs. P: how often a run has more than one of the baseline on the same "
    "scenario, equal ones by half (Agarwal et al. 2021). Intervals: bootstrap over seeds within each scenario."
)
READING = (
    "QoS is the share of windows whose tail latency held the target: 1 s counts every window, 15 s one in fifteen "
    "seconds as the thesis sampled. BE is work done by that of BE running alone. Worst x is the worst window by the "
    "target and recover the longest time in violation, each a mean over seeds. Changes counts reconfigurations. The "
    "axis of nines gives ten times fewer misses the same step; oracles are bounds and not on the Pareto front."
)
TIMELINE_NOTE = (
    "The first seed, as in the thesis' figures 5.3 to 5.7: offered load, tail latency by the target (log; dashed: "
    "the target), BE work by BE alone. Shaded: BE suspended."
)


def suite_json(results: Sequence[SimOutcome], command: str = "", against: str = "") -> dict[str, object]:
    """The JSON of `rlctl bench`, one scenario by itself and several by name, each with its paired comparisons."""
    by_name: dict[str, dict[str, object]] = {}
    for result in results:
        baselines = present_baselines(result, against)
        paired = {name: {one.manager: one.as_json() for one in compare(result, name)} for name in baselines}
        by_name[result.scenario] = {**replace(result, names={}).as_json(), "paired": paired}
    origin: dict[str, object] = {"command": command, "rlctl": __version__}
    if len(results) == 1:
        return {**by_name[results[0].scenario], **origin}
    return {"schema": 1, "scenarios": by_name, **origin}


def write_suite_report(results: Sequence[SimOutcome], folder: Path, command: str = "", against: str = "") -> None:
    """Write `result.json`, `runs.csv`, `report.md`, `tables.tex`, `index.html` and `pareto.png`.

    Of several scenarios each has a `pareto-SCENARIO.png`, too. Differences are from the manager `against`, or from the
    default baselines.

    The files of an earlier report in this folder go, those that its `result.json` names. The page shows `command`,
    which gives this report again.

    Raises:
        ConfigError: matplotlib is not installed; the JSON has been written by then.
        ValueError: No result.
    """
    if not results:
        raise ValueError("a report of nothing")
    figures = {"pareto.png", *(_figure_file(results, result) for result in results)}
    files = "runs.csv", "report.md", "tables.tex", "index.html", *sorted(figures)
    _begin(folder, suite_json(results, command, against), files)
    write_whole(folder / "runs.csv", csv_text(_run_rows(results)))
    parts = list(_parts(results, folder, command, against))
    write_whole(folder / "tables.tex", latex(parts))
    write_whole(folder / "report.md", f"# {TITLE}\n\n{markdown(parts)}\n")
    write_whole(folder / "index.html", html_page(TITLE, parts))


def _begin(folder: Path, result: dict[str, object], files: Iterable[str]) -> None:
    """Write a report's `result.json`, which names the report's other files, in place of the last report."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "result.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # there is none, or of no report
        for earlier in (folder / name for name in json.loads(file.read_text())["files"]):
            if earlier.resolve().is_relative_to(folder.resolve()):  # else somebody else wrote that name there
                earlier.unlink(missing_ok=True)
    write_whole(file, json.dumps({**result, "files": list(files)}, indent=1, allow_nan=False) + "\n")


def _run_rows(results: Sequence[SimOutcome]) -> Iterator[Sequence[object]]:
    """Every run of every manager with all its metrics; the same number is the same seed."""
    yield ("scenario", "manager", "seed", *METRICS)
    for result in results:
        for name, metrics in result.managers.items():
            columns = (metrics[metric].tolist() for metric in METRICS)
            yield from ((result.scenario, name, number, *row) for number, row in enumerate(zip(*columns, strict=True)))


def _parts(results: Sequence[SimOutcome], folder: Path, command: str, against: str) -> Iterator[Part]:
    """The report; figures are written to the folder as they come."""
    style = styles(manager for result in results for manager in result.managers)
    yield _provenance(results, command)
    if command:
        yield f"Run again: {command}"
    if len(results) > 1:
        figure = draw_pareto({result.scenario: estimates_of(result) for result in results}, style)
        yield _picture("QoS against BE throughput, all scenarios", figure, folder / "pareto.png")
    yield Note(READING)
    for baseline in present_baselines(results[0], against)[:1]:
        yield Heading("Together")
        yield Grid(aggregate_rows(results, baseline), "all scenarios and seeds")
        yield Note(AGGREGATE_NOTE)
    for result in results:
        yield from (Heading(result.scenario), result.description)
        yield Grid(summary_rows(result), f"{result.scenario}: all managers")
        yield Note(result.caption)
        yield from (Note(f"{name}: {remark}") for name, remarks in result.remarks.items() for remark in remarks)
        figure = draw_pareto({f"{result.scenario}: {result.seeds} seeds, 95 % intervals": estimates_of(result)}, style)
        yield _picture(f"QoS against BE throughput, {result.scenario}", figure, folder / _figure_file(results, result))
        for baseline in present_baselines(result, against):
            yield Heading(f"Against {baseline}, seed by seed", 3)
            yield Grid(paired_rows(result, baseline), f"{result.scenario}: against {baseline}")
            yield Note(PAIRED_NOTE)
        if result.traces:
            runs = [
                Picture(name, svg(draw_windows(name, run, result.tick_seconds), f"{result.scenario}: {name}"))
                for name, run in result.traces.items()
            ]
            yield Fold("One run of each manager", TIMELINE_NOTE, runs, is_open=len(runs) <= OPEN_RUNS)


def _figure_file(results: Sequence[SimOutcome], result: SimOutcome) -> str:
    return f"pareto-{result.scenario}.png" if len(results) > 1 else "pareto.png"


def _picture(label: str, figure: Figure, file: Path) -> Picture:
    file.write_bytes(png(figure))
    return Picture(label, svg(figure, label), file.name)


def _provenance(results: Sequence[SimOutcome], command: str) -> str:
    managers = len(dict.fromkeys(name for result in results for name in result.managers))
    seeds = sorted({result.seeds for result in results})
    return (
        f"{managers} managers, {len(results)} scenario{'s' * (len(results) > 1)}, "
        f"{' or '.join(map(str, seeds))} seeds each, the same for every manager. rlctl {__version__}."
        + ("" if command else " The command was not recorded.")
    )


def write_report(outcome: LiveOutcome, folder: Path) -> None:
    """Write `result.json`, `table.{md,csv,tex}`, `summary.png`, `loads.png`, and `MANAGER-REPEAT.{png,jsonl}`.

    Of several hosts, the runs of each are in a folder with its name. The files of an earlier report in this folder go,
    those that its `result.json` names.

    Raises:
        ConfigError: matplotlib is not installed; table, JSON and tick logs have been written by then.
    """
    runs = _runs_by_path(outcome, folder)
    files = ["table.md", "table.csv", "table.tex", "summary.png", "loads.png"]
    files += [f"{path.relative_to(folder)}.{kind}" for path in runs for kind in ("jsonl", "png")]
    _begin(folder, results_as_json([outcome]), files)
    told = [f"* {label(name)}: {one}" for name, remarks in outcome.remarks.items() for one in remarks]
    told += [f"* {note}" for note in outcome.notes]
    texts = [tables(outcome), outcome.caption, *round_tables([outcome.by_round]), "\n".join(told)]
    (folder / "table.md").write_text("\n\n".join(texts).rstrip() + "\n")
    rows = score_rows(outcome.scores, outcome.plan.weights)
    (folder / "table.csv").write_text(csv_text(rows))
    (folder / "table.tex").write_text(latex([Grid(rows, outcome.plan.scenario.name)]))
    for path, run in runs.items():
        path.parent.mkdir(exist_ok=True)
        write_ticks(path.with_name(f"{path.name}.jsonl"), run.ticks, run.header)
    scenario = outcome.plan.scenario
    both = {label(name): (one.be_throughput_percent, one.qos_guarantee_percent) for name, one in outcome.scores.items()}
    title = (
        f"{scenario.name}: {outcome.plan.repeats} x {scenario.duration_seconds:g} s, "
        f"shield {outcome.plan.profile.name} where shielded"
    )
    (folder / "summary.png").write_bytes(png(draw_pareto({title: both}, styles(both))))
    (folder / "loads.png").write_bytes(png(draw_by_load(list(runs.values()), title)))
    for path, run in runs.items():
        path.with_name(f"{path.name}.png").write_bytes(png(draw_live_run(run, len(scenario.be.cpus))))


def tables(outcome: LiveOutcome) -> str:
    """All managers; and once more host by host where there are several."""
    weights = outcome.plan.weights
    table = render(score_rows(outcome.scores, weights))
    if len(outcome.hosts) == 1:
        return table
    header = score_rows({}, weights)[0]
    rows = [
        (f"{host}: {first}", *others)
        for host, of_host in outcome.hosts.items()
        for first, *others in score_rows(of_host.scores, weights)[1:]
    ]
    return f"{table}\n\n{render([('host: manager', *header[1:]), *rows])}"


def round_tables(results: Sequence[LiveRounds], against: str = "") -> Iterator[str]:
    """A table for each live host, what to read beside it, and one of all hosts where there are several.

    One round has no interval, and so no differences.

    Raises:
        ConfigError: Nobody of that name was measured.
    """
    for one in results:
        if against and against not in one.managers:
            raise ConfigError(f"--against {against}: was not measured on {one.scenario}")
        baselines = one.baselines(against) if len(one.rounds) > 1 else ()
        yield f"{one.scenario}\n{render(round_rows(one, baselines))}"
        if note := _marked_note(one):
            yield note
    if any(len(one.rounds) > 1 for one in results):
        yield ROUNDS_LEGEND
    if len(results) > 1:
        yield render(live_hosts_rows(results))


def _marked_note(one: LiveRounds) -> str:
    if not one.marked:
        return ""
    numbers = ", ".join(map(str, one.marked))
    return f"The LC alone (frozen) missed windows in rounds {numbers}: in the means, not in the differences."


def _runs_by_path(outcome: LiveOutcome, folder: Path) -> dict[Path, LiveRun]:
    """Each run by its files' path without suffix, `MANAGER-REPEAT`, in a folder for each of several hosts."""
    paths: dict[Path, LiveRun] = {}
    for host, of_host in outcome.hosts.items():
        repeats: Counter[str] = Counter()
        place = folder / host if len(outcome.hosts) > 1 else folder
        for run in of_host.runs:
            repeats[run.manager] += 1
            paths[place / f"{label(run.manager)}-{repeats[run.manager]}"] = run
    return paths
