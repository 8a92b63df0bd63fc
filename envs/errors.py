"""Everything rlctl raises on purpose, as one tree.

RlctlError
 ├─ ConfigError            a file or an argument says something impossible        exit 78
 │   └─ PolicyError        an action does not fit this host, or a policy has none
 │       └─ BundleError    a deployable policy is damaged, foreign, or not for this rlctl
 ├─ PermissionMissing      the kernel said EACCES/EPERM, or root is needed        exit 77
 ├─ HostError              the host could not do it now                           exit 75
 │   ├─ CgroupError        a control group refused, or lied on read-back
 │   │   ├─ CgroupGone     the directory vanished (ENOENT, ENODEV)
 │   │   ├─ CgroupBusy     tasks or children are in the way (EBUSY)
 │   │   └─ CgroupRejected the kernel rejects the value (EINVAL, ERANGE)
 │   ├─ SensorError        a reader could not start (a reading that is merely absent is `Missing`)
 │   └─ TestbedError       a workload or the load generator could not be run
 └─ CheckFailed            a check the user asked for came out negative           exit 1
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

MOST_CHARACTERS = 2000
"""Of a message: a file may hold a key of a megabyte."""


def printable(text: str) -> str:
    """Text from outside, for a terminal or a log: what ends a line, steers a terminal or cannot be printed is `?`."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def on_one_line(text: str) -> str:
    """The same, with every run of white space as one blank."""
    return printable(" ".join(text.split()))


def meant(word: str, known: Iterable[str], all_are: str = "there are", none: str = "") -> str:
    """The end of a message about a word that nobody knows: the nearest known one, else all of them, else `none`."""
    names = tuple(known)
    if close := difflib.get_close_matches(word, names, n=1):
        return f"; did you mean '{close[0]}'?"
    return f"; {all_are} {', '.join(names)}" if names else none


class RlctlError(Exception):
    """Base of every error that rlctl raises on purpose; its text is one line for the user."""

    exit_code = 1

    def __str__(self) -> str:
        """One line whatever it quotes: what would break it is a space, what steers a terminal `?`; the rest is cut."""
        line = on_one_line(super().__str__())
        half = MOST_CHARACTERS // 2
        return line if len(line) <= MOST_CHARACTERS else f"{line[:half]} ... {line[-half:]}"


class ConfigError(RlctlError):
    """A configuration value is wrong.

    Args:
        message: What is wrong and the way out.
        line: 1-based line in that file, if known.
    """

    exit_code = 78

    def __init__(self, message: str, path: Path | str | None = None, line: int | None = None) -> None:
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(where + message)
        self.path, self.line = path, line


class PolicyError(ConfigError):
    """An action does not fit this host, or a policy has none."""


class BundleError(PolicyError):
    """A deployable policy is damaged, foreign, or made for another rlctl."""


class PermissionMissing(RlctlError):
    """The kernel refused for want of a permission."""

    exit_code = 77


class HostError(RlctlError):
    """The host could not do what was asked just now; a retry may succeed."""

    exit_code = 75


class CgroupError(HostError):
    """A control group refused a write, or read back something else."""


class CgroupGone(CgroupError):
    """The control group no longer exists (ENOENT, ENODEV)."""


class CgroupBusy(CgroupError):
    """Tasks, children or an exclusive sibling are in the way (EBUSY, ENOSPC, ENOTEMPTY)."""


class CgroupRejected(CgroupError):
    """The kernel does not take this value (EINVAL, ERANGE)."""


class SensorError(HostError):
    """A sensor could not be started."""


class TestbedError(HostError):
    """A workload or the load generator could not be run."""

    __test__ = False  # not a test class, whatever pytest thinks of the name


class CheckFailed(RlctlError):
    """A check that the user asked for came out negative."""


def require_installed(what: str, extra: str, *libraries: str) -> None:
    """Check that libraries of an extra are installed; ConfigError: what needs which, and what installs them."""
    if lacking := [name for name in libraries if find_spec(name) is None]:
        raise ConfigError(
            f"{what} needs {', '.join(lacking)}: pip install 'rlctl[{extra}]', or in a checkout "
            f"scripts/install dev,{extra}"
        )


def in_one_line(error: BaseException) -> str:
    """An error as one line for a log: our own as they are, which are written so, others with their class."""
    if isinstance(error, RlctlError):
        return str(error)
    try:
        first = next(iter(str(error).splitlines()), "")
    except BaseException:  # noqa: BLE001 - an exception of a policy's own making may fail to say what it is
        first = ""
    return f"{type(error).__name__}: {first}"[:MOST_CHARACTERS].removesuffix(": ")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """What the kernel says against reading a file, as an error of ours.

    Raises:
        PermissionMissing: The file may not be read.
        ConfigError: It cannot be read for another reason.
    """
    try:
        yield
    except PermissionError as error:
        raise PermissionMissing(f"{path}: may not be read; run as a user who may, or change its mode") from error
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", path) from error
