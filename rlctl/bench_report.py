"""What a benchmark leaves in its report folder: table, figures, tick logs."""

from __future__ import annotations

from pathlib import Path

from rlctl.agents.catalogue import label
from rlctl.bench import Outcome
from rlctl.bench_results import write_json
from rlctl.plots import plot_run, plot_summary
from rlctl.record import write_ticks
from rlctl.score import Run
from rlctl.table import render, score_rows

__all__ = ["write_report"]


def write_report(outcome: Outcome, folder: Path) -> None:
    """Write `result.json`, `table.md`, `summary.png`, and for every run `MANAGER-REPEAT.{png,jsonl}`.

    Raises:
        RlctlError: matplotlib is not installed; table, JSON and tick logs have been written by then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_json([outcome], folder / "result.json")
    scores = outcome.scores
    (folder / "table.md").write_text(f"{render(score_rows(scores))}\n\n{outcome.caption}\n")
    named = _named(outcome)
    for name, run in named.items():
        write_ticks(folder / f"{name}.jsonl", run.ticks)
    scenario = outcome.plan.scenario
    plot_summary(
        {label(name): one for name, one in scores.items()},
        folder / "summary.png",
        f"{scenario.name}: {outcome.plan.repeats} x {scenario.duration_seconds:g} s, "
        f"shield {outcome.plan.profile.name} where shielded",
    )
    for name, run in named.items():
        plot_run(run, folder / f"{name}.png", len(scenario.be.cpus))


def _named(outcome: Outcome) -> dict[str, Run]:
    seen: dict[str, int] = {}
    named: dict[str, Run] = {}
    for run in outcome.runs:
        seen[run.manager] = seen.get(run.manager, 0) + 1
        named[f"{label(run.manager)}-{seen[run.manager]}"] = run
    return named
