"""The network of a policy: ONNX files run by onnxruntime, which is imported when the first one runs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.errors import BundleError

NO_RUNTIME = "learned policies need onnxruntime: pip install 'rlctl[serve]'"

MOST_LETTERS = 200
"""Characters of a library's error that a message takes."""


def logits_of(policy: bytes, observations: NDArray[np.float32]) -> NDArray[np.float32]:
    """Run a network that `read_graph` takes once for some observations, float32 of shape (n, size).

    Raises:
        BundleError: It does not run, or onnxruntime is not installed.
    """
    session = _session(policy)
    try:
        (logits,) = session.run(None, {session.get_inputs()[0].name: observations})
    except Exception as error:
        raise BundleError(f"policy.onnx does not run: {first_line(error)}") from error
    return np.asarray(logits, np.float32)


@lru_cache(maxsize=8)
def _session(policy: bytes) -> Any:
    """The session of a network, one for each process: benchmarks build a policy for every host."""
    try:
        import onnxruntime
    except ImportError as error:
        raise BundleError(NO_RUNTIME) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised; lines of its own would tell them a second time
    try:
        # A fallback would only try the same again, and print that on stdout.
        return onnxruntime.InferenceSession(policy, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except Exception as error:  # its errors share no base of their own
        raise BundleError(f"policy.onnx is no network that runs: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The first line of a library's error; its class where it has no text."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:MOST_LETTERS]
