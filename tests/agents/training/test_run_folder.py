"""What a run's folder says of the code that made it, and what it keeps of the experience that it goes on with."""

import json
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest

from rlctl import __version__
from rlctl.agents.training import run_folder
from rlctl.envs.errors import ConfigError


def test_only_checked_in_changes_make_another_rlctl(tmp_path, monkeypatch):
    def git(*words):
        who = ("-c", "user.name=x", "-c", "user.email=x@x")
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    monkeypatch.setattr(run_folder, "__file__", str(tmp_path / "code.py"))
    (tmp_path / "code.py").write_text("")
    git("init")
    git("add", "code.py")
    git("commit", "-m", "x")
    (tmp_path / "notes.txt").write_text("")
    plain = run_folder.code_version()
    assert len(plain) == 12
    (tmp_path / "code.py").write_text("x = 1\n")
    assert run_folder.code_version() == f"{plain}+"
    monkeypatch.setattr(run_folder, "__file__", str(tmp_path / "installed.py"))  # as in a .venv within a project
    assert run_folder.code_version() == __version__


def buffer(*rows, pos=0, full=False):
    """A replay buffer of five rows, each array filled with the rows' numbers."""
    arrays = {name: np.zeros((5, 1), np.float32) for name in run_folder.REPLAYED}
    for array in arrays.values():
        array[: len(rows), 0] = rows
    return SimpleNamespace(buffer_size=5, pos=pos, full=full, **arrays)


@pytest.mark.parametrize(
    ("rows_that_fit", "kept", "pos", "full"), [(3, [4, 5, 6], 3, False), (9, [2, 3, 4, 5, 6], 0, True)]
)
def test_newest_replay_rows_that_fit_are_kept(rows_that_fit, kept, pos, full, tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "MOST_REPLAY_BYTES", rows_that_fit * 4 * len(run_folder.REPLAYED))
    run_folder.write_replay(buffer(5, 6, 2, 3, 4, pos=2, full=True), tmp_path)
    found = buffer()
    assert run_folder.read_replay(found, tmp_path)
    assert (found.pos, found.full) == (pos, full)
    assert found.rewards[: len(kept), 0].tolist() == found.actions[: len(kept), 0].tolist() == kept


@pytest.mark.parametrize(("pos", "full", "newest"), [(2, True, 4), (3, False, 2)])
def test_episode_ends_with_newest_kept_row(pos, full, newest, tmp_path):
    """Hosts begin anew where a run goes on: a return of several steps must not reach over to them."""
    live, found = buffer(0, 0, 0, 0, 0, pos=pos, full=full), buffer()
    run_folder.write_replay(live, tmp_path)
    assert run_folder.read_replay(found, tmp_path)
    assert np.flatnonzero(found.timeouts).tolist() == [newest]
    assert not live.timeouts.any(), "here they go on"


def test_a_replay_buffer_that_was_torn_is_none(tmp_path):
    run_folder.write_replay(buffer(1, 2, 3, pos=3), tmp_path)
    whole = (tmp_path / run_folder.REPLAY).read_bytes()
    for torn in (b"", whole[: len(whole) // 2]):
        (tmp_path / run_folder.REPLAY).write_bytes(torn)
        assert not run_folder.read_replay(buffer(), tmp_path)


def test_a_checkpoint_without_a_state_is_passed_over(tmp_path):
    (tmp_path / "config.yml").touch()
    state = {"timesteps": 10, "seconds": 1.0, "updates": 7, "calls": 5, "episodes": 2, "block": 3}
    for timesteps, text in ((10, json.dumps(state)), (20, "")):
        (run_folder.checkpoint_folder(tmp_path, timesteps) / "state.json").write_text(text)
    assert run_folder.newest_checkpoint(tmp_path).state.timesteps == 10


def test_nobody_goes_on_beside_another_run(tmp_path):
    (tmp_path / "config.yml").touch()
    with (
        run_folder.alone(tmp_path),
        pytest.raises(ConfigError, match="another process goes on"),
        run_folder.alone(tmp_path),
    ):
        pass
    for name in ("config.yml", "offline.json", "transitions.jsonl", "best_model.zip"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).touch()
        with pytest.raises(ConfigError, match="holds a run already"):
            run_folder.check_new(folder)


def test_older_rlctls_checkpoint_is_gone_on_with(tmp_path):
    (tmp_path / "config.yml").touch()
    older = {"timesteps": 10, "seconds": 1.0, "updates": 7, "calls": 5, "episodes": 2, "block": 3}
    (run_folder.checkpoint_folder(tmp_path, 10) / "state.json").write_text(json.dumps(older))
    assert run_folder.newest_checkpoint(tmp_path).state.block == 3
