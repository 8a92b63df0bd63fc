"""Best-effort applications as files: what each says of itself in YAML, and one small file for each that is registered.

The service notices registrations by the directory's time stamp.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from rlctl.envs.applications import Placement, WorkingMode
from rlctl.envs.errors import ConfigError, HostError, PermissionMissing
from rlctl.envs.host.process import PROC, start_time
from rlctl.envs.whole_file import other_writer
from rlctl.envs.yaml_edge import Strict, load_model, validate

log = logging.getLogger(__name__)

DIRECTORY = Path("/run/rlctl/apps")
# Below the directory: each application's mode.
MODES = "modes"

MOST_MODES = 32
MOST_BYTES = 64 << 10
MOST_APPLICATIONS = 1000
# Of applications that are served last: those that nobody described.
LEAST_PRIORITY = 9
# A directory's time stamp has the kernel's tick for its grain: one that is so old has taken in every file.
SETTLED_SECONDS = 0.1

_SUFFIX = ".json"
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}$"  # becomes part of a group's and of files' names


class AppMode(Strict):
    """One working mode; see `rlctl.envs.applications.WorkingMode`.

    Attributes:
        cpus: CPU time that it asks for.
        threads: How many threads run in it.
        value: What it is worth, 0 to 1.
        memory_bytes: Soft limit of its memory; 0 is none.
    """

    cpus: float = Field(gt=0.0, le=8192.0)
    threads: int = Field(ge=1, le=1 << 16)
    value: float = Field(default=1.0, ge=0.0, le=1.0)
    memory_bytes: int = Field(default=0, ge=0, le=1 << 50)


class Description(Strict):
    """A best-effort application and its modes.

    Attributes:
        name: For people; its group is `<pid>:<name>`.
        priority: 0 is served first, 9 last.
        modes: From the least CPU time to the most.
        command: Program and arguments, for `rlctl app run` without a command of its own.
    """

    name: Annotated[str, Field(pattern=_NAME)]
    priority: int = Field(default=0, ge=0, le=LEAST_PRIORITY)
    modes: Annotated[tuple[AppMode, ...], Field(min_length=1, max_length=MOST_MODES)]
    command: Annotated[tuple[str, ...], Field(min_length=1)] | None = None

    @field_validator("modes")
    @classmethod
    def _ascending(cls, modes: tuple[AppMode, ...]) -> tuple[AppMode, ...]:
        if any(less.cpus > more.cpus for less, more in pairwise(modes)):
            raise ValueError("modes go from the least CPU time to the most: sort them by 'cpus'")
        return modes

    @property
    def working_modes(self) -> tuple[WorkingMode, ...]:
        """The modes in the allocator's terms."""
        return tuple(WorkingMode(mode.cpus, mode.threads, mode.value, mode.memory_bytes) for mode in self.modes)


class Registration(Description):
    """A description together with who it is of.

    Attributes:
        start_time: Of that process, see `rlctl.envs.host.process.start_time`.
        group: Its group's path below the hierarchies' roots.
    """

    pid: int = Field(gt=1)
    start_time: int = Field(ge=0)
    group: str = Field(min_length=1)

    @property
    def key(self) -> str:
        """`<pid>:<name>`, unique on the host."""
        return f"{self.pid}:{self.name}"

    def runs(self, proc: Path = PROC) -> bool:
        """The process is there and is the one that was registered."""
        return start_time(self.pid, proc) == self.start_time


def load_description(path: Path) -> Description:
    """Read an application's description; ConfigError with its line, or PermissionMissing: it cannot be."""
    return load_model(Description, path)


def mode_line(placement: Placement, mode: WorkingMode) -> str:
    """The line that an application reads, with the newline; later versions may add pairs of words."""
    millicpus = round(placement.cpus * 1000.0)
    return f"mode {placement.mode} threads {mode.threads} millicpus {millicpus} memory {mode.memory_bytes}\n"


class Registry:
    """The applications' files in one directory, which is made when something is registered.

    What is written there decides who gets CPU time, so files count only if nobody but root, or whoever runs this
    process, can have written them.
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
        stamp: tuple[int, int] | None = None
        with contextlib.suppress(OSError):
            status = os.stat(self.directory)
            stamp = status.st_ino, status.st_mtime_ns
        if stamp is None or stamp != self._read_at:
            self._known = self._scan()
            settled = stamp is not None and time.time_ns() - stamp[1] > SETTLED_SECONDS * 1e9
            self._read_at = stamp if settled else None
        return self._known

    def _scan(self) -> dict[str, Registration]:
        names: list[str] = []
        with contextlib.suppress(OSError):
            names = sorted(name for name in os.listdir(self.directory) if name.endswith(_SUFFIX))
        registered = {}
        for name in names[:MOST_APPLICATIONS]:
            try:
                one = _load(self.directory / name)
                registered[one.key] = one
            except FileNotFoundError:
                continue
            except (ConfigError, PermissionMissing) as error:
                if self._refused.get(name) != str(error):
                    self._refused[name] = str(error)
                    log.error("not an application: %s", error)
        self._refused = {name: why for name, why in self._refused.items() if name in names}
        return registered


def _load(path: Path) -> Registration:
    """One file; FileNotFoundError if it is gone."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", path) from error
    if other_writer(status):
        raise PermissionMissing(f"{path}: others than root may write it: it does not count; chown root, chmod 644")
    if len(content) > MOST_BYTES:
        raise ConfigError(f"is longer than {MOST_BYTES} bytes", path)
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigError("cannot be read as JSON", path) from error
    registration = validate(Registration, data, path)
    if path.name != f"{registration.key}{_SUFFIX}" or ".." in Path(registration.group).parts:
        raise ConfigError(f"is not the registration of {registration.key}", path)
    return registration


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
