"""Recurrent layers along a sequence that stays whole: ranks divide their samples."""

from __future__ import annotations

from typing import Any

from torch import fx

from synth.runtime.operators.call import Call, node_shape
from synth.runtime.operators.products import Product, filled, nodes_of, on_any_box
from synth.runtime.rules.products import Dims

LAYERS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


def recurrent_of(call: Call) -> Product | None:
    """How ranks divide one result of a recurrent layer; None for any other call.

    With one sample, with dropout, and for packed sequences, which have no dimension of
    samples, the layer is computed whole.
    """
    name, place = (
        getattr(call.function, "picked", ("", 0)) if not call.module else ("", 0)
    )
    args: list[Any] = list(call.node.args)
    if name not in LAYERS or len(args) != 9 or call.node.kwargs:
        return None
    values, _, weights, biases, _, dropout, _, _, first = args
    padded = isinstance(weights, list | tuple) and isinstance(biases, bool)
    if not padded or dropout or values not in call.inputs or len(call.out) != 3:
        return None
    own = 0 if first else 1  # the dimension of samples
    out = 1 if place else own
    if len(node_shape(values)) != 3 or call.out[out] < 2:
        return None

    def dims(node: fx.Node) -> Dims:
        if node in weights:
            return (None,) * len(node_shape(node))
        made: list[int | None] = [None, None, None]
        made[own if node is values else 1] = out
        return tuple(made)

    operands = nodes_of(call.node)
    found = tuple(dims(node) for node in operands)
    return Product(on_any_box(filled(call.node)), tuple(operands), found, (out,))
