"""The nodes of a Ray cluster: what each offers, and whether it runs the rlctl that the driver runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from rlctl import __version__
from rlctl.agents.training.run_folder import code_version
from rlctl.envs.errors import ConfigError, HostError, RlctlError

Result = TypeVar("Result")

Version = tuple[str, str]
"""Of rlctl: its version, and its commit as `code_version` has it."""

TESTBED, LIVE = "testbed", "live"
"""Custom resources: a node that offers the first acts for learners, with the second on the live host."""

CHECK_SECONDS = 120.0
"""For all nodes to say which rlctl they have: a worker starts on each of them, which takes seconds on a busy host."""


@dataclass(frozen=True, slots=True)
class StepResult(Generic[Result]):
    """The result of one step of a block; see `rlctl.agents.training.cluster.blocks`.

    Attributes:
        host: Address of the node; from the second time on that something was held there, with the count.
        step: Place of the step in the block; 0 begins the block, maybe again.
    """

    host: str
    block: int
    step: int
    result: Result


@dataclass(frozen=True, slots=True)
class Node:
    """A node that is alive.

    Attributes:
        address: IP address; several nodes of a test have the same.
        resources: What it offers in all, by name: `CPU`, `memory`, and what it was started with.
    """

    id: str
    address: str
    resources: Mapping[str, float]

    def holds(self, needed: Mapping[str, float]) -> bool:
        """True when a task that needs this much can ever run there."""
        return all(self.resources.get(name, 0.0) >= amount for name, amount in needed.items())


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster that we are connected to."""

    address: str

    @property
    def nodes(self) -> list[Node]:
        """Those that are alive now; more may join, and any may leave."""
        import ray

        alive = [one for one in ray.nodes() if one["Alive"]]
        return [Node(one["NodeID"], one["NodeManagerAddress"], one["Resources"]) for one in alive]

    @property
    def cpus(self) -> int:
        """CPUs of all nodes: how many tasks run at a time."""
        return sum(int(node.resources.get("CPU", 0.0)) for node in self.nodes)


def told_by(address: str, error: RlctlError) -> RlctlError:
    """The same error, that says which node it is from: what is wrong there may be right everywhere else."""
    error.args = (f"node {address}: {error}",)
    return error


def check_nodes(cluster: Cluster) -> None:
    """Check that every node runs what we run: no number means anything otherwise."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look = ray.remote(_look())
    nodes, ours = cluster.nodes, our_version()
    asked = [
        look.options(
            num_cpus=0, max_retries=1, scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False)
        ).remote()
        for node in nodes
    ]
    for node, answer in zip(nodes, asked, strict=True):
        try:
            check_version(node.address, ray.get(answer, timeout=CHECK_SECONDS), ours)
        except (ray.exceptions.TaskUnschedulableError, ray.exceptions.NodeDiedError):
            continue  # it has left since
        except ray.exceptions.RayError as error:
            raise HostError(f"node {node.address} starts no worker: {error}") from error


def _look() -> Callable[[], Version]:
    """A function that says which rlctl a node has; nested, so that it gets there by value and needs none itself."""

    def look() -> Version:
        version = ""
        try:
            from rlctl import __version__ as version
            from rlctl.agents.training.run_folder import code_version
        except ImportError as error:
            return version, str(error)
        return version, code_version()

    return look


def our_version() -> Version:
    """The rlctl that runs here."""
    return __version__, code_version()


def check_version(address: str, theirs: Version, ours: Version) -> None:
    """Raise ConfigError where a node has no rlctl or not the driver's; commits count where both run from a checkout.

    Args:
        theirs: What it has; without a version it has none, and the second says why.
    """
    (version, code), (wanted, wanted_code) = theirs, ours
    if not version:
        raise ConfigError(f"node {address} has no rlctl to run ({code}): install {wanted} there")
    if version != wanted or (code != wanted_code and wanted not in (code, wanted_code)):
        raise ConfigError(
            f"node {address} runs rlctl {version} ({code}) and the driver {wanted} ({wanted_code}): install the same"
        )
