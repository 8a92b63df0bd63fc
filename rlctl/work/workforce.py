"""Work shared out: one function over many items, in this process, on processes beside it, or on a Ray cluster."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from rlctl.agents.training.cluster.connection import connected
from rlctl.envs.errors import HostError
from rlctl.work.interrupts import kept_at_signals
from rlctl.work.pool import pool_of
from rlctl.work.progress import say

Item = TypeVar("Item")
Result = TypeVar("Result")

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


def _on_processes(
    pool: ProcessPoolExecutor, function: Callable[[Any], Any], items: Sequence[Any]
) -> Iterator[tuple[int, Any]]:
    places = {pool.submit(function, item): place for place, item in enumerate(items)}
    try:
        for future in as_completed(places):
            yield places[future], future.result()
    except BrokenProcessPool as error:
        raise HostError("a worker was killed, for its memory perhaps; give fewer (--jobs, --workers)") from error


@contextlib.contextmanager
def _on_ray(address: str, workers: int | None, *, logs: bool) -> Iterator[Workforce]:
    lost: list[str] = []

    def again(line: str) -> None:
        lost.append(line)
        say(f"{line}; doing it again")

    with kept_at_signals(), connected(address, cpus=workers, logs=logs) as cluster:
        from rlctl.agents.training.cluster.tasks import map_tasks  # imports Ray, which is known to be there only now

        def complete(function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
            task = functools.update_wrapper(functools.partial(_copied, function), function)
            with contextlib.closing(map_tasks(cluster, task, items, lost=again)) as results:
                yield from ((place, copy.deepcopy(result)) for place, result in results)

        say(f"Ray at {address}: nodes: {len(cluster.nodes)}, CPUs: {cluster.cpus}")
        yield Workforce(cluster.cpus, complete)
    if lost:
        say(f"tasks lost and done again: {len(lost)}; no number depends on it")


def _copied(function: Callable[[Any], Any], item: Any) -> Any:
    """Ray lends arrays read-only, from shared memory, both ways; simulated hosts change theirs."""
    return function(copy.deepcopy(item))
