"""A bundle that loads is what its card says, and whatever does not fit is one line before anything runs."""

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from rlctl.agents.served import bundle, bundle_writer
from rlctl.agents.served.bundle_writer import as_file
from rlctl.agents.served.card import ActionTable, Card, CardScore, ObservationTable, ScoreEstimate
from rlctl.envs.actions import MOVES
from rlctl.envs.errors import BundleError, ConfigError, PermissionMissing
from rlctl.envs.observation import LAGS
from tests.examples import examples

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


def test_bundle_answers_with_logit_for_each_move(good):
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
    card, network = bundle.read(good)
    assert card.policy_sha256 == hashlib.sha256((good / "weights.npz").read_bytes()).hexdigest()
    assert card.observation == ObservationTable.here(LAGS)
    assert card.action == ActionTable.here()
    assert card.network.layers == network.layers == (SIZE, len(MOVES))
    assert Card.model_validate_json((good / "card.json").read_text()) == card


def test_scores_are_added_to_card_that_still_loads(good):
    estimate = ScoreEstimate(mean=99.95, ci95=(99.9, 100.0))
    score = CardScore(
        qos_guarantee_percent=estimate, be_throughput_percent=estimate, shield_override_percent=estimate, seeds=30
    )
    before, _ = bundle.read(good)
    bundle_writer.add_scores(good, {"thesis": {"responsive": score}})
    after, _ = bundle.read(good)
    assert after.scores == {"thesis": {"responsive": score}}
    assert after.model_copy(update={"scores": None}) == before


@pytest.mark.parametrize("name", ["weights.npz", "card.json"])
class TestFiles:
    def test_missing(self, name, good):
        (good / name).unlink()
        refused(good, f"{name}: cannot be read: No such file", "a folder with weights.npz and card.json")

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
        refused(good, f"{name}: is not a regular file")

    def test_may_not_be_read(self, name, good, monkeypatch):
        def deny(file, flags):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("rlctl.agents.served.bundle.os.open", deny)
        with pytest.raises(PermissionMissing, match="may not be read"):
            bundle.load(good)


def test_the_folder_itself_may_be_a_link(good, tmp_path):
    (tmp_path / "link").symlink_to(good)
    assert bundle.read(tmp_path / "link")[0].name == "tiny"


def test_folder_of_a_run_gives_its_bundle(good, tmp_path):
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
        ("{", "is not JSON"),
        ("\xff", "is not JSON"),
        ('{"schema": NaN}', "NaN is not a JSON number"),
        ('{"schema": 1, "schema": 1}', "a key stands twice"),
        ("[" * 100_000, "is not JSON"),
        ("1" * 5000, "is not JSON"),
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
        (at("schema", to=1), "schema is 1"),
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
        (at("network", "activation", to="relu"), "network: is not what weights.npz holds"),
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


def smuggle(folder, weights):
    """Put another network in, with its hash in the card, as whoever wants to harm would."""
    (folder / "weights.npz").write_bytes(weights)
    edit(folder, at("policy_sha256", to=hashlib.sha256(weights).hexdigest()))


def test_another_network_than_the_cards(good, linear):
    (good / "weights.npz").write_bytes(as_file(linear(np.ones((len(MOVES), SIZE)), np.zeros(len(MOVES)))))
    refused(good, "weights.npz: has sha256", "damaged or replaced; copy the bundle again")


@pytest.mark.parametrize(("outputs", "inputs"), [(len(MOVES), SIZE + 1), (3, SIZE)])
def test_a_network_of_another_shape_is_refused(outputs, inputs, make_bundle, linear, good):
    network = linear(np.zeros((outputs, inputs)), np.zeros(outputs))
    said = f"has {inputs} inputs and {outputs} outputs, not {SIZE} and {len(MOVES)}"
    with pytest.raises(BundleError) as caught:
        make_bundle(good.parent / "other", policy=network)
    assert said in str(caught.value)
    assert not (good.parent / "other").exists()
    smuggle(good, as_file(network))
    edit(good, at("network", "layers", to=[inputs, outputs]))
    refused(good, said)


def test_a_network_that_answers_with_nan(make_bundle, linear, tmp_path):
    policy = linear(np.zeros((len(MOVES), SIZE)), np.full(len(MOVES), np.nan))
    refused(make_bundle(tmp_path / "b", policy=policy), "finite number for each move")


@given(data=st.binary(max_size=200), name=st.sampled_from(["weights.npz", "card.json"]))
@examples(20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_in_a_file_is_one_line(data, name, good):
    kept = (good / name).read_bytes()
    (good / name).write_bytes(data)
    try:
        with pytest.raises(ConfigError) as caught:
            bundle.load(good)
        assert "\n" not in str(caught.value)
    finally:
        (good / name).write_bytes(kept)


SERVE = """
import pickle, sys

def never(*_, **__):
    raise SystemExit("something was unpickled")

pickle.load = pickle.loads = pickle.Unpickler = pickle._Unpickler = never
from pathlib import Path
from rlctl.agents import catalogue
from rlctl.agents.served import bundle, bundle_writer
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


def test_loading_takes_no_torch_and_unpickles_nothing(good):
    done = subprocess.run([sys.executable, "-c", SERVE, str(good)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
