"""What tests of training share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _one_thread(request: pytest.FixtureRequest) -> None:
    """Small networks are no faster on more threads, and much slower beside other work."""
    if request.node.get_closest_marker("train"):
        import torch

        torch.set_num_threads(1)
