"""The operator table: what a call of a traced model does.

The planner's network and the steps of the ranks are both made from this table, so a
model is planned as it runs. A call that is not listed, or whose arguments rule it out,
is "gathered": every rank computes it from the whole.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx, nn

from synth.runtime.comm.layout import Layout
from synth.runtime.operators.call import Call
from synth.runtime.operators.functional import (
    BATCH_NORMS,
    CONVS,
    INSTANCE_NORMS,
    TRANSPOSED,
)
from synth.runtime.operators.one_tensor import (
    RESHAPES,
    as_autocast,
    local_form,
    moved_rows,
    reduction_of,
    scan_of,
    shuffle_of,
    windows_of,
)
from synth.runtime.operators.products import product_of, recurrent_of
from synth.runtime.rules.affine_scan import affine_scan
from synth.runtime.rules.local_forms import flattened, within_boxes
from synth.runtime.rules.mapped_rows import MappedRows
from synth.runtime.rules.movement import permuted, reindexed
from synth.runtime.rules.pointwise import LOSSES, is_pointwise
from synth.runtime.rules.pooling import AVG_POOLS, LP_POOLS, MAX_POOLS, pool, scaled
from synth.runtime.rules.resizing import LINEAR, NEAREST, resize
from synth.runtime.rules.responses import response_norm
from synth.runtime.rules.rule import Rule
from synth.runtime.rules.shuffles import shuffled, where_source
from synth.runtime.tracing.expressions import is_expression

Kind = Literal[
    "layer",  # a convolution or linear layer, which the planner may plan
    "elementwise",  # acts on every word by itself; operands are broadcast
    "same",  # elementwise, and gives the same words
    "prelu",
    "dropout",
    "batchnorm",
    "groupnorm",
    "instancenorm",
    "layernorm",  # over the last dimension
    "pool",
    "reduction",  # of rows along some dimensions: global and adaptive pooling
    "resize",
    "shuffle",  # channels to positions, or back
    "flatten",  # (b, c, *spatial) as (b, c * spatial)
    "responsenorm",  # over neighbouring channels
    "permute",
    "cat",
    "joined",  # a concatenation with what does not depend on the input
    "reindex",  # every row is a row of the input, or a constant
    "local",  # computed where a box is whole along some dimensions
    "affine",  # a recurrence h = a · h + b
    "mapped",  # a loop over rows that do not depend on each other
    "scan",  # each row is made of all rows up to it
    "windows",  # each window of rows as a row
    "product",  # a sum of products: dimensions of the result are independent
    "gathered",
]
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
LAYERS: dict[type[nn.Module], Kind] = {
    **dict.fromkeys((*CONVS, *TRANSPOSED, nn.Linear), "layer"),
    **dict.fromkeys((nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU), "elementwise"),
    **dict.fromkeys((nn.SiLU, nn.Mish, nn.Sigmoid, nn.LogSigmoid), "elementwise"),
    **dict.fromkeys((nn.Tanh, nn.Hardswish, nn.Hardsigmoid), "elementwise"),
    **dict.fromkeys((nn.Hardtanh, nn.Softplus, nn.SELU, nn.CELU), "elementwise"),
    nn.Softsign: "elementwise",
    nn.Identity: "same",
    nn.PReLU: "prelu",
    **dict.fromkeys(DROPOUTS, "dropout"),
    **dict.fromkeys(BATCH_NORMS.values(), "batchnorm"),
    nn.GroupNorm: "groupnorm",
    **dict.fromkeys(INSTANCE_NORMS.values(), "instancenorm"),
    nn.LayerNorm: "layernorm",
    **dict.fromkeys((*MAX_POOLS, *AVG_POOLS, *LP_POOLS), "pool"),
    nn.Upsample: "resize",
    nn.LocalResponseNorm: "responsenorm",
    nn.Flatten: "flatten",
}
FUNCTIONS: dict[str, Kind] = {  # without the _ of functions that act in place
    **dict.fromkeys(("contiguous", "clone", "float", "detach", "to"), "same"),
    **dict.fromkeys(("double", "half", "bfloat16", "type"), "same"),
    **dict.fromkeys(("cat", "concat", "concatenate"), "cat"),
    **dict.fromkeys(("permute", "transpose", "movedim", "swapaxes"), "permute"),
    **dict.fromkeys(("flatten", "view", "reshape"), "flatten"),
}


@dataclass(frozen=True)
class Operator:
    """What a call does; `module`, if any, is the layer of torch.nn that does it.

    form: how, as the recogniser of the kind has it (`MovedRows`, `ReductionForm`,
        `LocalForm`, `ScanForm`, `Product`); of a concatenation its parts and its
        dimension; of a shuffle the dimension of its channels.
    """

    kind: Kind
    module: Any = None
    form: Any = field(default=None, compare=False)


GATHERED = Operator("gathered")


class Operators:
    """The operators of one graph."""

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        tensors: Mapping[str, torch.Tensor],
    ) -> None:
        self.modules, self.tensors = modules, tensors
        self.calls: dict[fx.Node, tuple[Any, Call]] = {}

    def call(self, node: fx.Node) -> Call:
        """The call of a node, made again only when the arguments of the node change."""
        given = node.args, node.kwargs
        if node not in self.calls or self.calls[node][0] != given:
            made = Call.of(node, self.modules, self.tensors)
            self.calls[node] = given, made
        return self.calls[node][1]

    def form(self, node: fx.Node, kind: Kind) -> Any:
        """How a call does what it does; None for calls of another kind."""
        found = self.operator(self.call(node))
        return found.form if found.kind == kind else None

    def operator(self, call: Call) -> Operator:
        """What a call does. An expression is none of these: see `is_expression`.

        The metadata "zeros" of a node are those that a convolution has around its
        input, in place of its own padding.
        """
        found, zeros = self._operator(call), call.node.meta.get("zeros")
        if zeros is None or found.kind != "layer":
            return found
        module = copy.copy(found.module)
        module.zeros = zeros
        return Operator("layer", module)

    def _operator(self, call: Call) -> Operator:
        if is_expression(call.node):
            return GATHERED
        layer = recurrent_of(call)
        if layer is not None:  # without dropout, it does the same in evaluation
            return Operator("product", None, layer)
        if call.node.meta.get("differs"):
            return GATHERED  # has other arguments in evaluation
        if call.module is not None and not call.takes_input_alone:
            return GATHERED
        one = len(call.inputs) == 1 and not call.parameters
        for kind, recognise in RECOGNISERS.items():
            form = recognise(call) if one or kind in OF_SEVERAL else None
            if form is not None:
                return form if kind is None else Operator(kind, call.module, form)
        return GATHERED


def _by_name(call: Call) -> Operator | None:
    """What stands under the name of a function, or under the class of a module."""
    module = call.module
    found = _of_function(call) if module is None else _of_module(call, module)
    return None if found.kind == "gathered" else found


# in the order in which they are asked; None: the kind follows from the name
RECOGNISERS: dict[Kind | None, Callable[[Call], Any]] = {
    "reindex": moved_rows,
    "reduction": reduction_of,
    None: _by_name,
    "scan": scan_of,
    "shuffle": shuffle_of,
    "local": local_form,
    "windows": windows_of,
    "product": product_of,
}
OF_SEVERAL: tuple[Kind | None, ...] = (None, "product")  # others are of one tensor


def _of_function(call: Call) -> Operator:
    if call.layer is not None:
        return _of_module(call, call.layer.module)
    if call.function is affine_scan or isinstance(call.function, MappedRows):
        return Operator("affine" if call.function is affine_scan else "mapped")
    kind = FUNCTIONS.get(call.word)
    if kind is None:
        alone = call.word in LOSSES and call.node.kwargs.get("reduction") == "none"
        kind = "elementwise" if alone or is_pointwise(call.word) else "gathered"
    if kind == "cat":
        joined = call.joined()
        if joined is None or not all(isinstance(part, fx.Node) for part in joined[0]):
            return GATHERED
        computed = {*joined[0]} <= {*call.inputs}
        return Operator("cat" if computed else "joined", form=joined)
    if kind in ("elementwise", "same"):
        fits = _broadcasts(call)
    else:
        fits = len(call.inputs) == 1 and not call.parameters
        fits = fits and (kind != "flatten" or _is_flat(call))
    return Operator(kind) if fits else GATHERED


def _of_module(call: Call, module: Any) -> Operator:
    classes = type(module).__mro__
    found = (LAYERS[each] for each in classes if each in LAYERS)
    kind: Kind = next(found, "gathered")
    check = MODULE_CHECKS.get(kind)
    fits = check is None or check(call, module)
    return Operator(kind, module) if fits else GATHERED


def _broadcasts(call: Call) -> bool:
    """Whether operands are broadcast to the shape of the result."""
    if not isinstance(call.node.meta["value"], torch.Tensor):
        return False  # several results
    shapes, out = list(call.shapes), call.out
    if call.word == "prelu":  # whose weight has one word per channel
        return max(shapes, key=math.prod) == out
    shapes += [tuple(values.shape) for _, values in call.parameters.values()]
    fits = all(
        len(each) <= len(out)
        and all(n in (1, m) for n, m in zip(each[::-1], out[::-1], strict=False))
        for each in shapes
    )
    return fits and _broadcast(shapes) == out


def _broadcast(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The shape of some that are broadcast to each other, which they fit."""
    longest = max(map(len, shapes))
    aligned = [(*[1] * (longest - len(each)), *each) for each in shapes]
    return tuple(
        max(extents) if min(extents) else 0 for extents in zip(*aligned, strict=True)
    )


