"""What a policy owes to each part of its training: the same recipe and hosts, less one thing at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rlctl.agents.training.host_kinds import Hosts, Kind
from rlctl.agents.training.recipe import OnPolicy
from rlctl.envs.observations import EXPERIENCE
from rlctl.envs.reward import WORK

FULL = "full"

SHIPPED = "ppo"
"""Who learns what ships as `ppo`."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One training run of the table.

    Attributes:
        name: Of its folder and its row.
        told: What is different about it.
        algorithm, recipe, hosts: What it is trained by and on.
    """

    name: str
    told: str
    algorithm: str
    recipe: OnPolicy
    hosts: Hosts


def variants(recipe: OnPolicy, hosts: Hosts) -> tuple[Variant, ...]:
    """The full training, then the others; each differs from it in one thing.

    Args:
        recipe: The hyperparameters that `ppo` ships with.
        hosts: The kinds of hosts that the full training learns on.
    """
    full = Variant(FULL, "as it ships", SHIPPED, recipe, hosts)

    def less(name: str, told: str, **changed: Any) -> Variant:
        return replace(full, name=name, told=told, **changed)

    forgetful = tuple(kind.model_copy(update={"absent": (*kind.absent, EXPERIENCE)}) for kind in hosts.kinds)
    return (
        full,
        less("no-shield", "no shield while it learns", hosts=each_kind(hosts, safety=None)),
        less("masked", "moves that the shield refuses are never tried (MaskablePPO)", algorithm="maskable-ppo"),
        less("no-history", "sees the present tick only", recipe=recipe.model_copy(update={"lags": (0,)})),
        less("no-memory", "nothing is learned of a host", hosts=_with(hosts, forgetful)),
        less("no-randomisation", "the profiles themselves, no ranges", hosts=fixed(hosts)),
        less("one-work", f"BE's work is worth {WORK:g} of a violation on all hosts", hosts=each_kind(hosts, work=WORK)),
        less(
            "no-dial",
            "a violation has the same price in all episodes",
            hosts=hosts.model_copy(update={"priced": False}),
        ),
    )


def each_kind(hosts: Hosts, **changed: Any) -> Hosts:
    """The hosts with the same changes to every kind."""
    return _with(hosts, tuple(kind.model_copy(update=changed) for kind in hosts.kinds))


def fixed(hosts: Hosts) -> Hosts:
    """The profiles as they stand, without constants and ranges of the kinds: hosts differ in load and noise alone.

    Of kinds that so become the same profile under the same shield, the first stands for all.
    """
    kinds: dict[tuple[str, str | None], Kind] = {}
    for kind in hosts.kinds:
        kinds.setdefault((kind.profile, kind.safety), kind)
    return _with(hosts, tuple(_as_the_profile(kind) for kind in kinds.values()))


def _as_the_profile(kind: Kind) -> Kind:
    """A profile's own ranges cannot be taken away, but become points."""
    plain = kind.model_copy(update={"constants": {}, "ranges": {}})
    host = plain.host()
    values = host.values()
    return plain.model_copy(update={"ranges": {name: (values[name], values[name]) for name in host.ranges}})


def _with(hosts: Hosts, kinds: tuple[Kind, ...]) -> Hosts:
    return hosts.model_copy(update={"kinds": kinds})
