"""What is measured is what the paper measured; what was run is kept, and gone on with only if it is the same."""

import csv
import json
from collections import Counter
from pathlib import Path

import pytest

from rlctl.agents.allocator import allocate
from rlctl.envs.applications import Application
from rlctl.envs.errors import ConfigError, HostError
from rlctl.envs.telemetry import Missing, Value, Why
from scripts.studies.mixes import platform as measure_platform
from scripts.studies.mixes.config import load_measure
from scripts.studies.mixes.measurement import Measurement
from scripts.studies.mixes.metrics import METRICS
from scripts.studies.mixes.plan import Cell, Log, Record, Turn, turns
from scripts.studies.mixes.platform import Ground, managed_ground
from scripts.studies.mixes.report import as_json, report_lines

FIXTURES = Path(__file__).parents[2] / "fixtures/measure"
CELLS = (Cell("L1", {"bodytrack": 2}), Cell("H1", {"bodytrack": 6}))


def rows_of(name):
    lines = (line for line in (FIXTURES / name).read_text().splitlines() if not line.startswith("#"))
    return list(csv.DictReader(lines))


@pytest.fixture(autouse=True)
def undivided(monkeypatch):
    monkeypatch.setattr(measure_platform, "_stands", lambda group: False)


def record(cell, repeat, managed, seconds=1.0):
    metrics = {metric.name: Missing(Why.NOT_SUPPORTED, "no PMU") for metric in METRICS} | {"ctime": Value(seconds)}
    placements = [(0.0, {"bodytrack-1": (2, "node1", 0.33)}), (0.5, {})] if managed else []
    return Record(Turn(cell, repeat, managed), metrics, {"bodytrack-1": seconds}, placements, {})


def test_mixes_and_modes_are_the_papers():
    config = load_measure("mixes")
    mixes = {row["scenario"]: row for row in rows_of("barbeque_mixes.csv")}
    assert {name: (mix["bodytrack"], mix["ferret"]) for name, mix in config.mixes.items()} == {
        name: (int(row["bodytrack_instances"]), int(row["ferret_instances"])) for name, row in mixes.items()
    }
    table = {row["workload"]: [int(row[f"awm{n}"]) for n in range(4)] for row in rows_of("barbeque_awm.csv")}
    for name, application in config.applications.items():
        assert [mode.threads for mode in application.modes] == table[f"{name}_threads"]
        assert [mode.quota_percent for mode in application.modes] == table["cpu_quota_percent"]


def test_lightest_mix_settles_on_awm2_as_in_paper():
    """5.3: all four of L1 are co-scheduled on AWM2, of which 8 of 12 CPUs are needed."""
    config, ground = load_measure("mixes"), managed_ground("published", 3)
    scale = ground.quota_cpus / config.published_cpus
    running = [
        Application(f"{number}:{name}", config.applications[name].working_modes(scale))
        for name, count in config.mixes["L1"].items()
        for number in range(count)
    ]
    placed = allocate(running, ground.clusters, ground.quota_cpus)
    assert [one.mode for one in placed.values()] == [2, 2, 2, 2]
    assert sum(one.cpus for one in placed.values()) == pytest.approx(8 / 12 * ground.quota_cpus)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mixes": {"X": {"doom": 1}}}, "mix X has 'doom'"),
        ({"mixes": {"X": {}}}, "mix X has 0 instances"),
        ({"applications": {"a": {"work": 3, "modes": []}}}, "modes"),
        ({"publishd_cpus": 3}, "did you mean 'published_cpus'?"),
    ],
)
def test_a_wrong_file_is_said_with_its_line(tmp_path, change, said):
    modes = [{"quota_percent": 50, "threads": 1, "value": 1.0}]
    good = {
        "published_cpus": 12,
        "applications": {"a": {"workload": "datapar", "modes": modes}},
        "mixes": {"X": {"a": 1}},
    }
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps(good))
    assert load_measure(path).mixes == {"X": {"a": 1}}
    path.write_text(json.dumps(good | change))
    with pytest.raises(ConfigError, match=r"mine\.yaml:1: ") as caught:
        load_measure(path)
    assert said in str(caught.value)


def test_runs_come_in_pairs_cell_by_cell():
    order = list(turns(CELLS, 8))
    assert len(order) == len(set(order)) == 2 * 2 * 8
    pairs = [order[n : n + 2] for n in range(0, len(order), 2)]
    assert all((a.cell, a.repeat) == (b.cell, b.repeat) and a.managed is not b.managed for a, b in pairs)
    assert {pair[0].managed for pair in pairs} == {True, False}
    assert [pair[0].cell for pair in pairs[:4]] == ["L1", "H1", "L1", "H1"]
    assert order == list(turns(CELLS, 8))


