"""The network of a policy: a chain of dense layers, kept as `weights.npz` and run by NumPy.

The file is a zip archive of `weight0.npy`, `bias0.npy` and so on, float32 in C order and stored uncompressed.
`activation.npy` is the name of the function between the layers in ASCII. It is read here member by member, each
against the size that it claims: no file, whoever wrote it, can run code, open another file, or fill the memory.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

MOST_WIDE = 4096
"""Longest side of a weight matrix."""

MOST_LAYERS = 16
MOST_FILE_BYTES = 4 << 20
"""Largest file: the networks that ship are many times smaller."""

MAGIC = b"\x93NUMPY\x01\x00"
HEADER = re.compile(
    r"\{'descr': '(?P<type><f4|\|u1)', 'fortran_order': False, 'shape': \((?P<shape>\d{1,9},(?: \d{1,9})?)\), \} *\n"
)
"""Of a .npy member; NumPy's own reader compiles the header as Python."""

MOST_LETTERS = 200
"""Characters of a library's error that a message takes."""


def _elu(x: Array) -> Array:
    return np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0)))


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = MappingProxyType(
    {
        "tanh": np.tanh,
        "relu": lambda x: np.maximum(x, np.float32(0.0)),
        "leaky_relu": lambda x: np.maximum(x, np.float32(0.01) * x),
        "elu": _elu,
        "sigmoid": lambda x: np.float32(0.5) + np.float32(0.5) * np.tanh(np.float32(0.5) * x),
    }
)
"""Functions between dense layers, with the constants that PyTorch gives them."""


class NetworkError(ValueError):
    """The weights do not make a policy's network; the text goes on from "weights.npz ..."."""


@dataclass(frozen=True, slots=True)
class Network:
    """Dense layers, with one activation after each but the last.

    Attributes:
        weights: float32, shape (outputs, inputs) each; the inputs of a layer are the outputs of the one before.
        biases: float32, shape (outputs,) each.
        activation: One of ACTIVATIONS.
    """

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    activation: str

    @property
    def layers(self) -> tuple[int, ...]:
        """Numbers of inputs, hidden units and outputs in order, such as (136, 64, 64, 18)."""
        return (self.weights[0].shape[1], *(len(bias) for bias in self.biases))

    def logits(self, observations: Array) -> Array:
        """Outputs of the last layer, shape (n, outputs), of observations of shape (n, inputs)."""
        activate = ACTIVATIONS[self.activation]
        *hidden, last = zip(self.weights, self.biases, strict=True)
        values = observations
        with np.errstate(all="ignore"):  # an answer that is not finite is refused by whoever asked
            for weight, bias in hidden:
                values = activate(values @ weight.T + bias)
            weight, bias = last
            return values @ weight.T + bias


def read_network(data: bytes) -> Network:
    """The network in the bytes of weights.npz.

    Raises:
        NetworkError: It is damaged, too large, or not a chain of dense layers.
    """
    if len(data) > MOST_FILE_BYTES:
        raise NetworkError(f"has more than {MOST_FILE_BYTES >> 20} MB, which no policy needs")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if len(members) > 2 * MOST_LAYERS + 1:
                raise NetworkError(f"has {len(members)} arrays; a policy has at most {MOST_LAYERS} layers")
            arrays = {one.filename.removesuffix(".npy"): _array(archive, one) for one in members}
    except NetworkError:
        raise
    except Exception as error:  # zipfile raises whatever a damaged file leads it to
        raise NetworkError(f"is damaged, or not an archive of arrays: {first_line(error)}") from error
    return _check_arrays(arrays)


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[np.generic]:
    """One array, whose header claims just as much as there is."""
    if member.compress_type != zipfile.ZIP_STORED or member.file_size > MOST_FILE_BYTES:
        raise NetworkError(f"holds {member.filename!r:.60} compressed, or too large; arrays are stored as they are")
    with archive.open(member) as stream:
        begin = stream.read(10)
        if begin[:8] != MAGIC or len(begin) < 10:
            raise NetworkError(f"holds {member.filename!r:.60}, which is not an array of format 1.0")
        header = stream.read(int.from_bytes(begin[8:], "little")).decode("latin-1")
        content = stream.read()
    claims = HEADER.fullmatch(header)
    if claims is None:
        raise NetworkError(f"holds {member.filename!r:.60} of {header.strip()[:80]!r}; weights are float32 in C order")
    dtype = np.dtype(claims["type"])
    shape = tuple(int(side) for side in claims["shape"].split(",") if side.strip())
    if any(not 0 < side <= MOST_WIDE for side in shape) or len(content) != dtype.itemsize * int(np.prod(shape)):
        raise NetworkError(f"holds {member.filename!r:.60} of shape {shape} with {len(content)} bytes")
    return np.frombuffer(content, dtype).reshape(shape)


def _check_arrays(arrays: Mapping[str, NDArray[np.generic]]) -> Network:
    name = arrays.get("activation")
    activation = bytes(name.tobytes()).decode("ascii", "replace") if name is not None and name.dtype == np.uint8 else ""
    if activation not in ACTIVATIONS:
        raise NetworkError(f"has the activation {activation!r:.40}; known are {', '.join(ACTIVATIONS)}")
    count, odd = divmod(len(arrays) - 1, 2)
    wanted = [f"{kind}{place}" for place in range(count) for kind in ("weight", "bias")]
    if odd or not count or {*arrays} != {"activation", *wanted}:
        raise NetworkError("does not hold a weight and a bias for each layer")
    weights = tuple(arrays[f"weight{place}"] for place in range(count))
    biases = tuple(arrays[f"bias{place}"] for place in range(count))
    inputs = weights[0].shape[-1]
    for place, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        if weight.dtype != np.float32 or bias.dtype != np.float32 or weight.ndim != 2 or bias.shape != weight.shape[:1]:
            raise NetworkError(f"has a layer {place} of shapes {weight.shape} and {bias.shape}, which do not fit")
        if weight.shape[1] != inputs:
            raise NetworkError(f"has a layer {place} with {weight.shape[1]} inputs behind {inputs} outputs")
        inputs = len(bias)
    return Network(weights, biases, activation)  # type: ignore[arg-type]


def first_line(error: BaseException) -> str:
    """The first line of a library's error; its class where it has no text."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:MOST_LETTERS]
