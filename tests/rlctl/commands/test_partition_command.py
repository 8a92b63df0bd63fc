"""`rlctl partition` as it is typed: one line and an exit code for every mistake, and JSON that a program can read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rlctl.cli import main
from rlctl.envs.host.cgroup.journal import JOURNAL, Journal
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.host.partition.record import FOLDER, Stage, Undone, plan_entry, stage_entry

Capture = pytest.CaptureFixture[str]
NOTHING = {
    "within": "", "why": "as a test says", "clusters": [], "exclusive": False, "take": [], "leave": [],
    "kernel_threads": False, "host_cpus": "0", "mdev_cpus": "1", "mounts": {},
}  # fmt: skip


def said(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    code = main(["partition", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def recorded(state: Path, stage: Stage = Stage.BUILDING, proc: Path = Path("/proc")) -> None:
    with Journal.open(state / FOLDER, proc) as journal:
        journal.record([plan_entry(NOTHING), stage_entry(stage)])


needs_two_cpus = pytest.mark.skipif(
    (os.cpu_count() or 1) < 2 or CgroupController.CPUSET not in Layout.detect().mounts,
    reason="needs two CPUs and cpusets",
)


@needs_two_cpus
def test_a_dry_run_tells_everything_and_touches_nothing(capsys: Capture, tmp_path: Path) -> None:
    code, out, err = said(capsys, "apply", "--dry-run", "--json", "--state", str(tmp_path / "state"))
    plan = json.loads(out)
    assert code == 0
    assert err.startswith("platform: discovered: ")
    assert any(group.endswith("/rlctl-host") for group in plan["groups"])
    assert not any(Path(group).exists() for group in plan["groups"])
    assert not (tmp_path / "state").exists()
    _, words, _ = said(capsys, "apply", "--dry-run")
    assert "would make " in words
    assert " to rlctl-host" in words


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (
            ["apply", "--platform", "mine"],
            78,
            "no platform 'mine', nor is it a .yaml file; there are barbeque-opteron, two-core",
        ),
        (["apply", "--platform", "/nowhere/mine.yaml"], 78, "/nowhere/mine.yaml: cannot be read"),
        (["apply", "--within", "no-such-group", "--dry-run"], 75, "no-such-group: no such group in any hierarchy"),
        (["apply", "--take", "no-such-group", "--dry-run"], 75, "--take no-such-group: no such group"),
        (["show"], 1, "no partition stands"),
        (["explode"], 2, "invalid choice: 'explode'"),
    ],
)
@needs_two_cpus
def test_a_mistake_is_one_line(capsys: Capture, tmp_path: Path, arguments: list[str], code: int, error: str) -> None:
    state = ["--state", str(tmp_path / "state")] if arguments != ["explode"] else []
    found, out, err = said(capsys, *arguments, *state)
    assert (found, out) == (code, "")
    last = err.splitlines()[-1]
    assert last.startswith("rlctl: error: ")
    assert error in last


@needs_two_cpus
def test_only_root_divides_the_whole_host(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    code, _, err = said(capsys, "apply")
    assert code == 77
    assert "divide a group of yours with --within" in err


def test_undo_without_a_partition_is_no_error(capsys: Capture, tmp_path: Path) -> None:
    assert said(capsys, "undo", "--state", str(tmp_path)) == (0, f"no partition in {tmp_path}\n", "")
    code, out, _ = said(capsys, "undo", "--state", str(tmp_path), "--json")
    assert (code, json.loads(out)["ok"]) == (0, True)


def test_one_of_an_earlier_boot_is_forgotten(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("another boot")
    recorded(tmp_path, Stage.STANDING, tmp_path / "proc")
    assert said(capsys, "show", "--state", str(tmp_path))[0] == 1
    assert main(["restore", "--state", str(tmp_path), "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["would_undo_partition"] is False
    code, out, _ = said(capsys, "undo", "--state", str(tmp_path))
    assert (code, out) == (0, "the partition was of an earlier boot, whose groups are gone\n")
    assert said(capsys, "undo", "--state", str(tmp_path))[1] == f"no partition in {tmp_path}\n"


def test_show_tells_of_one_that_is_not_whole(capsys: Capture, tmp_path: Path) -> None:
    recorded(tmp_path)
    code, out, err = said(capsys, "show", "--state", str(tmp_path))
    assert code == 1
    assert out.startswith("as a test says\n| group ")
    assert "the partition is not whole (it was left building): `rlctl partition undo`" in err


def test_restore_takes_down_the_half_done(capsys: Capture, tmp_path: Path) -> None:
    recorded(tmp_path / "half")
    assert main(["restore", "--state", str(tmp_path / "half"), "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["would_undo_partition"] is True
    assert main(["restore", "--state", str(tmp_path / "half"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["partition"]["ok"] is True
    assert not (tmp_path / "half" / FOLDER / JOURNAL).exists()
    recorded(tmp_path / "whole", Stage.STANDING)
    assert main(["restore", "--state", str(tmp_path / "whole")]) == 0
    assert "partition: stands; `rlctl partition undo` takes it down" in capsys.readouterr().out
    assert (tmp_path / "whole" / FOLDER / JOURNAL).exists()


def test_what_was_undone_in_words() -> None:
    assert str(Undone(moved=3, removed=[Path("/a")])) == "3 tasks moved back; 1 groups removed"
