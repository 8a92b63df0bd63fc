from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents.managers.prm_model import PrmModel, ThresholdBin
from rlctl.envs.errors import ConfigError

BINS = (
    ThresholdBin(low_percent=50, high_percent=100, rows=20, upper={"cpi": 1.1}),
    ThresholdBin(low_percent=150, high_percent=200, rows=20, upper={"cpi": 1.3}, lower={"mb": 4.0}),
)
MODEL = PrmModel(lc_cpus=1, lcutilmax_percent=180, bins=BINS)


@pytest.mark.parametrize(
    ("util", "expected"),
    [(0.0, None), (49.9, None), (50.0, 1.1), (99.0, 1.1), (120.0, 1.1), (150.0, 1.3), (199.0, 1.3), (900.0, 1.3)],
)
def test_bin_choice(util: float, expected: float | None) -> None:
    # Below the first: no detection; inside: that bin; between: the previous; above the last: the last (eris).
    bin_ = MODEL.threshold(util)
    assert (bin_.upper["cpi"] if bin_ else None) == expected


def test_a_model_without_bins_judges_nothing() -> None:
    assert PrmModel(lc_cpus=1, lcutilmax_percent=100).threshold(80.0) is None


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    MODEL.write(tmp_path / "deep" / "threshold.json")
    assert PrmModel.load(tmp_path / "deep" / "threshold.json") == MODEL


@given(st.floats(1e-12, 1e12))
def test_every_number_survives_the_file(tmp_path_factory: pytest.TempPathFactory, value: float) -> None:
    path = tmp_path_factory.mktemp("model") / "threshold.json"
    bin_ = ThresholdBin(low_percent=50, high_percent=100, rows=1, upper={"lc_cpu_seconds_per_request": value})
    model = PrmModel(lc_cpus=1, lcutilmax_percent=value, bins=(bin_,))
    model.write(path)
    assert PrmModel.load(path) == model


def test_an_old_model_is_not_kept_in_silence(tmp_path: Path) -> None:
    path = tmp_path / "threshold.json"
    MODEL.write(path)
    with pytest.raises(ConfigError, match=r"threshold\.json: exists"):
        MODEL.write(path)
    PrmModel(lc_cpus=2, lcutilmax_percent=10).write(path, overwrite=True)
    assert PrmModel.load(path).lc_cpus == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"lc_cpus": 1}', "lcutilmax_percent"),
        ('{"lc_cpus": 1, "lcutilmax_percent": -3}', "lcutilmax_percent"),
        ('{"lc_cpus": 1, "lcutilmax_percent": 3, "version": 2}', "version"),
        ('{"lc_cpus": 1, "lcutilmax": 3}', "lcutilmax_percent"),
        ('{"lc_cpus": 1, "lcutilmax_percent": NaN}', "lcutilmax_percent"),
        ("nonsense", "key: value"),
    ],
)
def test_a_wrong_file_is_told_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "threshold.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told) as caught:
        PrmModel.load(path)
    assert "\n" not in str(caught.value)


def test_an_absent_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        PrmModel.load(tmp_path / "none.json")


def test_bins_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="must ascend"):
        PrmModel(lc_cpus=1, lcutilmax_percent=100, bins=BINS[::-1])
