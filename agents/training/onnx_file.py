"""A bundle's network as an ONNX file, for programs other than rlctl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlctl import __version__
from rlctl.agents.served.network import Network
from rlctl.envs.whole_file import whole

OPSET, IR_VERSION = 17, 8
"""Old enough for any onnxruntime from 1.12 on."""

_OPERATORS = {"tanh": "Tanh", "relu": "Relu", "leaky_relu": "LeakyRelu", "elu": "Elu", "sigmoid": "Sigmoid"}


def write_onnx(network: Network, file: Path) -> None:
    """Write the network, `observation` (n, size) to `logits` (n, moves), float32."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes: list[Any] = []
    weights: list[Any] = []
    last, read = len(network.weights) - 1, "observation"
    for place, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        names = [f"weight{place}", f"bias{place}"]
        weights += [numpy_helper.from_array(one, name) for one, name in zip((weight, bias), names, strict=True)]
        made = "logits" if place == last else f"dense{place}"
        nodes.append(helper.make_node("Gemm", [read, *names], [made], transB=1))
        if place < last:
            read = f"hidden{place}"
            nodes.append(helper.make_node(_OPERATORS[network.activation], [made], [read]))
    sizes = network.layers[0], network.layers[-1]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
        for name, size in zip(("observation", "logits"), sizes, strict=True)
    ]
    graph = helper.make_graph(nodes, "policy", ports[:1], ports[1:], weights)
    made_by = {"producer_name": "rlctl", "producer_version": __version__, "ir_version": IR_VERSION}
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], **made_by)
    onnx.checker.check_model(model, full_check=True)
    with whole(file, lasting=True) as stream:
        stream.write(model.SerializeToString())
