"""What a run's folder says of the code that made it, and what it keeps of the experience that it goes on with."""

import subprocess

from rlctl.agents.training import run_folder


def test_only_a_change_of_what_is_checked_in_is_another_rlctl(tmp_path, monkeypatch):
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
