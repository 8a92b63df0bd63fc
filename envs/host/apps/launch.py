"""Applications come under control here: launched into a group of their own, with a registration."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from rlctl.envs.errors import CgroupBusy, ConfigError, RlctlError
from rlctl.envs.host.apps.population import PARENT, make_group
from rlctl.envs.host.apps.registry import Description, Registration, Registry
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.process import start_time

CANNOT_EXECUTE, NOT_FOUND = 126, 127  # as a shell has it

THAW_SECONDS = 0.2
BY_SIGNAL = 128
# For ended processes to leave a group; it stays while it has processes that outlive the one that was launched.
REMOVE_SECONDS = 1.0

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
_FROM_THE_TERMINAL = 128  # si_code SI_KERNEL: the whole foreground process group has it already


@dataclass(frozen=True, slots=True)
class LaunchSite:
    """Where applications are put and registered.

    Attributes:
        parent: Path of BE's group, or of a cluster's group in it.
        knobs: Without a journal: what is made here is removed.
    """

    layout: Layout = field(default_factory=Layout.detect)
    parent: str = PARENT
    registry: Registry = field(default_factory=Registry)
    knobs: Knobs = field(default_factory=lambda: Knobs(None))


def run(description: Description, command: Sequence[str], place: LaunchSite) -> int:
    """Run a command as an application until it ends; call it from a process with a single thread.

    It executes its first instruction within its group, with its environment set, when it is registered. Signals are
    passed on.

    Args:
        command: Program and arguments; empty takes the description's.

    Returns:
        Its exit code; 128 + n when signal n ended it, 126 or 127 when it could not be executed.

    Raises:
        ConfigError: There is no command.
        HostError: It cannot be put into a group or registered; it then was not executed.
        PermissionMissing: Not root.
    """
    words = tuple(command) or description.command
    if not words:
        raise ConfigError(f"application {description.name} has no command: give one after --")
    blocked = {*_PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        if (pid := os.fork()) == 0:
            _execute_when_registered(read_end, write_end, words, before, description, place)
        os.close(read_end)
        try:
            registration = register(description, pid, place)
        except BaseException:
            os.close(write_end)  # without a word: it ends
            os.waitpid(pid, 0)
            place.registry.remove(f"{pid}:{description.name}")
            with contextlib.suppress(RlctlError):
                Group.open(place.layout, f"{place.parent.strip('/')}/{pid}:{description.name}", place.knobs).remove(
                    REMOVE_SECONDS
                )
            raise
        os.write(write_end, b"\n")
        os.close(write_end)
        code = _wait_for_end(pid, registration, place, blocked)
        forget(registration, place)
        return code
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def forget(registration: Registration, place: LaunchSite) -> bool:
    """Remove an application's group and registration, unless processes are still in it; whether they are gone."""
    try:
        _group_now(registration, place).remove(REMOVE_SECONDS)
    except CgroupBusy:
        return False
    except RlctlError:  # gone already
        pass
    place.registry.remove(registration.key)
    return True


def _group_now(registration: Registration, place: LaunchSite) -> Group:
    """Its group, to which the service may have moved it since."""
    now = place.registry.read().get(registration.key, registration)
    return Group.open(place.layout, now.group, place.knobs)


def register(description: Description, pid: int, place: LaunchSite) -> Registration:
    """Register a process, and move it into a group of its own.

    Raises:
        HostError: It cannot be moved or registered; its group and its registration may be there.
        PermissionMissing: Not root.
    """
    group = make_group(place.layout, place.parent, f"{pid}:{description.name}", place.knobs)
    registration = Registration(
        **description.model_dump(exclude={"command"}), pid=pid, start_time=start_time(pid) or 0, group=group.name
    )
    place.registry.add(registration)
    # Last: below a frozen BE it could not end if anything else failed.
    group.attach(pid)
    return registration


def _execute_when_registered(
    read_end: int,
    write_end: int,
    words: Sequence[str],
    signals: set[signal.Signals] | set[int],
    description: Description,
    place: LaunchSite,
) -> NoReturn:
    """In the child: wait until it is in its group, then become the command. Never returns."""
    code = NOT_FOUND
    try:
        os.close(write_end)
        if os.read(read_end, 1):
            environment = os.environ | _environment(description, os.getpid(), place)
            for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, and a shell could not change that
                signal.signal(ignored, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)
            os.execvpe(words[0], list(words), environment)  # noqa: S606 - the user's own command
    except OSError as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_EXECUTE
        print(f"rlctl: {words[0]}: {error.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _environment(description: Description, pid: int, place: LaunchSite) -> Mapping[str, str]:
    """For an application that never asks: the most that it may ever have."""
    return {
        "RLCTL_MODE_FILE": str(place.registry.mode_file(f"{pid}:{description.name}")),
        "RLCTL_THREADS": str(description.modes[-1].threads),
    }


def _wait_for_end(pid: int, registration: Registration, place: LaunchSite, blocked: set[signal.Signals]) -> int:
    """Pass signals on until the child ends; its exit code. Once it was told to end it is thawed until it has.

    A deferred application would not hear of it, and a service freezes it again at its next tick. What SIGHUP and SIGINT
    mean is its own affair: for these it is thawed once.
    """
    ending = False
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else BY_SIGNAL - code
        got = signal.sigtimedwait(blocked, THAW_SECONDS) if ending else signal.sigwaitinfo(blocked)
        if got is not None and got.si_signo != signal.SIGCHLD:
            if got.si_code != _FROM_THE_TERMINAL:
                os.kill(pid, got.si_signo)
            ending = ending or got.si_signo in {signal.SIGTERM, signal.SIGQUIT}
        if ending or (got is not None and got.si_signo in _ENDING):
            with contextlib.suppress(RlctlError):
                freezer = _group_now(registration, place).freezer
                if freezer is not None:
                    freezer.order(False)