def _is_flat(call: Call) -> bool:
    before = call.shapes[0]
    return len(before) > 1 and call.out == (before[0], math.prod(before[1:]))


def _has_batch(call: Call, module: Any) -> bool:
    """Whether a layer of maps is given (b, c, *spatial), not (c, *spatial)."""
    names = (each.__name__ for each in type(module).__mro__)
    dims = next(int(name[-2]) for name in names if name[-2:] in ("1d", "2d", "3d"))
    return len(call.shapes[0]) == dims + 2


def _pools(call: Call, module: Any) -> bool:
    average = isinstance(module, (*AVG_POOLS, *LP_POOLS))
    return (
        _has_batch(call, module)
        and not getattr(module, "return_indices", False)
        and not (average and module.ceil_mode)
        and getattr(module, "divisor_override", None) is None
    )


# kind -> whether a module of this kind, with its arguments, can be computed on shards
MODULE_CHECKS: dict[Kind, Callable[[Call, Any], bool]] = {
    "dropout": lambda call, module: (
        isinstance(module, nn.Dropout) or _has_batch(call, module)
    ),
    "instancenorm": lambda call, module: (
        not module.track_running_stats and _has_batch(call, module)
    ),
    "layernorm": lambda call, module: len(module.normalized_shape) == 1,
    "pool": _pools,
    "resize": lambda call, module: (
        module.mode in (*NEAREST, *LINEAR)
        and not getattr(module, "recompute_scale_factor", None)
        and len(call.out) > 2
    ),
    "flatten": lambda call, module: module.start_dim == 1 and _is_flat(call),
}


