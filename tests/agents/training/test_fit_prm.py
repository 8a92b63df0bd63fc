import json
from pathlib import Path

import numpy as np
import pytest

from rlctl.agents.managers.prm_model import Method, PrmModel
from rlctl.agents.training.fit_prm import PrmRow, fence, fit, read_rows
from rlctl.cli import main
from rlctl.envs.errors import ConfigError


@pytest.fixture(scope="module")
def normal() -> np.ndarray:
    return np.random.default_rng(7).normal(1.0, 0.05, 200)


@pytest.fixture(scope="module")
def two_modes() -> np.ndarray:
    """95 % around 1.0, 5 % around 2.0: the upper mode is no longer normal."""
    random = np.random.default_rng(7)
    return np.concatenate([random.normal(1.0, 0.02, 190), random.normal(2.0, 0.02, 10)])


@pytest.mark.slow
def test_strict_does_not_go_beyond_what_was_seen(normal: np.ndarray) -> None:
    assert 0.9 <= np.mean(normal <= fence(normal.tolist(), "gmm-strict", 4.0)) <= 1.0
    assert fence(normal.tolist(), "gmm-strict", 4.0) <= normal.max()


@pytest.mark.slow
def test_strict_leaves_out_a_rare_upper_mode(two_modes: np.ndarray) -> None:
    # Proposals: the lower mode leaves out 5 % (allowed), the upper none: the larger allowed share wins.
    assert 1.0 < fence(two_modes.tolist(), "gmm-strict", 4.0) < 1.2


def test_origin_passes_over_modes_of_a_tenth(two_modes: np.ndarray) -> None:
    # From the top 5 % is not above a tenth, with the lower mode it is: 1.0 + 4 * 0.02.
    assert 1.0 < fence(two_modes.tolist(), "gmm-origin", 4.0) < 1.2


def test_a_lower_fence_mirrors_an_upper_one(two_modes: np.ndarray) -> None:
    upper = fence(two_modes.tolist(), "gmm-strict", 4.0)
    assert fence((4.0 - two_modes).tolist(), "gmm-strict", 4.0, above=False) == pytest.approx(4.0 - upper, abs=0.05)


@pytest.mark.parametrize("method", ["gmm-strict", "gmm-origin"])
def test_the_fence_does_not_depend_on_the_unit(two_modes: np.ndarray, method: Method) -> None:
    # Seconds per request are 1e-5 in size; sklearn's absolute variance floor would swamp them.
    small = fence((two_modes * 4e-5).tolist(), method, 4.0)
    assert small == pytest.approx(fence(two_modes.tolist(), method, 4.0) * 4e-5, rel=1e-6)


def test_a_constant_is_its_own_fence() -> None:
    assert fence([1.5] * 20, "gmm-strict", 4.0) == 1.5
    assert fence([0.0] * 20, "gmm-strict", 4.0) == 0.0


def test_a_few_distinct_values_are_no_problem() -> None:
    assert 1.0 <= fence([1.0] * 10 + [1.1] * 10, "gmm-strict", 4.0) <= 1.1


def test_fit_is_reproducible_and_bins_by_use(normal: np.ndarray) -> None:
    rows = [PrmRow(60.0, {"cpi": value}) for value in normal[:60]] + [
        PrmRow(120.0, {"cpi": 2 * v}) for v in normal[:60]
    ]
    rows += [PrmRow(30.0, {"cpi": 9.0})] * 20 + [PrmRow(170.0, {"cpi": 1.0})] * 3
    model = fit(rows, lc_cpus=1)
    assert model == fit(rows, lc_cpus=1)
    # 30 % is below the first bin (half of the LC's CPUs), 170 % has too few rows.
    assert [(bin_.low_percent, bin_.high_percent, bin_.rows) for bin_ in model.bins] == [(50, 100, 60), (100, 150, 60)]
    assert model.bins[1].upper["cpi"] == pytest.approx(2 * model.bins[0].upper["cpi"], rel=0.01)
    assert model.lcutilmax_percent == 170.0


def test_bins_reach_half_to_one_beyond_all() -> None:
    rows = [PrmRow(float(util), {"cpi": 1.0}) for util in range(0, 2000, 2)]
    model = fit(rows, lc_cpus=17)
    assert (model.bins[0].low_percent, model.bins[-1].high_percent, len(model.bins)) == (850, 1800, 19)


def test_timed_rows_are_averaged_but_the_maximum(normal: np.ndarray) -> None:
    rows = [PrmRow(60.0 + index % 2, {"cpi": float(v)}, float(index)) for index, v in enumerate(normal)]
    model = fit(rows, lc_cpus=1, interval_seconds=10.0)
    assert model.bins[0].rows == 20
    assert model.bins[0].upper["cpi"] < fence(normal.tolist(), "gmm-strict", 4.0)
    assert model.lcutilmax_percent == 61.0


