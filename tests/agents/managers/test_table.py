"""The table of a sweep: what it gives between loads, and what a file must be."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rlctl.agents.catalogue import build
from rlctl.agents.managers.table import Level, QuotaTable, Table
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.errors import ConfigError, PolicyError
from rlctl.envs.observation import Observation
from rlctl.envs.telemetry import Telemetry

Drive = Callable[..., list[Allocation]]
Tell = Callable[..., Telemetry]

TWO = Limits(cpus=2)
LEVELS = ((0.2, 2.0, 2), (0.4, 0.75, 2), (0.6, 0.5, 1), (0.8, 0.0, 1))
FULL, WIDE, ONE_CPU = Allocation(UNLIMITED, 2), Allocation(0.75, 2), Allocation(0.5, 1)


def written(path: Path, **changes: object) -> Path:
    table = QuotaTable(
        source="a test",
        target_milliseconds=1000.0,
        max_load_rps=500.0,
        be_weight="equal",
        lc_cpus=1.0,
        be_cpus=2,
        levels=tuple(Level(load_ratio=load, quota_cpus=quota, cpuset_cpus=cpus) for load, quota, cpus in LEVELS),
    )
    table.model_copy(update=changes).write(path)
    return path


@pytest.mark.parametrize(
    ("load", "given"),
    [
        (0.05, FULL),  # the LC needs less than at the lowest load that was swept
        (0.2, FULL),
        (0.21, WIDE),  # never more than the neighbour with the lower quota held
        (0.4, WIDE),
        (0.5, ONE_CPU),
        (0.6, ONE_CPU),
        (0.61, TWO.safe),
        (0.8, TWO.safe),
        (0.81, TWO.safe),  # above all that were swept
        (None, TWO.safe),
    ],
)
def test_between_two_loads_the_lower_quota_counts(
    drive: Drive, tell: Tell, load: float | None, given: Allocation
) -> None:
    readings = {} if load is None else {"load_ratio": load}
    assert drive(Table(levels=LEVELS), TWO, [tell(0, **readings)]) == [given]


def test_larger_quota_on_fewer_cpus_takes_neither_more(drive: Drive, tell: Tell) -> None:
    table = Table(levels=((0.2, 0.4, 2), (0.4, 1.0, 1)))
    assert drive(table, TWO, [tell(0, load_ratio=0.3)]) == [Allocation(0.4, 1)]


def test_without_any_level_nothing_held(drive: Drive, tell: Tell) -> None:
    assert drive(Table(levels=()), TWO, [tell(0, load_ratio=0.1)]) == [TWO.safe]


def test_file_gives_levels_it_was_written_with(drive: Drive, tell: Tell, tmp_path: Path) -> None:
    table = Table(file=str(written(tmp_path / "t.yaml")))
    assert table.levels == LEVELS
    assert "a test" in table.remarks[0]
    assert drive(table, TWO, [tell(0, slack=0.5, load_ratio=0.5)]) == [ONE_CPU]


def test_file_changes_digest_when_its_levels_change(tmp_path: Path) -> None:
    path = str(written(tmp_path / "t.yaml"))
    before = Table(file=path).digest
    written(tmp_path / "t.yaml", levels=(Level(load_ratio=0.2, quota_cpus=0.1, cpuset_cpus=1),))
    assert Table(file=path).digest != before


def test_stricter_target_than_swept_one_is_not_answered(drive: Drive, tell: Tell, tmp_path: Path) -> None:
    table = Table(file=str(written(tmp_path / "t.yaml", target_milliseconds=1500.0)))
    assert drive(table, TWO, [tell(0, slack=0.5, load_ratio=0.1)]) == [TWO.safe]
    assert "1500 ms" in table.note


def test_table_of_another_host_is_refused_at_start(tmp_path: Path) -> None:
    table = Table(file=str(written(tmp_path / "t.yaml")))
    with pytest.raises(
        PolicyError, match=r"t.yaml: swept with 2 CPUs for BE and 1 for the LC, here it is 4 and 1; .*calibrate"
    ):
        table.start(Limits(cpus=4))


def test_a_table_of_another_host_decides_nothing_either(tell: Tell, tmp_path: Path) -> None:
    """A reload and a fallback go on after a start that failed."""
    table = Table(file=str(written(tmp_path / "t.yaml")))
    with pytest.raises(PolicyError):
        table.start(Limits(cpus=4))
    with pytest.raises(PolicyError, match="here it is 4 and 1"):
        table.act(Observation(tell(0, load_ratio=0.1), Limits(cpus=4).safe))


@pytest.mark.parametrize("options", [{}, {"file": "a.yaml", "levels": ()}])
def test_it_needs_one_table(options: dict[str, object]) -> None:
    with pytest.raises(PolicyError, match=r"needs option `file`.*rlctl calibrate --config"):
        build("table", **options)


@pytest.mark.parametrize("levels", [((0.2, 1.0),), ((0.2, -1.0, 1),), 3, "xyz"])
def test_levels_that_are_none_are_one_line(levels: object) -> None:
    with pytest.raises(PolicyError, match=r"give .load, quota in CPUs, CPUs. for each") as error:
        build("table", levels=levels)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("kind: quota-table\n", "key 'source' is missing"),
        ("kind: prm-threshold\n", "quota-table"),
        ("levels: [", "is not valid YAML"),
    ],
)  # fmt: skip
def test_file_that_is_none_is_one_line(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "t.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=said) as error:
        build("table", file=str(path))
    assert str(error.value).startswith(str(path))
    assert "`rlctl calibrate --config SCENARIO --out PROFILE`" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "levels", ["[{load_ratio: .4, quota_cpus: 1, cpuset_cpus: 1}, {load_ratio: .2, quota_cpus: 1, cpuset_cpus: 1}]",
               "[{load_ratio: .4, quota_cpus: 3, cpuset_cpus: 1}]"]
)  # fmt: skip
def test_levels_out_of_order_or_host_are_told(tmp_path: Path, levels: str) -> None:
    head = "source: x\ntarget_milliseconds: 10\nmax_load_rps: 1\nbe_weight: equal\nlc_cpus: 1\nbe_cpus: 2\n"
    (tmp_path / "t.yaml").write_text(f"{head}levels: {levels}\n")
    with pytest.raises(ConfigError, match="sweep the host anew"):
        build("table", file=str(tmp_path / "t.yaml"))
