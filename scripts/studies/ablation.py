"""What a policy owes to each part of its training: the same recipe and hosts, less one thing at a time."""

from __future__ import annotations

from dataclasses import dataclass

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
    now_only = recipe.model_copy(update={"lags": (0,)})
    return (
        Variant(FULL, "as it ships", SHIPPED, recipe, hosts),
        Variant("no-shield", "no shield while it learns", SHIPPED, recipe, unshielded(hosts)),
        Variant("masked", "moves that the shield refuses are never tried (MaskablePPO)", "maskable-ppo", recipe, hosts),
        Variant("no-history", "sees the present tick only", SHIPPED, now_only, hosts),
        Variant("no-memory", "nothing is learned of a host", SHIPPED, recipe, forgetful(hosts)),
        Variant("no-randomisation", "the profiles themselves, no ranges", SHIPPED, recipe, fixed(hosts)),
        Variant(
            "one-work", f"BE's work is worth {WORK:g} of a violation on all hosts", SHIPPED, recipe, one_work(hosts)
        ),
        Variant("no-dial", "a violation has the same price in all episodes", SHIPPED, recipe, unpriced(hosts)),
    )


def unshielded(hosts: Hosts) -> Hosts:
    """All hosts without a shield: whatever is asked for happens."""
    return _with(hosts, tuple(kind.model_copy(update={"safety": None}) for kind in hosts.kinds))


def forgetful(hosts: Hosts) -> Hosts:
    """All hosts without their experience."""
    return _with(hosts, tuple(kind.model_copy(update={"absent": (*kind.absent, EXPERIENCE)}) for kind in hosts.kinds))


def unpriced(hosts: Hosts) -> Hosts:
    """The price of a violation is that of its kind in every episode."""
    return hosts.model_copy(update={"priced": False})


def one_work(hosts: Hosts) -> Hosts:
    """BE's work at the reward's own worth everywhere."""
    return _with(hosts, tuple(kind.model_copy(update={"work": WORK}) for kind in hosts.kinds))


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
