"""Completion and man pages say what the commands take, and the shells take what we say."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlctl.cli import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]
COMPLETION = ROOT / "configs" / "deploy" / "completion"


@pytest.mark.slow
def test_they_are_what_the_parser_says():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "command-files", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(command in script for command in COMMANDS)


def bash(line):
    """What Tab offers at the end of a line of bash."""
    words = line.split(" ")
    asked = f"""
source {COMPLETION / "rlctl"}
COMP_WORDS=({" ".join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}
_shtab_rlctl; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    return {word.strip() for word in done.stdout.split("\n") if word.strip()}


def test_bash_completes_commands_options_and_names():
    assert {"serve", "shadow", "sign", "scenarios"} <= bash("rlctl s")
    assert {"run", "list"} <= bash("rlctl app ")
    assert {"--managers", "--scenario"} <= bash("rlctl bench --")
    assert {"prm-latency", "prm-hybrid"} <= bash("rlctl bench --managers prm-")
    assert bash("rlctl bench --scenario live-ng") == {"live-nginx"}
    assert bash("rlctl bench --shield kne") == {"knee"}


def test_bash_completes_the_last_of_several_names():
    assert bash("rlctl bench --managers none,ppo,herac") == {"none,ppo,heracles"}


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_too(tmp_path):
    def fish(line):
        asked = f"source {COMPLETION / 'rlctl.fish'}; complete -C '{line}'"
        done = subprocess.run(["fish", "--no-config", "-c", asked], capture_output=True, text=True, check=True)
        return {offered.split("\t")[0] for offered in done.stdout.splitlines()}

    assert {"serve", "shadow"} <= fish("rlctl s")
    assert fish("rlctl bench --managers none,ppo,herac") == {"none,ppo,heracles"}


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_takes_its_script():
    subprocess.run(["zsh", "-f", "-n", COMPLETION / "_rlctl"], check=True)


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_man_pages_are_free_of_warnings():
    pages = sorted((ROOT / "configs" / "deploy" / "man").iterdir())
    done = subprocess.run(["groff", "-ww", "-man", "-Tutf8", "-z", *pages], capture_output=True, text=True, check=True)
    assert done.stderr == ""
