"""A model that is made from a bundle moves as the bundle does, so that what either costs can be compared."""

import numpy as np
import pytest

pytest.importorskip("sb3_contrib", reason="needs rlctl[train]")
pytest.importorskip("onnx", reason="needs rlctl[train]")

from stable_baselines3 import DQN
from torch import nn

from rlctl.agents.served import bundle
from rlctl.agents.training.export import FEWEST, export
from rlctl.agents.training.sb3_model import parts_of, recorded
from rlctl.agents.training.sb3_vec_env import SimVecEnv
from rlctl.envs.errors import BundleError
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


def test_a_network_that_ppo_has_not_is_refused(tmp_path, make_bundle, onnx_writer):
    field, node = onnx_writer.field, onnx_writer.node
    ours = bundle.load(make_bundle(tmp_path / "tiny"))
    size, moves = ours.card.observation.size, len(ours.card.action.moves)
    gemm = node("Gemm", ("observation", "w", "b"), "sums", field(5, field(1, "transB") + field(3, 1) + field(20, 2)))
    same = node("Identity", ("sums",), "logits")
    policy = onnx_writer.linear(np.zeros((moves, size)), np.zeros(moves), nodes=[gemm, same])
    other = bundle.load(make_bundle(tmp_path / "other", policy=policy))
    with pytest.raises(BundleError, match=r"tiny: Gemm > Identity is no network that PPO has; give its MODEL\.zip"):
        as_ppo(other)
