"""A bundle that loads is what its card says, and whatever does not fit is one line before anything runs."""

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlctl.agents.served import bundle, network
from rlctl.agents.served.card import ActionTable, Card, Estimate, ObservationTable, Score
from rlctl.envs.actions import MOVES
from rlctl.envs.errors import BundleError, ConfigError, PermissionMissing
from rlctl.envs.observation import LAGS

SIZE = ObservationTable.here(LAGS).size


@pytest.fixture
def good(make_bundle, tmp_path):
    return make_bundle(tmp_path / "tiny")


def refused(folder, *parts):
    """Loading it fails in one line that has all parts."""
    with pytest.raises(BundleError) as caught:
        bundle.load(folder)
    said = str(caught.value)
    assert "\n" not in said
    assert all(part in said for part in parts), said


def edit(folder, change):
    """Change the card as somebody with an editor would."""
    file = folder / "card.json"
    card = json.loads(file.read_text())
    change(card)
    file.write_text(json.dumps(card))


def test_a_bundle_answers_with_a_logit_for_each_move(good):
    pytest.importorskip("onnxruntime", reason="needs rlctl[serve]")
    loaded = bundle.load(good)
    one = np.random.default_rng(0).uniform(-1, 1, SIZE).astype(np.float32)
    assert loaded.logits(one).shape == (len(MOVES),)
    many = loaded.logits(np.stack([one, -one, one]))
    assert many.shape == (3, len(MOVES))
    assert many.dtype == np.float32
    assert np.allclose(many[0], loaded.logits(one))
    with pytest.raises(BundleError, match=f"sees {SIZE} numbers"):
        loaded.logits(one[:-1])


def test_the_card_says_what_the_files_are(good):
    card, policy = bundle.read(good)
    assert card.policy_sha256 == hashlib.sha256(policy).hexdigest()
    assert card.observation == ObservationTable.here(LAGS)
    assert card.action == ActionTable.here()
    assert card.graph.operators == ("Gemm",)
    assert json.loads((good / "card.json").read_text())["schema"] == 1
    assert Card.model_validate_json((good / "card.json").read_text()) == card


def test_what_would_be_too_large_to_load_is_not_written(make_bundle, tmp_path):
    with pytest.raises(BundleError, match=r"policy\.onnx: has more than 4 MB"):
        make_bundle(tmp_path / "large", policy=bytes(bundle.MOST_BYTES["policy.onnx"] + 1))
    assert not (tmp_path / "large").exists()


def test_one_session_serves_all_policies_of_a_bundle(good):
    pytest.importorskip("onnxruntime", reason="needs rlctl[serve]")
    network._session.cache_clear()
    for _ in range(3):
        bundle.load(good)
    assert network._session.cache_info().misses == 1
    assert sorted(one.name for one in good.iterdir()) == ["card.json", "policy.onnx"], "nothing is written beside it"


def test_scores_are_added_to_a_card_that_still_loads(good):
    estimate = Estimate(mean=99.95, ci95=(99.9, 100.0))
    score = Score(
        qos_guarantee_percent=estimate, be_throughput_percent=estimate, shield_override_percent=estimate, seeds=30
    )
    before, _ = bundle.read(good)
    bundle.add_scores(good, {"thesis": {"responsive": score}})
    after, _ = bundle.read(good)
    assert after.scores == {"thesis": {"responsive": score}}
    assert after.model_copy(update={"scores": None}) == before


@pytest.mark.parametrize("name", ["policy.onnx", "card.json"])
class TestFiles:
    def test_missing(self, name, good):
        (good / name).unlink()
        refused(good, f"{name}: cannot be read: No such file", "a folder with policy.onnx and card.json")

    def test_too_large(self, name, good):
        with (good / name).open("ab") as file:
            file.truncate(bundle.MOST_BYTES[name] + 1)
        refused(good, f"{name}: has more than {bundle.MOST_BYTES[name] >> 20} MB")

    def test_a_link_out_of_the_folder(self, name, good, tmp_path):
        (good / name).rename(tmp_path / name)
        (good / name).symlink_to(tmp_path / name)
        refused(good, f"{name}: is a link out of the bundle")

    def test_a_link_to_itself(self, name, good):
        (good / name).unlink()
        (good / name).symlink_to(name)
        refused(good, f"{name}: ")

    def test_a_folder_or_a_pipe(self, name, good):
        (good / name).unlink()
        (good / name).mkdir()
        before = len(os.listdir("/proc/self/fd"))
        refused(good, f"{name}: cannot be read: Is a directory")
        assert len(os.listdir("/proc/self/fd")) == before
        (good / name).rmdir()
        os.mkfifo(good / name)
        refused(good, f"{name}: is no file")

    def test_may_not_be_read(self, name, good, monkeypatch):
        def deny(file, flags):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("rlctl.agents.served.bundle.os.open", deny)
        with pytest.raises(PermissionMissing, match="may not be read"):
            bundle.load(good)


