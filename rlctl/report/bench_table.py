"""What a benchmark leaves in its report folder: table, figures, tick logs."""

from __future__ import annotations

from pathlib import Path

from rlctl.agents.catalogue import label
from rlctl.bench.hosts import HostsOutcome
from rlctl.bench.live import Outcome
from rlctl.bench.results import results_as_json
from rlctl.bench.score import LiveRun
from rlctl.envs.whole_file import write_json
from rlctl.loop.record import write_ticks
from rlctl.report.plots import plot_run, plot_summary
from rlctl.report.table import render, score_rows

__all__ = ["tables", "write_report"]


def write_report(outcome: Outcome | HostsOutcome, folder: Path) -> None:
    """Write `result.json`, `table.md`, `summary.png`, and for every run `MANAGER-REPEAT.{png,jsonl}`.

    Of several hosts, the runs of each are in a folder with its name.

    Raises:
        RlctlError: matplotlib is not installed; table, JSON and tick logs have been written by then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "result.json", results_as_json([outcome]))
    scores = outcome.scores
    (folder / "table.md").write_text(f"{tables(outcome)}\n\n{outcome.caption}\n")
    named = {path: run for place, one in _by_folder(outcome, folder) for path, run in _named(one, place).items()}
    for path, run in named.items():
        path.parent.mkdir(exist_ok=True)
        write_ticks(path.with_name(f"{path.name}.jsonl"), run.ticks)
    scenario = outcome.plan.scenario
    plot_summary(
        {label(name): one for name, one in scores.items()},
        folder / "summary.png",
        f"{scenario.name}: {outcome.plan.repeats} x {scenario.duration_seconds:g} s, "
        f"shield {outcome.plan.profile.name} where shielded",
    )
    for path, run in named.items():
        plot_run(run, path.with_name(f"{path.name}.png"), len(scenario.be.cpus))


def tables(outcome: Outcome | HostsOutcome) -> str:
    """All managers; and once more host by host where there are several."""
    table = render(score_rows(outcome.scores))
    if isinstance(outcome, Outcome) or len(outcome.hosts) == 1:
        return table
    header = score_rows({})[0]
    rows = [
        (f"{host}: {first}", *others)
        for host, one in outcome.hosts.items()
        for first, *others in score_rows(one.scores)[1:]
    ]
    return f"{table}\n\n{render([('host: manager', *header[1:]), *rows])}"


def _by_folder(outcome: Outcome | HostsOutcome, folder: Path) -> list[tuple[Path, Outcome]]:
    if isinstance(outcome, Outcome):
        return [(folder, outcome)]
    return [(folder / name if len(outcome.hosts) > 1 else folder, one) for name, one in outcome.hosts.items()]


def _named(outcome: Outcome, folder: Path) -> dict[Path, LiveRun]:
    seen: dict[str, int] = {}
    named: dict[Path, LiveRun] = {}
    for run in outcome.runs:
        seen[run.manager] = seen.get(run.manager, 0) + 1
        named[folder / f"{label(run.manager)}-{seen[run.manager]}"] = run
    return named
