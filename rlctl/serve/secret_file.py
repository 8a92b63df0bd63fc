"""Secrets that stand in files of their own, and files that the configuration names."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from rlctl.envs.errors import ConfigError, PermissionMissing

LEAST_TOKEN_BYTES = 16


def secret_of(key: str, path: Path) -> bytes:
    """The secret in a file that not everybody may read.

    Args:
        key: Of the configuration, for messages.
    """
    # fstat of the open file: the path may lead elsewhere by the time of a second look.
    with open_regular(key, path) as file:
        status, secret = os.fstat(file.fileno()), file.read(4096).strip()
    refuse_public(key, path, status)
    if len(secret) < LEAST_TOKEN_BYTES or len(secret) >= 4096 or len(secret.split()) != 1:
        least = f"one line of {LEAST_TOKEN_BYTES} characters or more"
        raise ConfigError(f"{key}: {path} is not {least}: openssl rand -hex 32 > {path}")
    return secret


@contextlib.contextmanager
def name_errors(key: str, path: Path) -> Iterator[None]:
    """Say which key an unreadable file belongs to."""
    try:
        yield
    except PermissionError as error:
        raise PermissionMissing(f"{key}: {path}: {error.strerror}") from error
    except OSError as error:
        raise ConfigError(f"{key}: {path}: {error.strerror}") from error


@contextlib.contextmanager
def open_regular(key: str, path: Path) -> Iterator[IO[bytes]]:
    """A regular file that the configuration names; a FIFO in its place is not waited for."""
    # O_NONBLOCK: opening a FIFO without a writer would wait for ever.
    with (
        name_errors(key, path),
        open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file,
    ):
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ConfigError(f"{key}: {path}: is no regular file")
        yield file


def refuse_public(key: str, path: Path, status: os.stat_result) -> None:
    """A secret that everybody may read is none."""
    # The last three bits are those of everybody: read, write, execute.
    if status.st_mode & 0o007:
        raise ConfigError(f"{key}: everybody may use {path}: chmod o= {path}")
