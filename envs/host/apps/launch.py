"""Applications come under control here: launched into a group of their own, or adopted from wherever they run."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from rlctl.envs.errors import CgroupBusy, CgroupGone, ConfigError, HostError, RlctlError
from rlctl.envs.host.apps.groups import PARENT, home_of, make_group, return_home
from rlctl.envs.host.apps.registry import Description, Registration, Registry
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import STATE_DIR, lock_owner
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.process import ancestors, read_task, start_time

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
        state: The service's state directory, whose lock names its process; it need not be there.
        knobs: Without a journal: what is made here is removed, and an adopted process returned.
    """

    layout: Layout = field(default_factory=Layout.detect)
    parent: str = PARENT
    registry: Registry = field(default_factory=Registry)
    state: Path = STATE_DIR
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
            registration = _register_process(description, pid, place)
        except BaseException:
            os.close(write_end)  # without a word: it ends
            os.waitpid(pid, 0)
            raise
        os.write(write_end, b"\n")
        os.close(write_end)
        code = _wait_for_end(pid, registration, place, blocked)
        forget(registration, place)
        return code
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def adopt(description: Description, pid: int, place: LaunchSite) -> Registration:
    """Take a running process, with all its threads but not its children, into a group of its own, and register it.

    Raises:
        ConfigError: It is an application already, the kernel's, this very process or one above it, or the service:
            frozen with BE, these could not give it back.
        HostError: There is no such process, or it cannot be moved; it then is where it was.
        PermissionMissing: Not root.
    """
    begun = start_time(pid)
    if begun is None:
        raise HostError(f"process {pid}: No such process: has it ended?")
    taken = next((one for one in place.registry.read().values() if one.pid == pid and one.runs()), None)
    if taken is not None:
        raise ConfigError(f"process {pid} is application {taken.key} already; `rlctl app release {taken.key}` first")
    if why := _reason_unfit(pid, place.state):
        raise ConfigError(f"process {pid} is no best-effort application: it is {why}")
    return _register_process(description, pid, place, home_of(pid, place.layout, place.knobs))


def _reason_unfit(pid: int, state: Path) -> str:
    """What a process is that must not be frozen with BE, or cannot; empty for any other."""
    task = read_task(pid)
    if task is not None and task.kernel_thread:
        return "a kernel thread"
    if pid == 1 or pid in ancestors(os.getpid()):
        return "rlctl's own, or one that it was started from"
    return "the service that controls BE" if pid == lock_owner(state) else ""


def release(registration: Registration, place: LaunchSite) -> None:
    """Undo an adoption: the processes return to where they were, and group and registration are removed.

    Raises:
        ConfigError: It was launched, not adopted: it has no other place.
        CgroupGone: Its group is gone, and it runs elsewhere; its home stays registered.
        CgroupError: A process could not be moved back; all stays as it is.
    """
    if not registration.home:
        raise ConfigError(f"{registration.key} was launched, not adopted: end it instead")
    try:
        group = _group_now(registration, place)
        if group.freezer is not None:
            group.freezer.order(False)
        return_home(group, registration.home, place.layout, place.knobs)
    except CgroupGone as error:
        if registration.runs():
            home, file = " ".join(map(str, registration.home)), place.registry.path(registration.key)
            way_out = f"move it into {home} by hand, then remove {file}"
            raise CgroupGone(f"{error}, but process {registration.pid} runs: {way_out}") from error
    forget(registration, place)


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


def _register_process(
    description: Description, pid: int, place: LaunchSite, home: tuple[Path, ...] = ()
) -> Registration:
    """Group and registration of a process; neither if something fails, and then it is where it was."""
    before = home or home_of(pid, place.layout, place.knobs)
    with contextlib.ExitStack() as failing:
        group = make_group(place.layout, place.parent, f"{pid}:{description.name}", place.knobs)
        failing.callback(group.remove)
        failing.callback(lambda: return_home(group, before, place.layout, place.knobs))
        group.attach(pid)
        registration = Registration(
            **description.model_dump(exclude={"command"}),
            pid=pid,
            start_time=start_time(pid) or 0,
            group=group.name,
            home=home,
        )
        place.registry.add(registration)
        failing.pop_all()
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