def _local(call: Call, found: Operator, source: Layout, _: Layout | None) -> Rule:
    """A reshape, or a function along dimensions, of boxes that are whole there."""
    if call.word in RESHAPES or isinstance(call.module, nn.Flatten | nn.Unflatten):
        return within_boxes(source, found.form, lambda box: box)
    return within_boxes(source, found.form, call.filled(in_place=False), typed=True)


# kind with one operand and no parameters -> its rule, from the layout of the operand
# and that which the result should have, if any
RULES: dict[Kind, Callable[[Call, Operator, Layout, Layout | None], Rule]] = {
    "pool": lambda call, found, source, wanted: pool(
        found.module, source, wanted or scaled(source, call.out)
    ),
    "resize": lambda call, found, source, wanted: resize(
        found.module, source, wanted or scaled(source, call.out)
    ),
    "shuffle": lambda call, found, source, wanted: shuffled(
        source,
        wanted or where_source(source, call.out),
        call.filled(in_place=False),
    ),
    "responsenorm": lambda call, found, source, _: response_norm(found.module, source),
    "flatten": lambda call, found, source, _: flattened(source),
    "reindex": lambda call, found, source, wanted: as_autocast(
        call,
        reindexed(
            source, found.form.maps, found.form.value, found.form.dims, out=wanted
        ),
    ),
    "local": _local,
    "windows": lambda call, found, source, _: found.form(source),
    "scan": lambda call, found, source, _: within_boxes(
        source, found.form.local, call.filled(in_place=False), typed=True
    ),
    "permute": lambda call, found, source, _: permuted(source, call.order()),
}
