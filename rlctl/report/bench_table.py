"""What a benchmark leaves in its report folder: table, figures, tick logs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rlctl.agents.catalogue import label
from rlctl.bench.live_repeats import LiveOutcome, results_as_json
from rlctl.bench.rounds import LiveRounds
from rlctl.bench.score import LiveRun
from rlctl.envs.errors import ConfigError
from rlctl.envs.whole_file import write_json
from rlctl.log.record import write_ticks
from rlctl.report.by_load import draw_by_load
from rlctl.report.figures import png
from rlctl.report.page import Grid, csv_text, latex, render
from rlctl.report.pareto import draw_pareto, styles
from rlctl.report.plots import draw_live_run
from rlctl.report.table import ROUNDS_LEGEND, live_hosts_rows, round_rows, score_rows


def write_report(outcome: LiveOutcome, folder: Path) -> None:
    """Write `result.json`, `table.{md,csv,tex}`, `summary.png`, `loads.png`, and `MANAGER-REPEAT.{png,jsonl}`.

    Of several hosts, the runs of each are in a folder with its name. The runs of an earlier report in this folder go,
    those that its `result.json` names.

    Raises:
        ConfigError: matplotlib is not installed; table, JSON and tick logs have been written by then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file in list(_earlier(folder)):
        file.unlink(missing_ok=True)
    write_json(folder / "result.json", results_as_json([outcome]))
    told = [f"* {label(name)}: {one}" for name, remarks in outcome.remarks.items() for one in remarks]
    told += [f"* {note}" for note in outcome.notes]
    texts = [tables(outcome), outcome.caption, *round_tables([outcome.by_round]), "\n".join(told)]
    (folder / "table.md").write_text("\n\n".join(texts).rstrip() + "\n")
    rows = score_rows(outcome.scores, outcome.plan.weights)
    (folder / "table.csv").write_text(csv_text(rows))
    (folder / "table.tex").write_text(latex([Grid(rows, outcome.plan.scenario.name)]))
    runs = _runs_by_path(outcome, folder)
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


def _earlier(folder: Path) -> Iterator[Path]:
    """The runs of a live report that stands in a folder; none where no result says which they are."""
    try:
        told = json.loads((folder / "result.json").read_text())
        if told["plant"] != "host":
            return
        places = [folder, *(folder / Path(host).name for host in told.get("hosts", {}))]
        runs = [f"{label(name)}-{number}" for name in told["managers"] for number in range(1, told["repeats"] + 1)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    for place in places:
        for run in runs:
            yield from (place / f"{run}.jsonl", place / f"{run}.png")


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