def test_the_folder_itself_may_be_a_link(good, tmp_path):
    (tmp_path / "link").symlink_to(good)
    assert bundle.read(tmp_path / "link")[0].name == "tiny"


def test_the_folder_of_a_run_is_answered_with_that_of_its_bundle(good, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "bundle").symlink_to(good)
    with pytest.raises(BundleError, match=r"did you mean .*/run/bundle\?"):
        bundle.read(run)


def test_no_folder_at_all(tmp_path):
    refused(tmp_path / "nowhere", "nowhere/card.json: cannot be read: No such file")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no JSON"),
        ("\xff", "is no JSON"),
        ('{"schema": NaN}', "NaN is no JSON number"),
        ('{"schema": 1, "schema": 1}', "a key stands twice"),
        ("[" * 100_000, "is no JSON"),
        ("1" * 5000, "is no JSON"),
        ("[]", "card.json: "),
        ("{}", "is missing"),
    ],
)
def test_a_card_that_is_none(text, said, good):
    (good / "card.json").write_bytes(text.encode("latin-1"))
    refused(good, "card.json: ", said)


def at(*path, to):
    """An edit that puts a value at a place of the card."""

    def change(card):
        for key in path[:-1]:
            card = card[key]
        card[path[-1]] = to

    return change


OLD = "use the rlctl that made it"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (at("shema", to=1), "unknown key 'shema'; did you mean 'schema'?"),
        (at("schema", to=2), "schema is 2"),
        (at("seed", to=1), "unknown key 'seed'"),
        (at("masked", to=False), "masked is False"),
        (at("name", to="../x"), "name is '../x'"),
        (at("tick_seconds", to="1"), "tick_seconds is '1'"),
        (at("tick_seconds", to=0), "tick_seconds is 0"),
        (at("plants", 0, "hosts", to=1.5), "plants.0.hosts is 1.5"),
        (at("plants", 0, "work", to=0.0), "plants.0.work is 0.0"),
        (at("policy_sha256", to="0"), "policy_sha256 is '0'"),
        (at("policy_sha256", to="0" * 64), "damaged or replaced"),
        (
            at("observation", "version", to=0),
            f"observation.version: 0, here it is {ObservationTable.here(LAGS).version}",
        ),
        (at("observation", "size", to=7), f"observation.size: 7, here it is {SIZE}"),
        (at("observation", "features", 0, "high", to=7.0), "observation.features: row 0 is (name='slack'"),
        (at("observation", "features", to=[]), "observation.features: 0 rows"),
        (at("observation", "lags", to=[0]), "lags [16, 8, 4, 2, 1, 0] are not those of the observation, [0]"),
        (at("action", "version", to=0), "action.version: 0"),
        (at("action", "moves", 1, "quota_ratio", to=0.5), "action.moves: row 1 is (name="),
        (at("graph", "operators", to=["Tanh"]), "graph: is not what policy.onnx holds"),
    ],
)
def test_a_card_that_does_not_fit(change, said, good):
    edit(good, change)
    refused(good, ": ", said)


@pytest.mark.parametrize(
    ("lags", "said"), [([3, 0], "lags: [3] are not among"), ([1, 2, 0], "oldest first"), ([], "oldest first")]
)
def test_a_history_that_observers_do_not_have(lags, said, good):
    def change(card):
        card["lags"] = card["observation"]["lags"] = lags

    edit(good, change)
    refused(good, said, OLD)


def dense(onnx_writer, **changes):
    return onnx_writer.linear(np.zeros((len(MOVES), SIZE)), np.zeros(len(MOVES)), **changes)


def smuggle(folder, policy):
    """Put another network in, with its hash in the card, as whoever wants to harm would."""
    (folder / "policy.onnx").write_bytes(policy)
    edit(folder, at("policy_sha256", to=hashlib.sha256(policy).hexdigest()))


