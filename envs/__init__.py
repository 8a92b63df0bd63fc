"""What is controlled: vocabulary, live and simulated hosts, the testbed, and the Gymnasium environments over them.

Importing this package makes `rlctl/LiveHost-v0`, `rlctl/SimHost-v0` and `rlctl/ReplayHost-v0` known to Gymnasium; the
environments themselves are loaded on first use.
"""

import gymnasium

gymnasium.register(
    "rlctl/LiveHost-v0",
    entry_point="rlctl.envs.host_env:HostEnv",
    nondeterministic=True,
    disable_env_checker=True,  # the checker steps twice and rebuilds the environment: not on a live host
)
gymnasium.register(
    "rlctl/SimHost-v0",
    entry_point="rlctl.envs.sim.sim_env:SimHost",
    vector_entry_point="rlctl.envs.sim.vector_env:SimHostVectorEnv",
    max_episode_steps=300,
)
gymnasium.register("rlctl/ReplayHost-v0", entry_point="rlctl.envs.replay:ReplayHost")
