"""A network is what its file says, and no file makes the reader do more than read."""

import contextlib
import io
import itertools
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents.served.bundle_writer import as_file
from rlctl.agents.served.merge import mean_network
from rlctl.agents.served.network import (
    ACTIVATIONS,
    MOST_FILE_BYTES,
    Network,
    NetworkError,
    read_network,
)

RNG = np.random.default_rng(0)


def network(*layers, activation="tanh"):
    """Random dense layers of these sizes."""
    weights = tuple(RNG.normal(size=(after, before)).astype(np.float32) for before, after in itertools.pairwise(layers))
    return Network(weights, tuple(RNG.normal(size=len(weight)).astype(np.float32) for weight in weights), activation)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_what_is_written_is_read(activation):
    before = network(5, 4, 3, activation=activation)
    after = read_network(as_file(before))
    seen = RNG.normal(size=(7, 5)).astype(np.float32)
    assert after.layers == (5, 4, 3)
    assert as_file(after) == as_file(before)
    assert np.array_equal(after.logits(seen), before.logits(seen))


def test_activations_are_those_of_torch():
    torch = pytest.importorskip("torch", reason="needs rlctl[train]")
    values = torch.linspace(-4, 4, 101)
    functions = {
        "relu": torch.relu,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "elu": torch.nn.ELU(),
        "leaky_relu": torch.nn.LeakyReLU(),
    }
    assert functions.keys() == ACTIVATIONS.keys()
    for name, function in functions.items():
        assert np.allclose(ACTIVATIONS[name](values.numpy()), function(values).numpy(), atol=1e-6), name


@pytest.mark.parametrize("shapes", [[(5, 3)] * 2, [(5, 4, 3), (5, 8, 3)], [(5, 4, 6, 3), (5, 7, 2, 3), (5, 4, 4, 3)]])
def test_the_mean_network_answers_the_mean(shapes):
    members = [network(*shape) for shape in shapes]
    seen = RNG.normal(size=(20, 5)).astype(np.float32)
    wanted = np.mean([member.logits(seen) for member in members], axis=0)
    assert np.allclose(mean_network(members).logits(seen), wanted, atol=1e-5)


def test_members_of_other_shapes_have_no_mean():
    for other in (network(5, 4, 2), network(6, 4, 3), network(5, 4, 4, 3), network(5, 4, 3, activation="relu")):
        with pytest.raises(NetworkError, match="differ"):
            mean_network([network(5, 4, 3), other])


def archive(compression=zipfile.ZIP_STORED, **arrays):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as made:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, np.asarray(array), allow_pickle=True)
            made.writestr(f"{name}.npy", content.getvalue())
    return file.getvalue()


TANH = np.frombuffer(b"tanh", np.uint8)
WEIGHT, BIAS = np.ones((3, 2), np.float32), np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is damaged"),
        (b"PK\x03\x04", "is damaged"),
        (bytes(MOST_FILE_BYTES + 1), "more than 4 MB"),
        (archive(activation=TANH), "a weight and a bias for each layer"),
        (archive(activation=TANH, weight0=WEIGHT), "a weight and a bias for each layer"),
        (archive(weight0=WEIGHT, bias0=BIAS, weight1=WEIGHT), "the activation ''"),
        (archive(activation=np.frombuffer(b"exec", np.uint8), weight0=WEIGHT, bias0=BIAS), "the activation 'exec'"),
        (archive(activation=TANH, weight0=WEIGHT.astype(object), bias0=BIAS), "weights are float32"),
        (archive(activation=TANH, weight0=WEIGHT.astype(float), bias0=BIAS), "weights are float32"),
        (archive(activation=TANH, weight0=np.asfortranarray(WEIGHT), bias0=BIAS), "weights are float32"),
        (archive(activation=TANH, weight0=WEIGHT, bias0=BIAS[:2]), "do not fit"),
        (archive(activation=TANH, weight0=WEIGHT, bias0=BIAS, weight1=WEIGHT, bias1=BIAS), "2 inputs behind 3 outputs"),
        (archive(activation=TANH, weight0=np.ones((1, 5000), np.float32), bias0=BIAS[:1]), "of shape (1, 5000)"),
        (archive(zipfile.ZIP_DEFLATED, activation=TANH, weight0=WEIGHT, bias0=BIAS), "compressed"),
        (archive(**{f"weight{place}": WEIGHT for place in range(40)}), "has 40 arrays"),
    ],
)
def test_what_no_policy_is_gets_a_reason(data, said):
    with pytest.raises(NetworkError) as caught:
        read_network(data)
    assert said in str(caught.value)


def test_a_header_that_claims_more_takes_no_memory():
    data = archive(activation=TANH, weight0=WEIGHT, bias0=BIAS).replace(b"(3, 2)", b"(9, 9)")
    with pytest.raises(NetworkError, match=r"damaged|bytes"):
        read_network(data)


@given(st.binary(max_size=300), st.integers(0, 400))
def test_damage_is_refused_or_read(noise, place):
    sound = as_file(network(3, 2))
    with contextlib.suppress(NetworkError):
        assert read_network(sound[:place] + noise + sound[place + len(noise) :]).layers
