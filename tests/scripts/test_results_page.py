"""docs/results.md holds what the stored results say, and no figure typed by hand."""

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(tmp_path: Path) -> dict[str, Any]:
    """The names of scripts/results, with folders of its own to write to."""
    found = runpy.run_path(str(ROOT / "scripts/results"), run_name="results")
    shutil.copytree(ROOT / "docs/results", tmp_path / "results")
    found["pages"].__globals__.update(STORED=tmp_path / "results", RUNS=tmp_path / "results/runs.json")
    return found


def test_the_page_is_what_the_stored_results_make(script: dict[str, Any]) -> None:
    runs = json.loads((ROOT / "docs/results/runs.json").read_text())
    told = "the pages are not what docs/results/*.json make; run `scripts/results page`"
    for path, text in script["pages"](runs).items():
        kept = ROOT / "docs" / ("results.md" if path.name == "results.md" else f"results/{path.name}")
        assert text == kept.read_text(), told


def test_every_stored_result_is_on_the_page(script: dict[str, Any]) -> None:
    runs = json.loads((ROOT / "docs/results/runs.json").read_text())
    stored = {path.stem for path in (ROOT / "docs/results").glob("*.json")} - {"runs"}
    assert set(runs) == stored <= set(script["PAGES"])
    pages = {name: (ROOT / f"docs/results/{name}.md").read_text() for name in runs}
    assert all(f"Written by `{run['command']}`" in pages[name] for name, run in runs.items())
    figures = {f"results-{name}.png" for name in runs if f"figures/results-{name}.png" in pages[name]}
    assert figures
    assert all((ROOT / "docs/figures" / name).exists() for name in figures)


@pytest.mark.parametrize("policy", ["ppo", "dqn"])
def test_card_of_shipped_bundle_has_scores_of_table(policy: str) -> None:
    """`rlctl evaluate BUNDLE --shield measured --write-card` writes them where what a policy sees has changed."""
    suite = json.loads((ROOT / "docs/results/suite.json").read_text())["scenarios"]
    scores = json.loads((ROOT / f"configs/bundles/{policy}/card.json").read_text())["scores"]
    assert scores.keys() == suite.keys()
    for name, one in suite.items():
        row, (score,) = one["managers"][policy], scores[name].values()
        assert score["seeds"] == one["seeds"]
        for metric in ("qos_guarantee_percent", "be_throughput_percent"):
            assert score[metric]["mean"] == pytest.approx(row[metric]["mean"], abs=1e-4)


def test_live_result_is_shown_as_written(script: dict[str, Any], tmp_path: Path) -> None:
    result = json.loads((ROOT / "docs/results/live-nginx.json").read_text())
    result["managers"]["ppo"]["be_throughput_percent"]["mean"] = 12.3
    written = tmp_path / "out.json"
    written.write_text(json.dumps(result, indent=1))
    script["store"]("live-nginx", written, 1234.0, "2030-01-02", "abc")
    pages = script["pages"](json.loads((tmp_path / "results/runs.json").read_text()))
    page = pages[tmp_path / "results/live-nginx.md"]
    assert "| ppo              | 95.0 (89.5-97.7) |  12.3 (5.1-10.5) |" in page
    assert "on 2030-01-02 in 21 min on" in page


def test_results_of_other_code_are_listed(script: dict[str, Any], tmp_path: Path) -> None:
    digest = script["code_digest"]
    here = digest(ROOT, live=False)
    runs = {"suite": {"code": here}, "tuned": {"code": "0" * 12}, "live-nginx": {"code": here}, "capped": {}}
    assert script["out_of_date"](runs) == {"tuned": "0" * 12, "live-nginx": here, "capped": "unknown"}
    for folder in ("safety", "envs/host"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "law.py").write_text("x = 1\n")
    before = digest(tmp_path, live=False)
    (tmp_path / "safety/law.py").write_text('"""What it is."""\nx = 1  # and why\n')
    (tmp_path / "envs/host/law.py").write_text("x = 2\n")
    assert digest(tmp_path, live=False) == before, "no comment changes it, nor code that it does not run"
    (tmp_path / "safety/law.py").write_text("x = 2\n")
    assert digest(tmp_path, live=False) != before
