"""Moves towards neighbouring quotas learn together; others learn alone."""

import numpy as np
import pytest

from rlctl.envs.actions import MOVES

torch = pytest.importorskip("torch", reason="needs rlctl[train]")
pytest.importorskip("stable_baselines3", reason="needs rlctl[train]")
pytestmark = pytest.mark.train

INDEX = {move.name: index for index, move in enumerate(MOVES)}


def test_neighbours_learn_a_little_less():
    from rlctl.agents.training.algorithms import share_gradients

    layer = torch.nn.Linear(3, len(MOVES))
    share_gradients(layer)
    layer(torch.ones(1, 3))[0, INDEX["quota-18%"]].backward()
    taken = layer.bias.grad.numpy()
    order = [INDEX[name] for name in ("quota-18%", "quota-21%", "quota-25%", "quota-100%")]
    assert taken[order[0]] == 1.0
    assert list(taken[order]) == sorted(taken[order], reverse=True)
    assert taken[order[1]] > 0.5
    for name in ("keep", "freeze", "thaw", "minimum", "cpuset+1", "cpuset-1"):
        assert taken[INDEX[name]] == 0.0, name
    assert np.allclose(layer.weight.grad.numpy(), taken[:, None])


def test_a_descent_along_shared_gradients_is_a_descent():
    """Sharing by a matrix that is not positive definite could climb."""
    from rlctl.agents.training.algorithms import kernel

    shared = kernel()
    assert np.array_equal(shared, shared.T)
    assert np.linalg.eigvalsh(shared).min() > 0.0


def test_every_quantile_shares_with_its_own_kind_only():
    from rlctl.agents.training.algorithms import share_gradients

    layer = torch.nn.Linear(2, 3 * len(MOVES))
    share_gradients(layer)
    layer(torch.ones(1, 2)).view(3, len(MOVES))[1, INDEX["quota-2%"]].backward()
    by_quantile = layer.bias.grad.view(3, len(MOVES)).abs().sum(dim=1)
    assert by_quantile[0] == by_quantile[2] == 0.0
    assert by_quantile[1] > 1.0
