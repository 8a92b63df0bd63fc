"""A Ray cluster to work on: one of this machine's own, or one that others started.

    with connected("local", cpus=2) as cluster:
        for place, result in map_tasks(function, items): ...

What is reached is checked before anything runs: Ray is installed and of the cluster's version, somebody answers at the
address, and every node has this rlctl. Ray reports no usage from here, and what is started here has a small store for
objects, no dashboard, and leaves no folder behind.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, NoReturn

from rlctl.agents.training.cluster.nodes import Cluster, check_nodes
from rlctl.envs import plugins
from rlctl.envs.errors import ConfigError, HostError, require_installed
from rlctl.envs.terminal import leave_terminal

LOCAL = "local"
"""The address that starts a cluster on this machine, for as long as we are connected."""

STORE_BYTES = 96 << 20
"""Of objects in shared memory on a cluster that we start. Ray takes 30 % of the memory otherwise; 75 is its least."""

ONE_THREAD: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
)
"""Environment of every worker: as many workers as CPUs, so one thread each for numpy and torch."""

QUIET: Mapping[str, str] = MappingProxyType(
    {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # announces a change about GPUs in every process otherwise
    }
)
"""Set before Ray is imported, where the user has not."""

IMPATIENT: Mapping[str, str] = MappingProxyType({"RAY_gcs_server_port_wait_time_s": "1"})
"""Tries where somebody listens who is no Ray: at its own twenty a mistyped port would hold us up for minutes."""

FOLDERS, PREFIX = Path("/tmp"), "rlctl-ray-"  # noqa: S108 - made there by tempfile
"""Where a cluster that we start has its folder, and how that begins; the number of our process comes next."""

PROBE_SECONDS = 3.0


def require_ray() -> None:
    """Raise ConfigError where Ray is not installed."""
    require_installed("a cluster", "distributed", "ray")


def check_ray(address: str | None, option: str, processes: int | None) -> None:
    """Raise ConfigError where Ray is missing, or `option`, a number of processes, is given for a cluster of others."""
    if not address:
        return
    if processes and address != LOCAL:
        raise ConfigError(f"{option} is for --ray {LOCAL}; another cluster does as many tasks at a time as it has CPUs")
    require_ray()


def check_reachable(address: str | None, names: Iterable[str]) -> None:
    """ConfigError for a bundle by a relative path: on a cluster of others that starts where `ray start` was."""
    if address in (None, LOCAL):
        return
    for name in names:
        if ("/" in name or plugins.is_file(name)) and not Path(name).is_absolute():
            here = Path(name).absolute()
            raise ConfigError(f"{name}: with --ray {address} give the path at which every node has it, such as {here}")


@contextlib.contextmanager
def connected(
    address: str, *, cpus: int | None = None, resources: Mapping[str, float] = MappingProxyType({}), logs: bool = False
) -> Iterator[Cluster]:
    """Connect to a cluster, and leave it at the end; what still runs for us there is ended then.

    While connected, SIGTERM ends this process as `sys.exit` does, unless it was handled before.

    Args:
        address: `local` to start one, `auto` for the one that runs on this machine, or HOST:PORT of one that this
            machine is a node of.
        cpus: Tasks that a local one runs at a time; None is one for each CPU that we may use.
        resources: Custom resources that a local one offers, such as `testbed`.

    Raises:
        ConfigError: Ray is not installed, the address is none, or a node has no rlctl or another one.
        HostError: Nobody answers there, or the cluster is of another version of Ray or Python.
    """
    require_ray()
    with contextlib.ExitStack() as stack:
        os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
        import ray

        where = _own(stack, cpus, resources) if address == LOCAL else _existing(stack, address)
        handler = signal.getsignal(signal.SIGTERM)
        stack.callback(signal.signal, signal.SIGTERM, handler)
        _keep_off_stdout(stack, logs)
        stack.callback(ray.shutdown)
        try:
            ray.init(**where, log_to_driver=logs, logging_level=logging.INFO if logs else logging.ERROR)
        except Exception as error:  # some of Ray's are of that class itself
            raise HostError(f"Ray at {address}: {_why_not(error)}") from error
        cluster = Cluster(address)
        with ended_as_interrupted({signal.SIGTERM: handler}):
            check_nodes(cluster)
            yield cluster


@contextlib.contextmanager
def ended_as_interrupted(before: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Signals as Ctrl-C, so that what was measured is kept; the exit code is the signal's all the same.

    Ray aborts at SIGTERM, and at a SystemExit within its own code.

    Args:
        before: The handler of each signal until now; one that somebody wrote stays. The caller puts them back.
    """
    caught: list[int] = []

    def interrupt(number: int, _: FrameType | None) -> NoReturn:
        caught.append(number)
        if number == signal.SIGHUP:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a shell passes it on, and the kernel sends it again
            leave_terminal()
        raise KeyboardInterrupt

    for number, handler in before.items():
        signal.signal(number, handler if callable(handler) else interrupt)
    try:
        yield
    except KeyboardInterrupt:
        if caught:
            sys.exit(128 + caught[0])
        raise


