"""The shield around a vector environment of simulated hosts, so that training and serving meet the same guards."""

from __future__ import annotations

from typing import Any

from rlctl.envs.sim.loads_training import training_load
from rlctl.envs.sim.plant import LoadModel
from rlctl.envs.sim.profile import HostProfile
from rlctl.envs.sim.sim_env import as_profile, as_weight
from rlctl.envs.sim.vector_env import SimHostVectorEnv
from rlctl.envs.workload import Weight
from rlctl.safety.batch_shield import BatchShield
from rlctl.safety.profile import DEFAULT, Profile, load_profile


class ShieldedVectorEnv(SimHostVectorEnv):
    """Every action passes the shield before the hosts see it: n `ShieldedEnv`s, number for number.

    `info["proposed"]`, `info["executed"]` and `info["overridden"]` say what became of the actions; `action_masks()`
    are the shield's. A host's guards forget when its episode begins.

    Args:
        profile: The host profile, or its name or file.
        safety: The safety profile, or its name or file.
        options: Further options of `SimHostVectorEnv`.

    Raises:
        ConfigError: There is no such profile, or no host or no step is asked for.
    """

    def __init__(
        self,
        num_envs: int = 1,
        profile: str | HostProfile = "thesis-host",
        load: LoadModel = training_load,
        *,
        safety: str | Profile = DEFAULT,
        **options: Any,
    ) -> None:
        host = as_profile(profile)
        guards = load_profile(safety) if isinstance(safety, str) else safety
        # As on a served host: at the least weight guards waive what BE is not seen to harm.
        limits = host.limits(as_weight(options.get("weight", Weight.EQUAL)))
        super().__init__(num_envs, host, load, shield=BatchShield(guards, limits, num_envs), **options)