def test_another_network_than_the_cards(good, onnx_writer):
    (good / "policy.onnx").write_bytes(dense(onnx_writer))
    refused(good, "policy.onnx: has sha256", "damaged or replaced; copy the bundle again")


def test_a_network_with_a_foreign_operator(good, onnx_writer):
    gemm = onnx_writer.node("PyOp", ("observation", "w", "b"), "logits")
    smuggle(good, dense(onnx_writer, nodes=[gemm]))
    refused(good, "policy.onnx: has the operator 'PyOp'; taken are Add, Elu, Gemm")


@pytest.mark.parametrize(
    ("kind", "sides", "said"),
    [
        ("inputs", [("n", SIZE), ("n", SIZE)], "has 2 inputs, a policy has one"),
        ("outputs", [("n", len(MOVES)), ("n", len(MOVES))], "has 2 outputs, a policy has one"),
        ("outputs", [], "has 0 outputs"),
        ("inputs", [("n", SIZE + 1)], f"input (n, {SIZE + 1}) is not (n, {SIZE})"),
        ("outputs", [("n", 3)], f"output (n, 3) is not (n, {len(MOVES)})"),
        ("inputs", [(1, SIZE)], f"input (1, {SIZE}) is not (n, {SIZE})"),
    ],
)
def test_a_network_of_another_shape_is_neither_written_nor_read(kind, sides, said, make_bundle, onnx_writer, good):
    names = {"inputs": "observation", "outputs": "logits"}
    policy = dense(onnx_writer, **{kind: [onnx_writer.port(names[kind], one) for one in sides]})
    with pytest.raises(BundleError) as caught:
        make_bundle(good.parent / "other", policy=policy)
    assert said in str(caught.value)
    assert not (good.parent / "other").exists()
    smuggle(good, policy)
    ports = [{"name": names[kind], "shape": [None if side == "n" else side for side in one]} for one in sides]
    edit(good, at("graph", kind, to=ports))
    refused(good, said)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tensors": []}, "is no network that runs"),
        ({"opset": 9999}, "is no network that runs"),
    ],
)
def test_a_network_that_the_runtime_does_not_take(changes, said, make_bundle, onnx_writer, tmp_path):
    pytest.importorskip("onnxruntime", reason="needs rlctl[serve]")
    refused(make_bundle(tmp_path / "b", policy=dense(onnx_writer, **changes)), "policy.onnx", said)


def test_a_network_that_answers_with_nan(make_bundle, onnx_writer, tmp_path):
    pytest.importorskip("onnxruntime", reason="needs rlctl[serve]")
    policy = onnx_writer.linear(np.zeros((len(MOVES), SIZE)), np.full(len(MOVES), np.nan))
    refused(make_bundle(tmp_path / "b", policy=policy), "finite number for each move")


@given(data=st.binary(max_size=200), name=st.sampled_from(["policy.onnx", "card.json"]))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_in_a_file_is_one_line(data, name, good):
    kept = (good / name).read_bytes()
    (good / name).write_bytes(data)
    try:
        with pytest.raises(ConfigError) as caught:
            bundle.load(good)
        assert "\n" not in str(caught.value)
    finally:
        (good / name).write_bytes(kept)


def test_without_onnxruntime_the_way_out_is_told(good, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    network._session.cache_clear()
    refused(good, "pip install 'rlctl[serve]'")
    assert bundle.read(good)[0].name == "tiny", "a card can be read without it"


SERVE = """
import pickle, sys

def never(*_, **__):
    raise SystemExit("something was unpickled")

pickle.load = pickle.loads = pickle.Unpickler = pickle._Unpickler = never
from pathlib import Path
from rlctl.agents import catalogue
from rlctl.agents.served import bundle
from rlctl.agents.served.learned import LearnedPolicy
from rlctl.envs.allocation import Limits
from rlctl.envs.observation import Observer
from rlctl.envs.telemetry import Quantile, Telemetry

limits = Limits(2)
policy = catalogue.build(sys.argv[1])
current = policy.start(limits)
policy.act(Observer(limits, 1.0).observe(Telemetry(0.0, 0.01, Quantile(0.004)), current))
print(sorted({"torch", "stable_baselines3", "onnx", "cloudpickle", "joblib", "sklearn", "dill"} & set(sys.modules)))
"""


def test_to_load_and_act_takes_no_torch_and_unpickles_nothing(good):
    pytest.importorskip("onnxruntime", reason="needs rlctl[serve]")
    done = subprocess.run([sys.executable, "-c", SERVE, str(good)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
