"""CPU weights where they decide between LC and BE: just below the lowest group that holds both.

The kernel shares a CPU among the children of one group by their weights (sched-design-CFS.rst, "Group scheduler
extensions"; cgroup-v2.rst, "Weights"). With BE in `machine.slice` and the LC in `system.slice` the weights of the
slices count: that of BE itself is void there, however low.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.errors import RlctlError
from rlctl.envs.host.cgroup.driver import IDLE, CpuDriver
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.workload import Weight

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rivals:
    """The two groups whose weights decide between a BE group and the LC.

    Attributes:
        be, lc: Drivers of the group that BE is in, or is, and of the LC's, both just below the one that holds both.
        own: `be` is BE's own group, whose weight is set in any case.
    """

    be: CpuDriver
    lc: CpuDriver
    own: bool


def find_rivals(group: Group, lc: Group) -> Rivals | None:
    """Where the weights of a BE group and the LC meet; None where a CPU hierarchy has not both of them."""
    if group.cpu is None or lc.cpu is None:
        return None
    # The first level at which the two paths differ is where the scheduler chooses between them.
    ours, theirs = group.cpu.group.parts, lc.cpu.group.parts
    common = next((depth for depth, (one, two) in enumerate(zip(ours, theirs, strict=False)) if one != two), None)
    if common is None:  # one holds the other
        return None
    # Both have the same parent: only siblings compete by weight.
    be, against = Path(*ours[: common + 1]), Path(*theirs[: common + 1])
    return Rivals(group.cpu.of_group(be), group.cpu.of_group(against), be == group.cpu.group)


def effective_share(groups: Sequence[Group], lc: Group, knobs: Knobs, planned: Weight | None = None) -> float | None:
    """BE's share of a CPU that it and the LC both want all of, by their weights: the largest that any BE group gets.

    None where no BE group has a weight beside the LC's. Raises as `Knobs.read` does.

    Args:
        planned: A low weight that BE is to get: the share once it is set, where it will count.
    """
    ours = _directories(groups)
    weights: dict[Path, tuple[dict[Path, int], int]] = {}  # of BE's groups and of the LC's, by the one that holds both
    for rivals in filter(None, (find_rivals(group, lc) for group in groups)):
        of_be, _ = weights.setdefault(rivals.be.group.parent, ({}, _weight(rivals.lc)))
        of_be[rivals.be.group] = _weight(rivals.be)
        if planned and planned.is_least and (rivals.own or _holds_only(knobs, rivals.be.group, ours)):
            of_be[rivals.be.group] = min(of_be[rivals.be.group], rivals.be.weights[planned])
    # share = w_BE / (w_BE + w_LC) while both want the CPU (sched-design-CFS.rst); groups of BE side by side add up.
    both = [(sum(of_be.values()), against) for of_be, against in weights.values()]
    return max((ours / (ours + against) for ours, against in both if ours + against), default=None)


def set_above(groups: Sequence[Group], lc: Group, weight: Weight, knobs: Knobs) -> str:
    """Set the weight of the topmost groups that hold BE alone, where those decide; any but the least is taken back.

    Returns:
        Why BE's own weight is void, and what to set; empty where it counts.
    """
    ours, why = _directories(groups), ""
    found = filter(None, (find_rivals(group, lc) for group in groups))
    for rivals in {one.be.group: one for one in found}.values():
        if rivals.own:
            continue
        top, native = rivals.be, rivals.be.weights[weight]
        # A low weight of a group with others in it would starve those too: theirs is not ours to lower.
        alone = _holds_only(knobs, top.group, ours)
        if weight.is_least and alone:
            if (before := _weight(top)) > native:  # an operator's cpu.idle stays
                log.info("group %s holds BE alone: CPU weight %s for it too, was %s", top.group, native, before)
                top.set_weight(native)
            continue
        top.restore_weight()
        why = (
            f"the weights of {top.group} ({_weight(top)}) and {rivals.lc.group} ({_weight(rivals.lc)}) decide between "
            f"BE and the LC, and others are in {top.group} too: set {top.weight_file} there to "
            f"{top.weights[Weight.MINIMUM]}, or move BE into a slice of its own"
        )
    return why if weight.is_least else ""


def _directories(groups: Sequence[Group]) -> set[Path]:
    return {group.cpu.group for group in groups if group.cpu is not None}


def _weight(cpu: CpuDriver) -> int:
    return IDLE if cpu.idle() else cpu.weight()


def _holds_only(knobs: Knobs, top: Path, ours: set[Path]) -> bool:
    """Whether all that is within a group is BE's."""
    left = [top]
    while left:
        group = left.pop()
        if group in ours:
            continue
        # A leaf without processes counts as another's: whoever made it may start something there at any time.
        children = knobs.children(group)
        try:
            if not children or knobs.read(group / "cgroup.procs").split():
                return False
        except RlctlError:  # a group that vanishes holds nobody
            continue
        left += children
    return True
