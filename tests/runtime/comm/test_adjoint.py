"""Linear maps with adjoints: gradients are those of torch, there is one derivative, no tensor is kept."""

from __future__ import annotations

import weakref
from functools import partial

import pytest
import torch

from synth.runtime.comm.adjoint import same, with_adjoint


def test_gradients_are_those_of_the_matrix() -> None:
    matrix, values = torch.randn(3, 5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    values.requires_grad_()
    found = with_adjoint(values, partial(torch.mv, matrix), partial(torch.mv, matrix.T))
    weights = torch.randn(3, dtype=torch.float64)
    expected = matrix @ values
    torch.testing.assert_close(found, expected)
    mine, torchs = (torch.autograd.grad(each @ weights, values) for each in (found, expected))
    torch.testing.assert_close(mine, torchs)


def test_the_same_words_have_a_gradient_of_their_own() -> None:
    values = torch.ones(4, requires_grad=True)
    made = with_adjoint(values, same, lambda gradient: 3 * gradient)
    assert made.data_ptr() == values.data_ptr()
    made.sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [3.0] * 4


def test_there_is_no_second_derivative() -> None:
    values = torch.ones(2, requires_grad=True)
    (gradient,) = torch.autograd.grad(
        with_adjoint(values, same, same).square().sum(), values, create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_the_graph_keeps_no_values() -> None:
    leaf = torch.ones(8, requires_grad=True)
    inner = leaf + 1
    kept = weakref.ref(inner)
    made = with_adjoint(inner, torch.clone, torch.clone)
    del inner
    assert kept() is None
    made.sum().backward()
    assert leaf.grad is not None
