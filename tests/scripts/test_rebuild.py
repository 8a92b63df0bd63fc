"""A model that is made from a bundle moves as the bundle does, so that what either costs can be compared."""

import numpy as np
import pytest

pytest.importorskip("sb3_contrib", reason="needs rlctl[train]")

from stable_baselines3 import DQN
from torch import nn

from rlctl.agents.served import bundle
from rlctl.agents.training.export import FEWEST, export
from rlctl.agents.training.sb3_model import parts_of, recorded
from rlctl.agents.training.sb3_vec_env import SimVecEnv
from rlctl.envs.sim.vector_env import SimHostVectorEnv
from tests.doubles.rebuild import as_ppo

pytestmark = pytest.mark.train

LAGS = (1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("network", [{"net_arch": [16, 8], "activation_fn": nn.ReLU}, {"net_arch": []}])
def test_it_moves_as_the_bundle_does(tmp_path, network):
    env = SimVecEnv(SimHostVectorEnv(2, lags=LAGS))
    model = DQN("MlpPolicy", env, seed=1, device="cpu", buffer_size=100, policy_kwargs=network)
    seen = recorded(LAGS, FEWEST)
    export(model, tmp_path / "tiny", name="tiny", card=parts_of(model, tmp_path / "x.zip", LAGS), observations=seen)
    ours = bundle.load(tmp_path / "tiny")
    chosen, _ = as_ppo(ours).predict(seen, deterministic=True)
    assert np.array_equal(chosen, ours.logits(seen).argmax(axis=1))