def test_csv_with_missing_cells(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("time_seconds,lc_cpus,cpi,comment\n1,0.6,1.1,x\n2,0.7,,y\n3,,1.2,z\n")
    assert read_rows(path) == [PrmRow(60.0, {"cpi": 1.1}, 1.0), PrmRow(70.0, {}, 2.0)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cpi\n1\n", "rows.csv:1: has neither"),
        ("lc_cpus,cpi\n0.5,high\n", "rows.csv:2: column cpi: 'high'"),
        ("lc_cpus,cpi\n0.5,nan\n", "rows.csv:2: column cpi: 'nan'"),
        ("lc_cpus,cpi\n", "holds no record"),
        ("", "has neither"),
        ('lc_cpus,comment\n0.5,"' + "x" * 140_000, "is no CSV: field larger than"),
    ],
)
def test_a_wrong_csv_is_told_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told):
        read_rows(path)


def tick(now: float, *, frozen: bool, be_cpus: float, **readings: float) -> str:
    said: dict[str, object] = {name: {"value": value, "age": 0.0} for name, value in readings.items()}
    said |= {"be_cpus": {"value": be_cpus, "age": 0.0}, "cpi": {"missing": "not-supported", "detail": ""}}
    perf = {"lc_llc_load_misses": 5.0, "lc_instructions": 1000.0}
    counters = {name: {"value": value, "age": 0} for name, value in perf.items()}
    before = {"quota_cpus": None, "cpuset_cpus": 1, "frozen": frozen}
    return json.dumps({"time_seconds": now, "readings": said, "counters": counters, "before": before})


def test_only_lc_alone_counts_of_tick_log(tmp_path: Path) -> None:
    path = tmp_path / "ticks.jsonl"
    lines = [
        tick(1.0, frozen=True, be_cpus=0.0, lc_cpus=0.5, lc_cpu_seconds_per_request=4e-5),
        tick(2.0, frozen=False, be_cpus=0.4, lc_cpus=0.6),
        tick(3.0, frozen=False, be_cpus=0.01, lc_cpus=0.7),
    ]
    path.write_text("\n".join([*lines, lines[0][:30]]))
    assert read_rows(path) == [
        PrmRow(50.0, {"lc_cpu_seconds_per_request": 4e-5, "mpki": 5.0}, 1.0),
        PrmRow(70.0, {"mpki": 5.0}, 3.0),
    ]
    told = []
    path.write_text("\n".join([lines[0], lines[0][:30], lines[2]]) + "\n")  # the service was killed, and began again
    assert [row.time_seconds for row in read_rows(path, told.append)] == [1.0, 3.0]
    assert [damage.number for damage in told] == [2]
    assert read_rows(tmp_path) == read_rows(path), "the directory of the log"
    path.write_text("\n".join([lines[0], "{}", lines[1]]))
    with pytest.raises(ConfigError, match=r"ticks\.jsonl:2"):
        read_rows(path)
    path.write_text(lines[1])
    with pytest.raises(ConfigError, match="--policy frozen"):
        read_rows(path)


def test_a_real_tick_log_can_be_fitted(tmp_path: Path) -> None:
    from rlctl.agents.catalogue import build
    from rlctl.log.record import TickLog
    from rlctl.loop.control import Controller
    from tests.doubles.plant import FakePlant

    recorder = TickLog(tmp_path / "ticks.jsonl")
    Controller(FakePlant(loads=(0.7, 0.8, 0.9)), build("frozen"), None, recorder).run(ticks=30)
    recorder.close()
    rows = read_rows(tmp_path / "ticks.jsonl")
    assert len(rows) == 30
    assert fit(rows, lc_cpus=1, interval_seconds=1.0).lcutilmax_percent == pytest.approx(76.5)


def test_the_command_writes_and_refuses_to_replace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "rows.csv", tmp_path / "threshold.json"
    path.write_text("lc_cpus,cpi\n" + "".join(f"0.6,{1 + i % 7 / 100}\n" for i in range(40)))
    words = ["fit-prm", str(path), "--lc-cpus", "1", "--out", str(out)]
    assert main(words) == 0
    assert PrmModel.load(out) == fit(read_rows(path), lc_cpus=1)
    assert main(words) == 78
    assert "exists" in capsys.readouterr().err
    assert PrmModel.load(out).span_sigmas == 4.0
    assert main([*words, "--span", "3", "--overwrite"]) == 0
    assert PrmModel.load(out).span_sigmas == 3.0


def test_no_rows_and_impossible_parameters_are_refused() -> None:
    with pytest.raises(ConfigError, match="frozen"):
        fit([], lc_cpus=1)
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="positive"):
            fit([PrmRow(50.0)], lc_cpus=1, span_sigmas=wrong)


def test_without_sklearn_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlctl.envs.errors.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"rlctl\[baselines\]"):
        fence([1.0, 1.1, 1.2], "gmm-strict", 4.0)
