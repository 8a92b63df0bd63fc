"""One function over many pieces of a fleet: here, on processes that stay, or as tasks on a Ray cluster."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from typing import Any, Protocol, TypeVar

from rlctl.agents.training.cluster.connection import connected
from rlctl.work.pool import pool_of

__all__ = ["Run", "workforce"]

Item = TypeVar("Item")
Result = TypeVar("Result")


class Run(Protocol):
    """Runs a function on every item, and returns the results in the items' order."""

    def __call__(self, function: Callable[[Item], Result], items: Sequence[Item], /) -> list[Result]:
        """The function is of a module, so that other processes import it; items and results are pickled."""
        ...


@contextlib.contextmanager
def workforce(
    ray: str | None, workers: int | None, say: Callable[[str], None], *, logs: bool = False
) -> Iterator[tuple[int, Run]]:
    """How many pieces are done at a time, and who does them; the numbers are the same whoever it is.

    Args:
        ray: Address of a Ray cluster as `cluster.connection.connected` takes it; None for processes here.
        workers: Processes, or CPUs of a cluster that is started here; None is one for each CPU.
        say: Takes a line for each task that was lost and is done again.
        logs: Show what Ray logs.

    Raises:
        ConfigError: Ray is not installed, the address is none, or a node has another rlctl.
        HostError: Nobody answers there.
    """
    if ray is not None:
        with _on_ray(ray, workers, say, logs=logs) as found:
            yield found
        return
    count = workers or len(os.sched_getaffinity(0))
    if count == 1:
        yield 1, _here
        return
    with pool_of(count) as pool:
        yield count, _on(pool)


def _here(function: Callable[[Item], Result], items: Sequence[Item], /) -> list[Result]:
    return [function(item) for item in items]


def _on(pool: ProcessPoolExecutor) -> Run:
    def run(function: Callable[[Item], Result], items: Sequence[Item], /) -> list[Result]:
        futures: list[Future[Result]] = [pool.submit(function, item) for item in items]
        for future in as_completed(futures):
            future.result()  # the first that fails ends it, not the last
        return [future.result() for future in futures]

    return run


@contextlib.contextmanager
def _on_ray(address: str, workers: int | None, say: Callable[[str], None], *, logs: bool) -> Iterator[tuple[int, Run]]:
    with connected(address, cpus=workers, logs=logs) as cluster:
        from rlctl.agents.training.cluster.tasks import map_tasks  # imports Ray, which is known to be there only now

        def told(line: str) -> None:
            say(f"{line}; doing it again")

        def run(function: Callable[[Item], Result], items: Sequence[Item], /) -> list[Result]:
            found: dict[int, Any] = {}
            with contextlib.closing(map_tasks(cluster, functools.partial(_own, function), items, lost=told)) as results:
                found.update((place, copy.deepcopy(result)) for place, result in results)
            return [found[place] for place in range(len(items))]

        say(f"Ray at {address}: nodes: {len(cluster.nodes)}, CPUs: {cluster.cpus}")
        yield cluster.cpus, run


def _own(function: Callable[[Item], Result], item: Item) -> Result:
    """Ray lends arrays read-only, from shared memory, both ways; simulated hosts change theirs."""
    return function(copy.deepcopy(item))
