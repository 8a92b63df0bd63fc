"""`rlctl replay`: the same log under the same shield gives the same verdicts, and any other is found."""

import json
from dataclasses import replace

import pytest

from rlctl.agents import catalogue
from rlctl.cli import main
from rlctl.envs.allocation import Limits
from rlctl.envs.ticklog import encode_line
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield
from tests.doubles.plant import FakePlant
from tests.doubles.tick_logs import record_run


def replay(capsys, log, *words):
    code = main(["replay", str(log), *words])
    out, err = capsys.readouterr()
    return code, out, err


def rewritten(log, change):
    """The log with some ticks changed, with new checksums."""
    lines = []
    for raw in log.read_text().splitlines():
        said = {key: value for key, value in json.loads(raw).items() if key != "crc"}
        lines.append(encode_line(change(said) or said))
    log.write_bytes(b"".join(lines))


def test_shield_rules_as_over_all_files(capsys, recorded_run):
    recorded_run(rotate_bytes=70_000).go(50)
    folder = recorded_run(rotate_bytes=70_000).go(50)
    assert len(list(folder.iterdir())) > 2
    code, out, err = replay(capsys, folder)
    assert (code, err) == (0, "")
    assert "100 ticks of 2 runs under the shield that ruled then" in out
    assert "100 verdicts judged again, 0 differ" in out


class CrowdedPlant(FakePlant):
    """A container comes at the 20th tick and goes at the 40th: beside it BE's least weight is void."""

    def wait(self):
        self.limits = replace(self.limits, least_weight=not 20 <= self.ticks < 40)
        return super().wait()


def test_weight_that_changed_meanwhile_is_no_difference(capsys, tmp_path):
    plant = CrowdedPlant(Limits(cpus=2, least_weight=True), loads=(0.9,))
    folder = record_run(
        tmp_path, plant, catalogue.build("static"), Shield(load_profile("measured"), plant.limits), ticks=60
    )
    code, out, _ = replay(capsys, folder)
    assert (code, "60 verdicts judged again, 0 differ" in out) == (0, True), out


def test_log_with_rotated_beginning_is_judged_whole(capsys, recorded_run):
    folder = recorded_run(rotate_bytes=30_000).go(80)
    oldest = max(folder.iterdir(), key=lambda path: int(path.suffix[1:]) if path.suffix[1:].isdigit() else 0)
    oldest.unlink()
    code, out, _ = replay(capsys, folder)
    assert code == 0
    assert "not judged" not in out


def freer(said):
    if said.get("tick") == 7:
        said["verdict"] = {"quota_cpus": None, "cpuset_cpus": 2, "frozen": False}


def test_verdict_that_is_not_shield_s_is_finding(capsys, recorded_run):
    folder = recorded_run().go(20)
    rewritten(folder / "ticks.jsonl", freer)
    code, out, err = replay(capsys, folder)
    assert code == 1
    assert f"tick 7 ({folder}/ticks.jsonl:9): asked unlimited on 2 CPUs; then unlimited on 2 CPUs" in out
    assert err.startswith("rlctl: error: 1 of 20 verdicts are not the shield's, the first at tick 7 (")


def test_after_damage_nothing_unknown_is_judged(capsys, recorded_run):
    run = recorded_run(rotate_bytes=30_000)
    folder = run.go(14)
    assert [path.name for path in folder.iterdir()] == ["ticks.jsonl"]
    log = folder / "ticks.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"tick":5,', b'"tick":6,'))
    run.go(16)  # a header in the next file says again what the guards remember
    code, out, err = replay(capsys, folder)
    assert code == 0
    assert f"{log}.1:7: its checksum does not fit" in err
    judged = [int(line.split()[0]) for line in out.splitlines()[1:3]]
    assert judged[0] > judged[1] > 5
    assert sum(judged) == 29


def test_finding_stands_beside_other_shields_runs(capsys, recorded_run):
    """After an upgrade a log holds runs under the shield of before: they excuse nothing."""
    log = recorded_run().go(20) / "ticks.jsonl"
    rewritten(log, lambda said: said["shield"].update(digest="0" * 12) if "log" in said else freer(said))
    assert replay(capsys, log)[0] == 0
    recorded_run().go(20)
    rewritten(log, freer)
    code, out, err = replay(capsys, log)
    assert (code, err.partition(" verdicts")[0]) == (1, "rlctl: error: 1 of 40")
    assert "40 ticks of 2 runs, 1 of them under another shield than the one that ruled then" in out


def test_another_shield_differs_and_that_is_no_finding(capsys, recorded_run):
    code, out, _ = replay(capsys, recorded_run().go(30), "--shield", "heracles")
    assert code == 0
    assert "under another shield than the one that ruled then" in out
    assert "30 verdicts judged again, " in out
    assert "0 differ" not in out


@pytest.mark.parametrize(("words", "said"), [((), "name one with --shield"), (("--shield", "responsive"), "")])
def test_log_from_before_there_were_headers_needs_shield(capsys, recorded_run, words, said):
    folder = recorded_run().go(5)
    log = folder / "ticks.jsonl"
    ticks = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    old = [{key: value for key, value in one.items() if key != "crc"} for one in ticks]
    log.write_text("".join(json.dumps(one) + "\n" for one in old))
    code, _, err = replay(capsys, folder, *words)
    assert code == (78 if said else 0)
    assert said in err


def test_unknown_shield_is_one_line(capsys, recorded_run):
    folder = recorded_run().go(2)
    assert replay(capsys, folder, "--shield", "titanium")[0] == 78
    assert replay(capsys, folder / "none")[0] == 78


def test_policies_are_asked_by_shadow_report(capsys, recorded_run):
    code, _, err = replay(capsys, recorded_run().go(2), "--policy", "frozen")
    assert (code, "use `rlctl shadow report LOG --policy" in err) == (2, True)
