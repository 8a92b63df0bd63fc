"""The registered applications: one small file for each, which the service notices by the directory's time stamp."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from rlctl.envs.applications import Placement, WorkingMode
from rlctl.envs.errors import ConfigError, HostError, PermissionMissing
from rlctl.envs.host.apps.description import Description
from rlctl.envs.host.process import PROC, start_time
from rlctl.envs.yaml_edge import validate

log = logging.getLogger(__name__)

DIRECTORY = Path("/run/rlctl/apps")
# Below the directory: each application's mode.
MODES = "modes"

MOST_BYTES = 64 << 10
MOST_APPLICATIONS = 1000
# A directory's time stamp has the kernel's tick for its grain: one that is so old has taken in every file.
SETTLED_SECONDS = 0.1

_OTHERS_MAY_WRITE = 0o022
_SUFFIX = ".json"


def mode_line(placement: Placement, mode: WorkingMode) -> str:
    """The line that an application reads, with the newline; later versions may add pairs of words."""
    millicpus = round(placement.cpus * 1000.0)
    return f"mode {placement.mode} threads {mode.threads} millicpus {millicpus} memory {mode.memory_bytes}\n"


class Registration(Description):
    """A description together with who it is of.

    Attributes:
        start_time: Of that process, see `rlctl.envs.host.process.start_time`.
        group: Its group's path below the hierarchies' roots.
        home: The directories of the groups that an adopted process was taken from; none of one that was launched.
    """

    pid: int = Field(gt=1)
    start_time: int = Field(ge=0)
    group: str = Field(min_length=1)
    home: tuple[Path, ...] = ()

    @property
    def key(self) -> str:
        """`<pid>:<name>`, unique on the host."""
        return f"{self.pid}:{self.name}"

    def runs(self, proc: Path = PROC) -> bool:
        """The process is there and is the one that was registered."""
        return start_time(self.pid, proc) == self.start_time


class Registry:
    """The applications' files in one directory.

    What is written there decides who gets CPU time, so files count only if nobody but root, or whoever runs this
    process, can have written them.

    Args:
        directory: Made when something is registered.
    """

    def __init__(self, directory: Path = DIRECTORY) -> None:
        self.directory = directory
        self._known: dict[str, Registration] = {}
        self._read_at: tuple[int, int] | None = None
        self._refused: dict[str, str] = {}

    def path(self, key: str) -> Path:
        """The file of an application."""
        return self.directory / f"{key}{_SUFFIX}"

    def mode_file(self, key: str) -> Path:
        """Where an application's mode stands."""
        return self.directory / MODES / key

    def add(self, registration: Registration) -> None:
        """Register an application, or change what is known of it; whole or not at all.

        Raises:
            PermissionMissing: The directory may not be written.
            HostError: It cannot be.
        """
        try:
            (self.directory / MODES).mkdir(parents=True, exist_ok=True, mode=0o755)
            text = registration.model_dump_json(exclude_defaults=True)
            _replace(self.path(registration.key), text + "\n")
        except PermissionError as error:
            raise PermissionMissing(f"{self.directory}: {error.strerror}: run as root, or name another") from error
        except OSError as error:
            raise HostError(f"{self.directory}: cannot register {registration.key}: {error.strerror}") from error

    def remove(self, key: str) -> None:
        """Forget an application. Idempotent."""
        for path in (self.path(key), self.mode_file(key)):
            with contextlib.suppress(OSError):
                path.unlink()

    def write_mode(self, key: str, line: str) -> None:
        """Put an application's mode where it can read it; what cannot be written is not."""
        with contextlib.suppress(OSError):
            _replace(self.mode_file(key), line)

    def read(self) -> Mapping[str, Registration]:
        """The applications by their keys; one `stat` when nothing has changed. A file that is wrong is logged once."""
        stamp = self._stamp()
        if stamp is None or stamp != self._read_at:
            self._known = self._scan()
            settled = stamp is not None and time.time_ns() - stamp[1] > SETTLED_SECONDS * 1e9
            self._read_at = stamp if settled else None
        return self._known

    def _stamp(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.directory)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def _scan(self) -> dict[str, Registration]:
        try:
            names = sorted(name for name in os.listdir(self.directory) if name.endswith(_SUFFIX))
        except OSError:
            return {}
        registered = {}
        for name in names[:MOST_APPLICATIONS]:
            try:
                one = _load(self.directory / name)
            except (ConfigError, PermissionMissing) as error:
                if self._refused.get(name) != str(error):
                    self._refused[name] = str(error)
                    log.error("not an application: %s", error)
                continue
            if one is not None:
                registered[one.key] = one
        self._refused = {name: why for name, why in self._refused.items() if name in names}
        return registered


def _load(path: Path) -> Registration | None:
    """One file; None if it is gone."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", path) from error
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & _OTHERS_MAY_WRITE:
        raise PermissionMissing(f"{path}: others than root may write it: it does not count; chown root, chmod 644")
    registration = validate(Registration, _parse(content, path), path)
    if path.name != f"{registration.key}{_SUFFIX}" or ".." in Path(registration.group).parts:
        raise ConfigError(f"is not the registration of {registration.key}", path)
    return registration


def _parse(content: bytes, path: Path) -> Any:
    if len(content) > MOST_BYTES:
        raise ConfigError(f"is longer than {MOST_BYTES} bytes", path)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigError("is no JSON", path) from error


def _replace(path: Path, text: str) -> None:
    """Another file in this one's place, readable by all, so that no reader sees half of it."""
    file, fresh = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with open(file, "w") as stream:
            stream.write(text)
            os.fchmod(stream.fileno(), 0o644)
        os.replace(fresh, path)
    except BaseException:
        os.unlink(fresh)
        raise
