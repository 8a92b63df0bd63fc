"""Compiles the testbed's C programs on first use, and keeps the binaries."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rlctl.envs.errors import TestbedError

FLAGS = ("-std=gnu11", "-O2")
COMPILE_TIMEOUT_SECONDS = 120.0


def compile_program(source: Path, *libraries: str, headers: Sequence[Path] = (), cache: Path | None = None) -> Path:
    """The program of one C file, compiled unless this very source has been compiled before.

    Args:
        source: The C file to compile.
        libraries: Options that come after it, such as `-lm`.
        headers: Files of ours that it includes; their folders are searched.
        cache: Folder for the binary; default `$XDG_CACHE_HOME/rlctl`, else `~/.cache/rlctl`.

    Returns:
        Path of the executable; its name holds the hash of source and flags, so a stale one is never used.

    Raises:
        TestbedError: There is no compiler, it failed, or the folder cannot be written.
    """
    cache = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlctl"
    text = b"".join(file.read_bytes() for file in (source, *headers))
    digest = hashlib.sha256(text + " ".join((*FLAGS, *libraries)).encode()).hexdigest()
    binary = cache / f"{source.stem}-{digest[:32]}"
    if binary.exists():
        return binary
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise TestbedError(f"no C compiler (cc, gcc, clang) on PATH: {source.name} is compiled on first use")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            options = (*(f"-I{header.parent}" for header in headers), *libraries)
            _compile(compiler, source, options, Path(scratch, source.stem)).replace(binary)  # never half a binary
    except OSError as error:
        raise TestbedError(f"cannot keep the compiled {source.name} in {cache}: {error.strerror}") from error
    return binary


def _compile(compiler: str, source: Path, options: tuple[str, ...], output: Path) -> Path:
    command = [compiler, *FLAGS, "-o", str(output), str(source), *options]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise TestbedError(f"{compiler} took more than {COMPILE_TIMEOUT_SECONDS:g} s over {source}") from error
    except subprocess.CalledProcessError as error:
        raise TestbedError(f"{compiler} could not compile {source}: {error.stderr.strip()}") from error
    return output
