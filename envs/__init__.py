"""What is controlled: vocabulary, the live host, the testbed, and the Gymnasium environments over them.

Importing this package makes `rlctl/LiveHost-v0` known to Gymnasium; the environment itself is loaded on first use.
"""

import gymnasium

gymnasium.register(
    "rlctl/LiveHost-v0",
    entry_point="rlctl.envs.host_env:HostEnv",
    nondeterministic=True,
    disable_env_checker=True,  # the checker steps twice and rebuilds the environment: not on a live host
)