def test_a_log_is_gone_on_with(tmp_path):
    log = Log(tmp_path, {"what": "x"})
    for managed in (True, False):
        log.add(record("L1", 0, managed))
    again = Log(tmp_path, {"what": "x"}, resume=True)
    assert again.records == log.records or [r.metrics for r in again.records] == [r.metrics for r in log.records]
    assert {one.turn for one in again.records} == {Turn("L1", 0, True), Turn("L1", 0, False)}
    again.add(record("L1", 1, True))
    assert len(Log(tmp_path, {"what": "x"}, resume=True).records) == 3


def test_line_that_crash_tore_is_made_again(tmp_path):
    log = Log(tmp_path, {})
    log.add(record("L1", 0, True))
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"turn": {"cell": "L1", "rep')
    again = Log(tmp_path, {}, resume=True)
    assert len(again.records) == 1
    again.add(record("L1", 0, False))
    assert len(Log(tmp_path, {}, resume=True).records) == 2


def test_log_is_neither_overwritten_nor_mixed_with_another(tmp_path):
    Log(tmp_path, {"leftover": "idle"})  # without a run nothing is there to be overwritten
    Log(tmp_path, {"leftover": "share"}).add(record("L1", 0, True))
    with pytest.raises(ConfigError, match="--resume"):
        Log(tmp_path, {"leftover": "share"})
    with pytest.raises(ConfigError, match="another measurement"):
        Log(tmp_path, {"leftover": "idle"}, resume=True)


@pytest.mark.parametrize("damage", ["", "[]", "[]\n", '{"format": 1}\n', "\x00\n"])
def test_what_is_no_log_is_said(tmp_path, damage):
    (tmp_path / "runs.jsonl").write_text(damage)
    with pytest.raises(ConfigError, match=r"runs\.jsonl:1: is no record.*; remove it"):
        Log(tmp_path, {}, resume=True)
    assert (tmp_path / "runs.jsonl").read_text() == damage


@pytest.fixture
def measured():
    config = load_measure("mixes")
    cells = (Cell("L1", config.mixes["L1"]), Cell("H1", config.mixes["H1"]))
    return Measurement(config, cells, managed_ground("published", 3), 2)


def test_a_report_says_scaling_choices_and_reasons(measured):
    log = Log(None, {})
    for repeat in range(2):
        log.add(record("L1", repeat, False, 2.0 + repeat))
        log.add(record("L1", repeat, True, 1.0 + repeat))
    text = "\n".join(report_lines(measured, log))
    assert "quotas are multiplied by" in text
    assert "L1: 2 bodytrack, 2 ferret; 2 pairs of runs" in text
    assert "in 2 of 2 runs: 1 bodytrack AWM2, 1 bodytrack deferred, 2 ferret deferred" in text
    assert "chosen anew 1.0 times a run" in text
    assert "no PMU" in text
    assert "H1:" not in text
    result = json.loads(json.dumps(as_json(measured, log, "mix")))
    assert result["results"]["L1"]["metrics"]["ctime"]["speed_up"]["percent"] == pytest.approx(40.0)
    assert result["results"]["L1"]["metrics"]["ipc"] == {"missing": "not-supported", "detail": "no PMU"}
    assert set(result["results"]) == {"L1"}


def test_managed_cpus_are_divided_as_asked():
    from rlctl.envs.host.topology import read_topology

    cpus = len(read_topology())
    published, cores, whole = (managed_ground(kind, 3) for kind in ("published", "cores", "whole"))
    assert [one.quota_cpus for one in published.clusters] == pytest.approx([cpus / 3] * 3)
    assert Counter(cpu for one in cores.clusters for cpu in one.cpus) == Counter(list(read_topology()))
    assert [ground.quota_cpus for ground in (published, cores, whole)] == pytest.approx([cpus] * 3)
    assert isinstance(whole, Ground)
    with pytest.raises(ConfigError, match="no platform 'corse'"):
        managed_ground("corse", 3)


def test_all_cpus_are_not_taken_from_divided_host(monkeypatch):
    monkeypatch.setattr(measure_platform, "_stands", lambda group: group == "rlctl-mdev")
    with pytest.raises(HostError, match="name its platform"):
        managed_ground("whole", 3)
