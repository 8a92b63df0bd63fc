"""An exported bundle moves as its model does, and a model that cannot be one is refused before anything is written."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sb3_contrib", reason="needs rlctl[train]")

import torch
from sb3_contrib import QRDQN, MaskablePPO
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from rlctl.agents.served import bundle
from rlctl.agents.training.export import FEWEST, export, weights_of
from rlctl.agents.training.host_kinds import load_hosts
from rlctl.agents.training.recipe import load_recipe
from rlctl.agents.training.run_folder import begin
from rlctl.agents.training.sb3_model import load_model, parts_of, recorded
from rlctl.agents.training.sb3_vec_env import SimVecEnv
from rlctl.agents.training.training_run import TrainingRun
from rlctl.cli import main
from rlctl.envs.errors import BundleError, ConfigError
from rlctl.envs.observation import LAGS
from rlctl.envs.sim.vector_env import SimHostVectorEnv

pytestmark = pytest.mark.train

ON_POLICY = {"n_steps": 4, "batch_size": 8}
OFF_POLICY = {"learning_starts": 1, "buffer_size": 100, "batch_size": 4}
LEARNERS = [
    (PPO, ON_POLICY, {}),
    (PPO, ON_POLICY, {"net_arch": [16], "activation_fn": nn.ELU}),
    (PPO, ON_POLICY, {"net_arch": [], "share_features_extractor": False}),
    (MaskablePPO, ON_POLICY, {"activation_fn": nn.LeakyReLU}),
    (DQN, OFF_POLICY, {}),
    (QRDQN, OFF_POLICY, {"n_quantiles": 7}),
]


@pytest.fixture(scope="module")
def observations():
    return recorded(LAGS, FEWEST)


def trained(learner=PPO, settings=ON_POLICY, network=None, lags=LAGS):
    """A model after its first update."""
    env = SimVecEnv(SimHostVectorEnv(4, lags=lags))
    model = learner("MlpPolicy", env, seed=1, device="cpu", policy_kwargs=network or {}, **settings)
    return model.learn(16)


def parts(model, lags=LAGS):
    return parts_of(model, Path("model.zip"), lags)


def refused(model, out, observations, *said):
    with pytest.raises(BundleError) as caught:
        export(model, out, name="x", card=parts(model), observations=observations)
    assert all(part in str(caught.value) for part in said), caught.value
    assert not out.exists()


@pytest.mark.parametrize(("learner", "settings", "network"), LEARNERS)
def test_the_bundle_chooses_as_the_model_does(learner, settings, network, observations, tmp_path):
    model = trained(learner, settings, network)
    card = export(model, tmp_path / "b", name="b", card=parts(model), observations=observations)
    loaded = bundle.load(tmp_path / "b")
    assert loaded.card == card
    assert card.algorithm == learner.__name__
    unseen = np.random.default_rng(1).uniform(-1, 1, (200, observations.shape[1])).astype(np.float32)
    expected, _ = model.predict(unseen, deterministic=True)
    assert np.array_equal(loaded.logits(unseen).argmax(axis=1), expected)


def test_a_model_without_history(tmp_path):
    model = trained(lags=(0,))
    export(model, tmp_path / "b", name="b", card=parts(model, (0,)), observations=recorded((0,), FEWEST))
    assert bundle.load(tmp_path / "b").card.lags == (0,)


@pytest.mark.parametrize(("learner", "settings"), [(PPO, ON_POLICY), (QRDQN, OFF_POLICY)])
def test_same_weights_give_the_same_bytes(learner, settings):
    model = trained(learner, settings)
    before = torch.get_rng_state()
    assert weights_of(model) == weights_of(model)
    assert torch.equal(torch.get_rng_state(), before)


def test_recorded_observations_are_the_same_and_differ(observations):
    assert len(observations) >= FEWEST
    assert observations.dtype == np.float32
    assert np.array_equal(observations, recorded(LAGS, FEWEST))
    assert len(np.unique(observations, axis=0)) > 0.9 * len(observations)


def test_model_unlike_its_network_is_refused(observations, tmp_path, monkeypatch):
    model = trained()
    predict = model.predict

    def tampered(seen, **options):
        chosen, state = predict(seen, **options)
        chosen[17] = (chosen[17] + 1) % model.action_space.n
        return chosen, state

    monkeypatch.setattr(model, "predict", tampered)
    refused(model, tmp_path / "b", observations, "chooses otherwise than the model on 1 of")


def test_a_model_whose_forward_was_changed_is_refused(observations, tmp_path):
    model = trained()
    model.policy.action_net.register_forward_hook(lambda layer, given, answer: answer + 0.01 * given[0].sum())
    refused(model, tmp_path / "b", observations, "logits differ from the model's by up to")


def test_a_model_that_diverged_is_refused(observations, tmp_path):
    model = trained()
    with torch.no_grad():
        model.policy.action_net.bias[0] = float("nan")
    refused(model, tmp_path / "b", observations, "not finite")


def test_unknown_layer_is_refused_by_name(observations, tmp_path):
    model = trained(network={"activation_fn": nn.GELU})
    refused(model, tmp_path / "b", observations, "a layer GELU; a bundle takes Linear and Tanh")


def test_a_network_that_is_too_wide_is_refused(observations, tmp_path):
    model = trained(network={"net_arch": [5000]})
    refused(model, tmp_path / "b", observations, "of shape (5000")


def test_a_network_that_is_too_large_is_refused(observations, tmp_path):
    model = trained(network={"net_arch": [1024, 1024]})
    refused(model, tmp_path / "b", observations, "has more than 4 MB")


def test_other_spaces_and_too_few_observations_are_refused(observations, tmp_path):
    refused(trained(lags=(0,)), tmp_path / "b", observations, "the model sees (", "it was trained on others")
    refused(trained(), tmp_path / "b", observations[:-1][: FEWEST - 1], f"give {FEWEST} or more of")
    refused(trained(), tmp_path / "b", observations[:, :-1], "observations of shape")
    refused(trained(PPO, ON_POLICY), tmp_path / "b", observations.astype(float), "float32")


@pytest.mark.slow
def test_command_exports_and_replaces_nothing_unasked(tmp_path, capsys):
    model = trained(DQN, OFF_POLICY)
    model.save(tmp_path / "model.zip")
    words = ["export", str(tmp_path / "model.zip"), "--out", str(tmp_path / "mine")]
    assert main(words) == 0
    assert "mine, DQN, weights.npz" in capsys.readouterr().out
    card = bundle.load(tmp_path / "mine").card
    assert (card.name, card.training.total_timesteps, card.training.seed) == ("mine", model.num_timesteps, 1)
    assert card.training.hyperparameters["gamma"] == 0.99
    assert main(words) == 78
    assert "give --force to replace it" in capsys.readouterr().err
    assert main([*words, "--force", "--name", "dqn"]) == 0
    assert bundle.load(tmp_path / "mine").card.name == "dqn"


def test_model_under_vecnormalize_is_refused(tmp_path, capsys):
    """Without its statistics it would choose by other figures than it learned on."""
    env = VecNormalize(SimVecEnv(SimHostVectorEnv(4)))
    PPO("MlpPolicy", env, seed=1, device="cpu", **ON_POLICY).learn(160).save(tmp_path / "model.zip")
    words = ["export", str(tmp_path / "model.zip"), "--out", str(tmp_path / "mine")]
    assert main(words) == 78, "what it saw last is beyond its space"
    assert "train without it" in capsys.readouterr().err
    trained().save(tmp_path / "model.zip")
    env.save(str(tmp_path / "vecnormalize.pkl"))
    assert main(words) == 78, "they lie beside it"
    assert not (tmp_path / "mine").exists()


def test_the_onnx_file_answers_as_the_bundle(tmp_path, observations):
    onnxruntime = pytest.importorskip("onnxruntime", reason="not installed here")
    trained().save(tmp_path / "model.zip")
    file = tmp_path / "policy.onnx"
    assert main(["export", str(tmp_path / "model.zip"), "--out", str(tmp_path / "mine"), "--onnx", str(file)]) == 0
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (answers,) = session.run(None, {"observation": observations})
    assert np.allclose(answers, bundle.load(tmp_path / "mine").logits(observations), atol=1e-4)


@pytest.mark.parametrize(
    ("onnx", "said"),
    [("mine/card.json", "of the bundle"), ("mine", "of the bundle"), ("", "a folder"), ("a", "--force")],
)
def test_onnx_file_that_cannot_be_costs_no_bundle(onnx, said, tmp_path, capsys):
    (tmp_path / "a").touch()
    out = tmp_path / "mine"
    assert main(["export", "model.zip", "--out", str(out), "--onnx", str(tmp_path / onnx)]) == 78
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_model_of_a_run_keeps_its_history(tmp_path):
    run = tmp_path / "run"
    recipe = load_recipe("ppo").model_copy(update={"lags": (0,)})
    begin(TrainingRun("ppo", recipe, load_hosts(), (), run, arguments={"algorithm": "ppo"}))
    trained(lags=(0,)).save(run / "best_model.zip")
    assert main(["export", str(run / "best_model.zip"), "--out", str(tmp_path / "mine")]) == 0
    assert bundle.load(tmp_path / "mine").card.lags == (0,)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04garbage", None])
def test_what_is_no_model_is_one_line(content, tmp_path, capsys):
    if content is not None:
        (tmp_path / "model.zip").write_bytes(content)
    assert main(["export", str(tmp_path / "model.zip"), "--out", str(tmp_path / "mine")]) == 78
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "model.zip: " in err


@pytest.mark.parametrize("module", ["td3", "common"], ids=["TD3", "A2C"])
def test_unexportable_learner_is_told_before_its_pickles(module, tmp_path):
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as file:
        file.writestr("data", json.dumps({"policy_class": {"__module__": f"stable_baselines3.{module}.policies"}}))
    with pytest.raises(
        ConfigError, match=rf"holds a policy of stable_baselines3\.{module}\.policies; PPO, MaskablePPO"
    ):
        load_model(tmp_path / "model.zip")
