"""What is controlled: vocabulary, the live host with its cgroup drivers and sensors, simulated hosts, and the testbed.

Importing this package makes environments over them known to Gymnasium, `rlctl/LiveHost-v0`, `rlctl/SimHost-v0`, and
one for each simulated scenario that ships, such as `rlctl/FlashCrowd-v0`. They are loaded on first use. Gymnasium is
not imported here: the daemon needs none of it.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

SCENARIO_STEPS = {
    "thesis": 3000, "thesis-up-down": 3000, "thesis-shuffled": 3000, "diurnal": 3000, "bursty": 3000,
    "flash-crowd": 3000, "noisy": 3000, "two-core": 600, "two-core-nginx": 300, "capped-link": 300,
    "capped-link-credits": 300, "capped-disk": 300, "capped-link-sendfile": 300, "capped-link-halved": 300,
    "capped-disk-direct": 300, "capped-moving": 300,
}  # fmt: skip
"""Simulated scenarios that ship, and the ticks of a run of each."""


def _register(gymnasium: ModuleType) -> None:
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
    for name, steps in SCENARIO_STEPS.items():
        gymnasium.register(
            f"rlctl/{name.title().replace('-', '')}-v0",
            entry_point="rlctl.bench.scenarios:make_host",
            vector_entry_point="rlctl.bench.scenarios:make_hosts",
            max_episode_steps=steps,
            kwargs={"scenario": name},
        )


class _WhenImported(MetaPathFinder):
    """Finds Gymnasium as the other finders do, and registers the environments once it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Gymnasium's spec, with the registration added; None for every other module."""
        if name != "gymnasium":
            return None
        others = (finder.find_spec(name, path, target) for finder in tuple(sys.meta_path) if finder is not self)
        spec = next((spec for spec in others if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = partial(self._load, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec

    def _load(self, load: Callable[[ModuleType], None], module: ModuleType) -> None:
        load(module)
        sys.meta_path.remove(self)
        _register(module)


if "gymnasium" in sys.modules:
    _register(sys.modules["gymnasium"])
else:
    sys.meta_path.insert(0, _WhenImported())
