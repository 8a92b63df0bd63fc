"""The contents of an ONNX file, read from its bytes before anything runs it.

A protobuf reader for the few fields that a policy network has; every other field is refused by name. What is left is
a chain of small dense layers, so that no file, whoever wrote it, can make the runtime open another file, run a
subgraph or a foreign operator, or fill the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from rlctl.agents.served.card import Graph, Port

OPERATORS = frozenset({"Gemm", "MatMul", "Add", "Identity", "Tanh", "Relu", "LeakyRelu", "Elu", "Sigmoid"})
"""What the MLPs of Stable-Baselines3 need. None makes an output of more than two dimensions or wider than its inputs,
which bounds the memory; so Reshape and Concat are not among them."""

MOST_WIDE = 1024
"""Longest side of a weight matrix."""

MOST_NODES = 64
"""Longest chain of operators."""

MOST_FILE_BYTES = 4 << 20
"""Largest file: the networks that ship are many times smaller."""

OLDEST_OPSET = 13

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
FLOAT = 1
"""TensorProto.FLOAT."""

Fields = dict[int, list[int | bytes]]

# Field numbers of onnx.proto that may stand in a policy, with their wire types.
_KNOWN: Mapping[str, Mapping[int, tuple[int, ...]]] = {
    "model": {1: (VARINT,), 2: (BYTES,), 3: (BYTES,), 4: (BYTES,), 5: (VARINT,), 6: (BYTES,), 7: (BYTES,),
              8: (BYTES,), 14: (BYTES,)},
    "opset": {1: (BYTES,), 2: (VARINT,)},
    "graph": {1: (BYTES,), 2: (BYTES,), 5: (BYTES,), 10: (BYTES,), 11: (BYTES,), 12: (BYTES,), 13: (BYTES,),
              16: (BYTES,)},
    "node": {1: (BYTES,), 2: (BYTES,), 3: (BYTES,), 4: (BYTES,), 5: (BYTES,), 6: (BYTES,), 7: (BYTES,), 9: (BYTES,)},
    "attribute": {1: (BYTES,), 2: (FIXED32,), 3: (VARINT,), 13: (BYTES,), 20: (VARINT,)},
    "tensor": {1: (VARINT, BYTES), 2: (VARINT,), 4: (BYTES,), 8: (BYTES,), 9: (BYTES,), 12: (BYTES,), 14: (VARINT,)},
    "port": {1: (BYTES,), 2: (BYTES,), 3: (BYTES,), 4: (BYTES,)},
    "type": {1: (BYTES,)},
    "tensor type": {1: (VARINT,), 2: (BYTES,)},
    "shape": {1: (BYTES,)},
    "dimension": {1: (VARINT,), 2: (BYTES,)},
}  # fmt: skip

_REPEATED = {
    "model": {8, 14}, "graph": {1, 5, 11, 12, 13, 16}, "node": {1, 2, 5, 9}, "tensor": {1}, "port": {4}, "shape": {1},
}  # fmt: skip

_REFUSED: Mapping[tuple[str, int], str] = {
    ("model", 20): "training steps",
    ("model", 25): "functions of its own",
    ("graph", 15): "sparse weights",
    ("attribute", 5): "a tensor as attribute",
    ("attribute", 6): "a subgraph",
    ("attribute", 10): "tensors as attribute",
    ("attribute", 11): "subgraphs",
    ("tensor", 13): "weights in another file",
}


class GraphError(ValueError):
    """The bytes are no ONNX file, or hold more than a policy network needs."""


def read_graph(data: bytes) -> Graph:
    """Input, output and operators of a network; GraphError: it is no ONNX file, or more than small dense layers."""
    if len(data) > MOST_FILE_BYTES:
        raise GraphError(f"has more than {MOST_FILE_BYTES >> 20} MB, which no policy needs")
    model = _fields(data, "model")
    if 7 not in model:
        raise GraphError("is no ONNX model: there is no graph in it")
    graph = _fields(_bytes(model, 7), "graph")
    for tensor in _each(graph, 5):
        _check_tensor(_fields(tensor, "tensor"))
    return Graph(
        opset=_opset(model),
        inputs=tuple(_port(port) for port in _each(graph, 11)),
        outputs=tuple(_port(port) for port in _each(graph, 12)),
        operators=_operators(graph),
    )


def _opset(model: Fields) -> int:
    imported = [_fields(opset, "opset") for opset in _each(model, 8)]
    if [_text(opset, 1) for opset in imported] not in ([""], ["ai.onnx"]):
        raise GraphError("imports other operator sets than ONNX's own")
    version = _number(imported[0], 2)
    if version < OLDEST_OPSET:
        raise GraphError(f"has opset {version}; {OLDEST_OPSET} is the oldest that is taken")
    return version


def _operators(graph: Fields) -> tuple[str, ...]:
    nodes = [_fields(node, "node") for node in _each(graph, 1)]
    if not 0 < len(nodes) <= MOST_NODES:
        raise GraphError(f"has {len(nodes)} operators; from 1 to {MOST_NODES} are taken")
    for node in nodes:
        operator = _text(node, 4)
        if operator not in OPERATORS or _text(node, 7) not in ("", "ai.onnx"):
            raise GraphError(f"has the operator {_quoted(operator)}; taken are {', '.join(sorted(OPERATORS))}")
        for attribute in _each(node, 5):
            _fields(attribute, "attribute")
    return tuple(_text(node, 4) for node in nodes)


def _check_tensor(tensor: Fields) -> None:
    if _number(tensor, 14):
        raise GraphError(f"has {_REFUSED['tensor', 13]}")
    if _number(tensor, 2) != FLOAT:
        raise GraphError("has weights that are not float32")
    sides = list(chain.from_iterable([side] if isinstance(side, int) else _packed(side) for side in tensor.get(1, [])))
    if len(sides) > 2 or any(side > MOST_WIDE for side in sides):
        raise GraphError(f"has weights of shape {sides}; taken are two dimensions of up to {MOST_WIDE}")


def _port(data: bytes) -> Port:
    port = _fields(data, "port")
    tensor = _fields(_bytes(_fields(_bytes(port, 2), "type"), 1), "tensor type")
    if _number(tensor, 1) != FLOAT:
        raise GraphError(f"has an input or output {_quoted(_text(port, 1))} that is not float32")
    dimensions = [_fields(side, "dimension") for side in _each(_fields(_bytes(tensor, 2), "shape"), 1)]
    return Port(name=_text(port, 1), shape=tuple(_number(side, 1) if 1 in side else None for side in dimensions))


def _fields(data: bytes, message: str) -> Fields:
    """The fields of one message; unknown ones, and a second one of what there is one of, are refused."""
    fields: Fields = {}
    for number, kind, value in _read(data):
        kinds = _KNOWN[message].get(number)
        if kinds is None or kind not in kinds:
            what = _REFUSED.get((message, number), f"field {number} of wire type {kind} in a {message}")
            raise GraphError(f"has {what}")
        if number in fields and number not in _REPEATED.get(message, ()):
            raise GraphError(f"has field {number} of a {message} twice")  # readers differ in which one counts
        fields.setdefault(number, []).append(value)
    return fields


def _read(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = _varint(data, at)
            yield number, kind, value
            continue
        size = {FIXED64: 8, FIXED32: 4}.get(kind)
        if kind == BYTES:
            size, at = _varint(data, at)
        if size is None or number == 0 or at + size > len(data):
            raise GraphError("is no ONNX file, or a damaged one")
        yield number, kind, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value & (1 << 64) - 1, at + place + 1
    raise GraphError("is no ONNX file, or a damaged one")


def _packed(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


def _each(fields: Fields, number: int) -> list[bytes]:
    return [value for value in fields.get(number, []) if isinstance(value, bytes)]


def _bytes(fields: Fields, number: int) -> bytes:
    return next(iter(_each(fields, number)), b"")


def _number(fields: Fields, number: int) -> int:
    return next((value for value in fields.get(number, []) if isinstance(value, int)), 0)


def _text(fields: Fields, number: int) -> str:
    return _bytes(fields, number).decode("utf-8", "replace")


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")
