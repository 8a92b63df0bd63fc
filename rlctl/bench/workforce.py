"""Work shared out: one function over many items, in this process, on processes beside it, or on a Ray cluster."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from rlctl.agents.training.cluster.connection import connected, ended_as_interrupted
from rlctl.envs.errors import HostError
from rlctl.log.progress import say

Item = TypeVar("Item")
Result = TypeVar("Result")

PR_SET_PDEATHSIG = 1  # linux/prctl.h

Completions = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[tuple[int, Any]]]
"""Runs a function on items; gives the place of each item with its result, in order of completion."""


class Workforce:
    """Whoever runs a function on many items, `count` at a time; the results are the same whoever it is."""

    def __init__(self, count: int, complete: Completions) -> None:
        self.count, self._complete = count, complete

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        done: Callable[[Item], object] = lambda _: None,
    ) -> list[Result]:
        """The function's results in the items' order; the first that raises ends it all.

        Args:
            function: Of a module, so that other processes can import it; items and results are pickled.
        """
        results: dict[int, Result] = {}
        for place, result in self._complete(function, items):
            results[place] = result
            done(items[place])
        return [results[place] for place in range(len(items))]


HERE = Workforce(1, lambda function, items: enumerate(map(function, items)))
"""This process alone."""


@contextlib.contextmanager
def kept_at_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP interrupt meanwhile, so that what was measured is kept and what was changed is put back.

    The exit code is the signal's all the same. A signal that is ignored stays so, as nohup has it.
    """
    ends = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)}
    ends = {one: handler for one, handler in ends.items() if handler is not signal.SIG_IGN}
    with contextlib.ExitStack() as stack:
        for one, handler in ends.items():
            stack.callback(signal.signal, one, handler)
        stack.enter_context(ended_as_interrupted(ends))
        yield


@contextlib.contextmanager
def workforce(workers: int | None = None, ray: str | None = None, *, logs: bool = False) -> Iterator[Workforce]:
    """Processes that stay for all work of the block, or a Ray cluster.

    Args:
        workers: Processes, or CPUs of a cluster that is started here; None is one for each CPU.
        ray: Address of a Ray cluster as `cluster.connection.connected` takes it; None for processes here.
    """
    if ray is not None:
        with _on_ray(ray, workers, logs=logs) as cluster:
            yield cluster
    elif (count := workers or usable_cpus()) == 1:
        yield HERE
    else:
        with pool_of(count) as pool:
            yield Workforce(count, functools.partial(_on_processes, pool))


def usable_cpus() -> int:
    """CPUs that this process may run on: the default number of workers."""
    return len(os.sched_getaffinity(0))


@contextlib.contextmanager
def pool_of(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool that any exception ends at once, with what its processes do."""
    others = set(multiprocessing.active_children())
    # Spawned, not forked: a progress bar's thread may hold a lock at the moment of a fork.
    context = multiprocessing.get_context("spawn")
    # SIGTERM and SIGHUP end this process in order, too: the pool's semaphores would be left to a warning otherwise.
    with kept_at_signals(), ProcessPoolExecutor(count, context, begin, (os.getpid(),)) as pool:
        try:
            yield pool
        except BaseException:
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()  # a piece of work may have minutes to go
            raise


def begin(parent: int) -> None:
    """Leave Ctrl-C to the parent, and end with it, whatever ends it: a pool's processes wait for more work forever.

    Args:
        parent: Its pid. The kernel looks at the thread that started us, which is the one that uses the pool.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it goes to the whole process group; the parent ends us, quietly
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # one that has come meanwhile ends us here


def _on_processes(
    pool: ProcessPoolExecutor, function: Callable[[Any], Any], items: Sequence[Any]
) -> Iterator[tuple[int, Any]]:
    # Processes are born deaf to Ctrl-C and SIGTERM, which they inherit: before `begin` each would end with a traceback.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        places = {pool.submit(function, item): place for place, item in enumerate(items)}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        for future in as_completed(places):
            yield places[future], future.result()
    except BrokenProcessPool as error:
        raise HostError("a worker was killed, for its memory perhaps; give fewer (--jobs, --workers)") from error


def _call_with_copies(function: Callable[[Any], Any], item: Any) -> Any:
    """Ray lends arrays read-only, from shared memory, both ways; simulated hosts change theirs."""
    return function(copy.deepcopy(item))


@contextlib.contextmanager
def _on_ray(address: str, workers: int | None, *, logs: bool) -> Iterator[Workforce]:
    lost: list[str] = []

    def again(line: str) -> None:
        lost.append(line)
        say(f"{line}; doing it again")

    with kept_at_signals(), connected(address, cpus=workers, logs=logs) as cluster:
        from rlctl.agents.training.cluster.tasks import map_tasks  # imports Ray, which is known to be there only now

        def complete(function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
            task = functools.update_wrapper(functools.partial(_call_with_copies, function), function)
            with contextlib.closing(map_tasks(cluster, task, items, lost=again)) as results:
                yield from ((place, copy.deepcopy(result)) for place, result in results)

        say(f"Ray at {address}: nodes: {len(cluster.nodes)}, CPUs: {cluster.cpus}")
        yield Workforce(cluster.cpus, complete)
    if lost:
        say(f"tasks lost and done again: {len(lost)}; no number depends on it")
