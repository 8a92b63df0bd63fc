"""Settings that every floor's tests share, and bundles written byte by byte: without torch and the onnx package."""

import struct
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("default")


def _varint(value):
    more = []
    while value > 0x7F:
        more.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*more, value])


def field(number, value):
    """One protobuf field: an int as varint, a float as fixed32, all else by its length."""
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def tensor(name, array, more=b""):
    array = np.asarray(array, np.float32)
    sides = b"".join(field(1, side) for side in array.shape)
    return sides + field(2, 1) + field(8, name) + field(9, array.tobytes()) + more


def port(name, sides, kind=1):
    shape = b"".join(field(1, field(2, side) if isinstance(side, str) else field(1, side)) for side in sides)
    return field(1, name) + field(2, field(1, field(1, kind) + field(2, shape)))


def node(operator, inputs, output, more=b""):
    read = b"".join(field(1, name) for name in inputs)
    return read + field(2, output) + field(4, operator) + more


def model(nodes, tensors, inputs, outputs, *, opset=17, domain="", in_graph=b"", more=b""):
    parts = ((1, nodes), (5, tensors), (11, inputs), (12, outputs))
    graph = b"".join(field(number, one) for number, many in parts for one in many)
    graph += field(2, "policy") + in_graph
    return field(1, 8) + field(8, field(1, domain) + field(2, opset)) + field(7, graph) + more


def linear(weight, bias, **changes):
    """logits = weight @ observation + bias, with weight of shape (moves, size)."""
    moves, size = np.shape(weight)
    transposed = field(5, field(1, "transB") + field(3, 1) + field(20, 2))
    gemm = node("Gemm", ("observation", "w", "b"), "logits", transposed)
    given = {
        "nodes": [gemm],
        "tensors": [tensor("w", weight), tensor("b", bias)],
        "inputs": [port("observation", ("n", size))],
        "outputs": [port("logits", ("n", moves))],
    }
    return model(**{**given, **changes})


@pytest.fixture(scope="session")
def onnx_writer():
    """The functions above."""
    made = (field, tensor, port, node, model, linear)
    return SimpleNamespace(**{one.__name__: one for one in made})


@pytest.fixture(scope="session")
def make_bundle():
    """Writes a bundle whose policy asks for as large a share as the slack is; `policy` puts another network in."""
    from rlctl.agents.bundle import save
    from rlctl.agents.card import CardParts, ObservationTable, TrainedOn, Training
    from rlctl.envs.actions import MOVES
    from rlctl.envs.observation import FEATURES, LAGS
    from rlctl.envs.workload import Weight

    def follow_slack(lags):
        """Aims at the quota nearest to the slack: -(slack - target)**2, but for a part that all targets share."""
        size = ObservationTable.here(lags).size
        slack = size - size // len(lags) + [one.name for one in FEATURES].index("slack")  # in the newest frame
        weight, bias = np.zeros((len(MOVES), size)), np.full(len(MOVES), -9.0)
        for place, move in enumerate(MOVES):
            if move.quota_ratio is not None and not move.frozen:
                weight[place, slack], bias[place] = 2.0 * move.quota_ratio, -(move.quota_ratio**2)
        return linear(weight, bias)

    def make(folder, *, policy=None, lags=LAGS, name="tiny", **parts):
        plant = TrainedOn(profile="thesis-host", digest="0" * 12, weight=Weight.MINIMUM, work=0.12, hosts=4)
        run = Training(
            hyperparameters={"gamma": 0.9}, total_timesteps=1, wall_seconds=1.0, seed=1, code="x", training_id="0" * 64
        )
        said = {"algorithm": "PPO", "tick_seconds": 1.0, "plants": (plant,), "training": run} | parts
        save(folder, name, CardParts(lags=lags, **said), follow_slack(lags) if policy is None else policy)
        return folder

    return make
