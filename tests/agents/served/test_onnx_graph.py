"""Only small dense networks are let near the runtime, and no bytes make the reader do anything but say why not."""

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl.agents.served.onnx_graph import MOST_NODES, MOST_WIDE, GraphError, read_graph

SIZE, MOVES = 4, 3
WEIGHT, BIAS = np.ones((MOVES, SIZE)), np.zeros(MOVES)


def test_a_policy_network_is_read(onnx_writer):
    graph = read_graph(onnx_writer.linear(WEIGHT, BIAS))
    assert graph.opset == 17
    assert graph.operators == ("Gemm",)
    assert [(one.name, one.shape) for one in graph.inputs] == [("observation", (None, SIZE))]
    assert [(one.name, one.shape) for one in graph.outputs] == [("logits", (None, MOVES))]


@given(st.binary(max_size=300))
@settings(max_examples=500)
def test_arbitrary_bytes_are_refused_and_nothing_else(data):
    with pytest.raises(GraphError):
        read_graph(data)


@given(data=st.data())
@settings(max_examples=500)
def test_a_damaged_file_is_read_or_refused(data, onnx_writer):
    whole = onnx_writer.linear(WEIGHT, BIAS)
    at = data.draw(st.integers(0, len(whole) - 1))
    put = data.draw(st.binary(max_size=6))
    cut = data.draw(st.integers(0, 6))
    with contextlib.suppress(GraphError):
        read_graph(whole[:at] + put + whole[at + cut :])


def refused(w):
    f, gemm = w.field, ("observation", "w", "b")
    tensors = [w.tensor("w", WEIGHT), w.tensor("b", BIAS)]
    return {
        "operator 'Loop'": {"nodes": [w.node("Loop", gemm, "logits")]},
        "operator 'Reshape'": {"nodes": [w.node("Reshape", gemm, "logits")]},
        "operator 'Gemm'": {"nodes": [w.node("Gemm", gemm, "logits", f(7, "com.microsoft"))]},
        "a subgraph": {"nodes": [w.node("Gemm", gemm, "logits", f(5, f(1, "body") + f(6, b"")))]},
        "a tensor as attribute": {"nodes": [w.node("Gemm", gemm, "logits", f(5, f(1, "value") + f(5, b"")))]},
        "functions of its own": {"more": f(25, b"")},
        "training steps": {"more": f(20, b"")},
        "sparse weights": {"in_graph": f(15, b"")},
        "field 7 of a model twice": {"more": f(7, b"")},
        "field 99": {"more": f(99, b"")},
        "weights in another file": {"tensors": [*tensors, w.tensor("c", BIAS, f(14, 1))]},
        "has weights in another file": {"tensors": [*tensors, w.tensor("c", BIAS, f(13, f(1, "location")))]},
        "not float32": {"tensors": [f(1, 1) + f(2, 11) + f(8, "w") + f(9, bytes(8))]},
        "input or output 'observation' that is not float32": {"inputs": [w.port("observation", ("n", SIZE), kind=7)]},
        f"shape [{MOST_WIDE + 1}]": {"tensors": [w.tensor("w", np.ones(MOST_WIDE + 1))]},
        "shape [1, 1, 1]": {"tensors": [w.tensor("w", np.ones((1, 1, 1)))]},
        f"has {MOST_NODES + 1} operators": {"nodes": [w.node("Relu", ("x",), "x")] * (MOST_NODES + 1)},
        "has 0 operators": {"nodes": []},
        "has opset 8": {"opset": 8},
        "other operator sets": {"domain": "com.microsoft"},
    }


def test_what_no_policy_needs_is_refused_by_name(subtests, onnx_writer):
    for said, changes in refused(onnx_writer).items():
        with subtests.test(said), pytest.raises(GraphError) as caught:
            read_graph(onnx_writer.linear(WEIGHT, BIAS, **changes))
        assert said in str(caught.value)


def test_packed_dimensions_are_read_as_all_readers_do(onnx_writer):
    wide = onnx_writer.field(1, b"\x81\x80\x01") + onnx_writer.field(2, 1)  # one side of 2**14 + 1
    with pytest.raises(GraphError, match=r"shape \[16385\]"):
        read_graph(onnx_writer.linear(WEIGHT, BIAS, tensors=[wide]))
