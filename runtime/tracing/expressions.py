"""Expressions: values of a graph that do not depend on the model's input.

They are computed from parameters and buffers, or made in `forward`: a standardized
weight, a table of positions, a mask. Every rank computes them whole, at each call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import fx

# functions that read shape and dtype of their operand, not its values
OF_SHAPE = {
    *("zeros_like", "ones_like", "full_like", "empty_like"),
    *("rand_like", "randn_like", "randint_like"),
    *("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"),
    "new_empty_strided",
}
# functions that read shape and dtype of their second operand
LIKE_SECOND = {"to"}
# functions that draw random numbers, without the _ of their in-place form
DRAWS = {
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like"),
    *("randint_like", "bernoulli", "normal", "uniform", "random", "exponential"),
    *("multinomial", "poisson", "log_normal", "cauchy", "geometric", "binomial"),
    *("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"),
    *("dropout1d", "dropout2d", "dropout3d", "rrelu", "gumbel_softmax"),
    *("trunc_normal", "scaled_dot_product_attention"),
}


def of_shape(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A tensor of which no values may be read; it takes the memory of one word."""
    return torch.empty((), dtype=dtype, device=device).expand(shape)


def constant(values: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A function that gives a tensor of the model that is no parameter or buffer."""

    def run() -> torch.Tensor:
        return values

    run.__name__ = "constant"
    return run


def is_computed(node: fx.Node) -> bool:
    """Whether a value is the input or computed from it."""
    return node.op != "get_attr" and not node.meta.get("expression", False)


def is_expression(node: fx.Node) -> bool:
    """Whether a node is a call that does not depend on the input."""
    return bool(node.meta.get("expression", False))


def leaves(node: fx.Node) -> Iterator[str]:
    """The parameters and buffers that a value without input is computed from."""
    if node.op == "get_attr":
        yield str(node.target)
    for each in node.all_input_nodes if is_expression(node) else ():
        yield from leaves(each)


def keep_used(graph: fx.Graph, given: Collection[fx.Node]) -> None:
    """Erase the calls of functions that nobody reads and that change nothing.

    given: what stays, too. Assertions stay.
    """
    for node in reversed(list(graph.nodes)):
        if node.users or node.op not in ("call_function", "get_attr"):
            continue
        if node in given:
            continue
        if may_change(node) or getattr(node.target, "__name__", "") == "asserted":
            continue
        graph.erase_node(node)


def may_change(node: fx.Node) -> bool:
    """Whether a function may change a tensor: in place, or running statistics."""
    name: Any = getattr(node.target, "__name__", "")
    keeps = node.op == "call_function" and str(name) in ("batch_norm", "instance_norm")
    return keeps or bool(node.meta.get("changes"))


def behind(*nodes: fx.Node) -> dict[fx.Node, None]:
    """Some nodes, and all from which they are computed."""
    found, to_see = dict[fx.Node, None](), [*nodes]
    while to_see:
        node = to_see.pop()
        if node not in found:
            found[node] = None
            to_see += node.all_input_nodes
    return found
