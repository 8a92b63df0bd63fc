"""BE's CPU weight: what the configuration and the policy want, and its write."""

from __future__ import annotations

import logging

from rlctl.agents.policy import Policy
from rlctl.config.serve import BeWeight
from rlctl.envs.errors import CgroupError, CgroupGone
from rlctl.envs.plant import Plant
from rlctl.envs.workload import Weight

log = logging.getLogger("rlctl.serve")


def weight_of(policy: Policy, wanted: BeWeight) -> Weight | None:
    """BE's weight by the configuration, or the policy's own where that is less; None: it is left as it is."""
    if wanted == "leave":
        return None
    # Idle is less than minimum, and the policy may ask for less than the file, never for more.
    return Weight.IDLE if Weight.IDLE in (wanted, policy.weight) else Weight.MINIMUM


def set_weight(plant: Plant, policy: Policy, wanted: BeWeight) -> None:
    """Give BE the weight of `weight_of`."""
    if (weight := weight_of(policy, wanted)) is None:
        log.info("BE keeps the CPU weight that it has (be.weight: leave)")
        if policy.weight is not Weight.EQUAL:
            log.warning("policy %s reckons with %s CPU weight for BE", policy.name, policy.weight)
        return
    log.debug("BE's CPU weight: %s, unless a group has less (be.weight: %s)", weight, wanted)
    try:
        plant.set_weight(weight)
    except CgroupError as error:
        # cpu.idle came with Linux 5.15: without it the minimum protects the LC nearly as well.
        if weight is Weight.MINIMUM or isinstance(error, CgroupGone):
            raise
        log.warning("%s: BE gets the minimum CPU weight instead", error)
        plant.set_weight(Weight.MINIMUM)
