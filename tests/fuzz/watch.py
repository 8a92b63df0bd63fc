"""What an input makes the interpreter do: files opened, code run, pickles read, connections made, programs started.

Python's own audit events tell of the interpreter, inotify of native code: the ONNX runtime opens files without asking
Python. Python's own library and rlctl's code and constants may be read at any time; all else is for the target to name.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import sysconfig
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_READABLE = tuple(
    str(Path(one).resolve())
    for one in (
        sys.prefix, sys.base_prefix, sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"],
        *(ROOT / name for name in ("rlctl", "envs", "agents", "safety", "configs", "tests/fuzz")),
        "/usr/share/zoneinfo", "/etc/localtime",
    )
)  # fmt: skip

_NEVER = (
    "pickle.", "shelve.", "subprocess.", "os.system", "os.exec", "os.spawn", "os.posix_spawn", "os.fork",
    "ctypes.dlopen", "socket.connect", "socket.bind", "socket.getaddrinfo", "shutil.", "code.", "webbrowser.",
)  # fmt: skip


@dataclass(frozen=True)
class _Leave:
    folder: str
    reads: str
    events: tuple[str, ...]


_armed: list[_Leave] = []
_seen: list[str] = []
_installed: list[bool] = []


@contextlib.contextmanager
def guarded(folder: Path, *, reads: str = "", allowed: Sequence[str] = ()) -> Iterator[None]:
    """Within it nothing but the folder is opened, and no code but ours is run.

    Args:
        folder: May be read and written.
        reads: Whatever is below this path may be read too.
        allowed: Audit events that may happen all the same, by the beginning of their names.

    Raises:
        AssertionError: At its end, when something else happened.
    """
    if not _installed:
        sys.addaudithook(_hook)
        _installed.append(True)
    _seen.clear()
    _armed.append(_Leave(str(folder), reads, tuple(allowed)))
    try:
        yield
    finally:
        _armed.pop()
    assert not _seen, f"the input led to: {'; '.join(_seen[:3])}"


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if not _armed:
        return
    leave = _armed[-1]
    if event == "open":
        if not _may_open(arguments, leave):
            _seen.append(f"open {arguments[0]!r}")
    elif event in ("exec", "compile"):
        if not _is_ours(arguments, leave):
            _seen.append(f"{event} {arguments[:2]!r}"[:200])
    elif event.startswith(_NEVER) and not (leave.events and event.startswith(leave.events)):
        _seen.append(f"{event} {arguments!r}"[:200])


def _may_open(arguments: tuple[object, ...], leave: _Leave) -> bool:
    path, _, flags = arguments
    if isinstance(path, int) or path is None:
        return True
    name = os.path.abspath(os.fsdecode(path))  # type: ignore[arg-type]
    if name.startswith(f"{leave.folder}/"):
        return True
    writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    return not writes and ((bool(leave.reads) and name.startswith(leave.reads)) or name.startswith(_READABLE))


def _is_ours(arguments: tuple[object, ...], leave: _Leave) -> bool:
    """Code of a library that is imported only now."""
    code = arguments[0]
    name = code.co_filename if isinstance(code, types.CodeType) else str(arguments[-1])
    return name.startswith((*_READABLE, "<frozen ")) and not name.startswith(leave.folder)


_IN_OPEN, _IN_ACCESS = 0x20, 0x1


class Touched:
    """Tells which of some files anybody opened, in whatever language."""

    def __init__(self, files: Sequence[Path]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._file = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        for file in files:
            if libc.inotify_add_watch(self._file, os.fsencode(file), _IN_OPEN | _IN_ACCESS) < 0:
                raise OSError(ctypes.get_errno(), "inotify", str(file))

    def any(self) -> bool:
        """Since the last call."""
        try:
            return bool(os.read(self._file, 1 << 16))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Watch no more."""
        os.close(self._file)
