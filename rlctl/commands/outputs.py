"""Where a command is to write: checked before anything runs, not after an hour of measuring."""

from __future__ import annotations

import argparse
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

from rlctl.envs.errors import ConfigError, PermissionMissing

__all__ = ["check_outputs"]


def check_outputs(args: argparse.Namespace) -> None:
    """Check that the report and the JSON can be written; their folders are made, but not for a dry run.

    Args:
        args: Arguments of a command: `json`, and `report` and `dry_run` where it has them.

    Raises:
        ConfigError: matplotlib is not installed, or a folder cannot be made or written, or a file stands in its place.
        PermissionMissing: We may not write there.
    """
    report, make = getattr(args, "report", None), not getattr(args, "dry_run", False)
    if report:
        if find_spec("matplotlib") is None:
            raise ConfigError("--report draws plots with matplotlib: pip install 'rlctl[cli]'")
        _check_folder(Path(report), "--report folder", make=make)
    if args.json not in (None, "-"):
        file = Path(args.json)
        if file.is_dir():
            raise ConfigError("is a folder; name a file for --json", file)
        _check_folder(file.resolve().parent, "--json file", make=make)


def _check_folder(folder: Path, what: str, *, make: bool) -> None:
    there = next(one for one in (folder.absolute(), *folder.absolute().parents) if _exists(one))
    if not there.is_dir():
        raise ConfigError(f"is no folder; name another {what}", there)
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionMissing(f"{there}: may not be written; name another {what}")
    if not make:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()  # a disk that is full or read-only looks writable until written
    except PermissionError as error:
        raise PermissionMissing(f"{folder}: may not be written; name another {what}") from error
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror or error}; name another {what}", folder) from error


def _exists(path: Path) -> bool:
    """True also for what stands in a folder that we may not look into or that is a file."""
    try:
        return path.exists()
    except OSError:
        return False
