"""What the placed applications leave of the budget, given to them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rlctl.agents.allocator.allocate import levels
from rlctl.agents.allocator.contributions import HAIR
from rlctl.envs.applications import Application, Cluster, Placement


def stretch_placements(
    placements: Mapping[str, Placement],
    applications: Sequence[Application],
    clusters: Sequence[Cluster],
    budget_cpus: float,
) -> dict[str, Placement]:
    """Give what is left of the budget to those placed, so that none of it lies idle; modes and clusters stay.

    Priorities are served in order, and within one all grow in proportion to their modes. No application gets more than
    its mode has threads while another could use it. BarbequeRTRM leaves what its modes do not ask for idle, to save
    power; that is `placements` as it is.

    Returns:
        The same applications: none has less, and neither the budget nor a cluster's quota is exceeded.
    """
    rest = _Rest(placements, clusters, budget_cpus)
    ranks = [[app for app in level if app.name in placements] for level in levels(applications)]
    for level in ranks:
        rest.grow({app.name: float(app.modes[placements[app.name].mode].threads) for app in level}, level)
    for level in ranks:
        rest.grow({app.name: math.inf for app in level}, level)
    return {name: replace(placement, cpus=rest.cpus[name]) for name, placement in placements.items()}


class _Rest:
    """CPU time by application, and what is left of the budget and of each cluster."""

    def __init__(self, placements: Mapping[str, Placement], clusters: Sequence[Cluster], budget_cpus: float) -> None:
        self._placements = placements
        self.cpus = {name: placement.cpus for name, placement in placements.items()}
        self._budget_cpus = budget_cpus - sum(self.cpus.values())
        self._free_cpus = {cluster.name: cluster.quota_cpus for cluster in clusters}
        for placement in placements.values():
            self._free_cpus[placement.cluster] -= placement.cpus

    def grow(self, most: Mapping[str, float], level: Sequence[Application]) -> None:
        """Raise all of a level in proportion to their modes, until each has its most or nothing is left for it."""
        pace = {app.name: app.modes[self._placements[app.name].mode].cpus for app in level}
        while pace := {name: cpus for name, cpus in pace.items() if self._may_grow(name, most[name])}:
            factor = min(self._until_full(pace), min((most[name] - self.cpus[name]) / pace[name] for name in pace))
            for name, cpus in pace.items():
                self._give(name, factor * cpus)

    def _may_grow(self, name: str, most_cpus: float) -> bool:
        left = min(self._budget_cpus, self._free_cpus[self._placements[name].cluster], most_cpus - self.cpus[name])
        return left > HAIR

    def _until_full(self, pace: Mapping[str, float]) -> float:
        """By what multiple of their pace all can grow until the budget or the first of their clusters is used up."""
        together: dict[str, float] = {}
        for name, cpus in pace.items():
            cluster = self._placements[name].cluster
            together[cluster] = together.get(cluster, 0.0) + cpus
        by_cluster = min(self._free_cpus[cluster] / cpus for cluster, cpus in together.items())
        return min(by_cluster, self._budget_cpus / sum(pace.values()))

    def _give(self, name: str, cpus: float) -> None:
        self.cpus[name] += cpus
        self._budget_cpus -= cpus
        self._free_cpus[self._placements[name].cluster] -= cpus