def _keep_off_stdout(stack: contextlib.ExitStack, logs: bool) -> None:
    """Ray prints there what workers print and which node died, where tables and JSON go; there is no option for it."""
    from ray._private import worker

    printed = worker.print_to_stdstream

    def on_stderr(data: Mapping[str, Any], **options: Any) -> None:
        if logs:
            printed({**data, "is_err": True}, **options)

    worker.print_to_stdstream = on_stderr
    stack.callback(setattr, worker, printed.__name__, printed)


def _own(stack: contextlib.ExitStack, cpus: int | None, resources: Mapping[str, float]) -> dict[str, Any]:
    """How a cluster is started; workers inherit our environment, which lets them use those that Ray starts ahead.

    Its folder is in /tmp: the path of a socket has 107 characters at most.
    """
    stack.enter_context(environment(ONE_THREAD))
    sweep(FOLDERS)
    folder = tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", dir=FOLDERS, ignore_cleanup_errors=True)
    return {
        "address": LOCAL,
        "num_cpus": cpus or len(os.sched_getaffinity(0)),
        "resources": dict(resources),
        "object_store_memory": STORE_BYTES,
        "include_dashboard": False,
        "_temp_dir": stack.enter_context(folder),
    }


def sweep(folders: Path) -> None:
    """Remove what clusters of ours have left there whose process was killed."""
    for folder in folders.glob(f"{PREFIX}*-*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists() and folder.lstat().st_uid == os.geteuid():
            shutil.rmtree(folder, ignore_errors=True)


def _existing(stack: contextlib.ExitStack, address: str) -> dict[str, Any]:
    """How a cluster is joined, once somebody listens there."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", address)
    if address != "auto":
        _probe(address)
    stack.enter_context(environment(IMPATIENT))
    return {"address": address, "runtime_env": {"env_vars": dict(ONE_THREAD)}}


def _why_not(error: Exception) -> str:
    """In a line; Ray tells of tokens at length, or only in what the error came from."""
    if "auth" in f"{error} {error.__cause__ or error.__context__}".lower():
        return "it takes another token, or any: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH as on its nodes"
    if "Could not find any running Ray instance" in str(error):
        return "there is none on this machine: `ray start --head` starts one, --ray local one for this command alone"
    return str(error)


def _probe(address: str) -> None:
    """Raise what is wrong with an address, at once."""
    host, _, port = address.rpartition(":")
    if "/" in address or not host or not port.isdigit():
        raise ConfigError(
            f"--ray {address}: give local, auto, or HOST:PORT of a cluster's head, on a machine that is a node of it"
        )
    for name in (host, socket.gethostname()) if host in ("localhost", "127.0.0.1") else (host,):  # as Ray takes it
        with contextlib.suppress(OSError), socket.create_connection((name, int(port)), PROBE_SECONDS):
            return
    raise HostError(f"no Ray cluster answers at {address}; `ray start --head` starts one")


@contextlib.contextmanager
def environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Environment variables set for a while, where the user has not set them."""
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
