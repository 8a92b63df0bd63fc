"""Runs and validates the blocks of pages: one shell for each page, in a fresh folder."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from rlctl_docs.blocks import ROOT, Block, BlockError, Use, blocks_of
from rlctl_docs.schemas import check

LINKED = ("configs", "docs", "scripts", "tests")
"""Folders of the checkout that a page may name."""

MOST_SECONDS = 900.0
"""Of a page: only ends a hang. It should take 20, but machines may be busy."""

MOST_LINES = 40
"""Of a failed block's output."""


def count(paths: Iterable[Path], available: frozenset[str] = frozenset()) -> Counter[Use]:
    """What becomes of the blocks of these pages; BlockError: a fence is wrong."""
    return Counter(block.use(available) for page in paths for block in blocks_of(page))


def try_page(page: Path, available: frozenset[str] = frozenset()) -> None:
    """Validate and run all blocks of a page.

    Args:
        page: The page.
        available: Requirements that are met here.

    Raises:
        BlockError: The first block that fails, with its place and output.
    """
    done = [(block, block.use(available)) for block in blocks_of(page)]
    for block, use in done:
        if use in (Use.VALIDATED, Use.FILE) and (wrong := _validated(block)):
            raise BlockError(wrong if wrong.startswith(f"{block.file}:") else f"{block.place}: {wrong}")
    acting = [block for block, use in done if use in (Use.RUN, Use.FILE)]
    if any(use is Use.RUN for _, use in done):
        _run(acting)


def _validated(block: Block) -> str:
    if block.language == "json":
        try:
            json.loads(block.text)
        except ValueError as error:
            return str(error)
    return check(block.options["check"], block.text, block.file, block.line) if "check" in block.options else ""


def _run(acting: Sequence[Block]) -> None:
    with tempfile.TemporaryDirectory(prefix="rlctl-docs-") as made:
        folder, scripts = Path(made) / "page", Path(made) / "blocks"
        folder.mkdir()
        scripts.mkdir()
        for name in LINKED:
            (folder / name).symlink_to(ROOT / name)
        for number, block in enumerate(acting):
            (scripts / str(number)).write_text(block.text)
        whole = "\n".join(["set -e -o pipefail", *(_step(block, scripts, at) for at, block in enumerate(acting))])
        (scripts / "all").write_text(whole + "\n")
        code = _shell(scripts / "all", folder)
        if code:
            at = int((scripts / "at").read_text())
            said = (scripts / f"{at}.out").read_text(errors="replace").splitlines()[-MOST_LINES:]
            why = f"ends after {MOST_SECONDS:g} s" if code < 0 else f"exit code {code}"
            raise BlockError("\n".join([f"{acting[at].place}: {why}", *(f"    {line}" for line in said)]))


def _step(block: Block, scripts: Path, at: int) -> str:
    """One block in the page's script."""
    script = shlex.quote(str(scripts / str(at)))
    begin = f"echo {at} >{shlex.quote(str(scripts / 'at'))}; exec >{script}.out 2>&1 </dev/null"
    if "file" in block.options:
        name = shlex.quote(block.options["file"])
        return f'{begin}\nmkdir -p "$(dirname {name})"; cp {script} {name}'
    command = f"PYTHONPATH=$PWD python {script}" if block.language == "python" else f"source {script}"
    if "exit" not in block.options:
        return f"{begin}\n{command}"
    code = int(block.options["exit"])
    expected = f'[ $rlctl_docs_code = {code} ] || {{ echo "exit code $rlctl_docs_code, not {code}"; exit 1; }}'
    return f"{begin}\nset +e; (set -e; {command}); rlctl_docs_code=$?; set -e; {expected}"


def _shell(script: Path, folder: Path) -> int:
    """The exit code, negative when it took too long; nothing of it is left running."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("COV_", "PYTEST", "RLCTL_"))
    } | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
        "COLUMNS": "120",
        "NO_COLOR": "1",
        "PYTHONWARNINGS": "",
    }
    shell = subprocess.Popen(
        ["bash", "--noprofile", "--norc", script],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return shell.wait(MOST_SECONDS)
    except subprocess.TimeoutExpired:
        return -1
    finally:
        with contextlib.suppress(ProcessLookupError):  # what the page left running, too
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
