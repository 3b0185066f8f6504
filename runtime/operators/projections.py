"""Keys and values of attention that ranks compute from what they both come from.

Attention reads all rows of keys and values. If these are linear layers of one value,
ranks may gather that value once in place of both. Each rank then computes keys and
values of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import fx, nn

from synth.runtime.comm.exchanges import moved, overlaps
from synth.runtime.comm.layout import Layout, replicated
from synth.runtime.comm.redistribute import Count
from synth.runtime.grid.boxes import volume
from synth.runtime.layers.planned_layer import PlannedLayer
from synth.runtime.layers.products.read_whole import (
    LinearOfAllRows,
    SharedGather,
    all_rows,
)
from synth.runtime.layers.steps.replicated_params import ReplicatedParams
from synth.runtime.layers.steps.step import Step
from synth.runtime.operators.alike_positions import ATTENTION
from synth.runtime.operators.call import Call
from synth.runtime.operators.products import Product
from synth.runtime.operators.table import Operators
from synth.runtime.rules.products import Dims, best_layout, wanted

# Multiply-adds more for a word less. In the time of a word between the nodes of a
# cluster a process makes some 10,000, inside of a node some 500.
WORTH = 1024
KEPT = ("same", "permute", "reindex", "local")  # calls behind a projection
Through = Callable[[fx.Node, Layout], "Step | None"]
Operand = tuple[Layout, Dims]


class Attention(NamedTuple):
    """An attention call whose keys and values are linear layers of one value.

    chains: of query, keys and values, the calls behind their first one, which is a
    layer or whatever makes the query.
    """

    node: fx.Node
    chains: tuple[tuple[fx.Node, ...], ...]

    @property
    def layers(self) -> tuple[fx.Node, ...]:
        """The layers of keys and values."""
        return tuple(chain[0] for chain in self.chains[1:])


class Projections:
    """Decides which layers of a network compute all rows, and makes their steps.

    through: makes the step of a call with one input, for the layout of that.
    """

    def __init__(
        self,
        graph: fx.Graph,
        operators: Operators,
        through: Through,
        counter: Callable[[str], Count],
    ) -> None:
        self.operators, self.through, self.counter = operators, through, counter
        found = [attention_of(node, operators) for node in graph.nodes]
        self.asked = {n.name: each for each in found if each for n in each.layers}
        self.gathers: dict[str, SharedGather | None] = {}  # by attention call

    def step(
        self, call: Call, planned: Step | None, layouts: Mapping[str, Layout]
    ) -> Step | None:
        """The step of a layer: one of all rows where this moves fewer words.

        planned: that of the rows which the plan gives a rank. layouts: by node.
        """
        asked = self.asked.get(call.node.name)
        if asked is None or not isinstance(planned, PlannedLayer):
            return planned
        name, source = asked.node.name, layouts[call.inputs[0].name]
        first = name not in self.gathers
        if first:
            gather = SharedGather(source, 2, self.counter(call.name))
            whole = _is_whole(planned, source)
            pays = whole and self._pays(asked, gather, planned.layout, layouts)
            self.gathers[name] = gather if pays else None
        found = self.gathers[name]
        if found is None:
            return planned
        module, ranks = self._layer(call.node), source.ranks
        values = dict(module.named_parameters(recurse=False))
        held = {n: replicated(each.shape, ranks) for n, each in values.items()}
        params = ReplicatedParams(values, held, self.counter(call.name))
        return LinearOfAllRows(found, params, first)

    def _layer(self, node: fx.Node) -> Any:
        return self.operators.operator(self.operators.call(node)).module

    def _pays(
        self,
        asked: Attention,
        gather: SharedGather,
        planned: Layout,
        layouts: Mapping[str, Layout],
    ) -> bool:
        """Whether fewer words move, for few more operations and in equal shares.

        planned: the layout of keys and values in the plan.
        """
        product: Product | None = self.operators.form(asked.node, "product")
        sizes = {tuple(self._layer(each).weight.shape) for each in asked.layers}
        query, source = layouts.get(asked.chains[0][0].name), gather.source
        if product is None or query is None or len(sizes) > 1:
            return False
        keys = all_rows(source, planned.whole[-1])
        before = self._product(asked, product, (query, planned, planned))
        after = self._product(asked, product, (query, keys, keys))
        if not (before and after and before[0].most_words == after[0].most_words):
            return False
        for each, dims in after[1][1:]:
            if moved(each, wanted(after[0], each.whole, dims)):
                return False
        less = _read(*before) - _read(*after) - _words(source, gather.layout)
        rows = gather.layout.most_words - min(map(volume, source.boxes))
        more = 2 * planned.whole[-1] * rows * len(source.boxes)
        return less > 0 and more <= WORTH * less

    def _product(
        self, asked: Attention, product: Product, starts: tuple[Layout, ...]
    ) -> tuple[Layout, list[Operand]] | None:
        """The layouts of result and operands, if chains begin in `starts`."""
        operands = list[Operand]()
        dims_of = product.dims[: len(starts)]  # those of a mask are the same in both
        for chain, start, dims in zip(asked.chains, starts, dims_of, strict=True):
            end = self._behind(chain[1:], start)
            if end is None:
                return None
            operands.append((end, dims))
        out = self.operators.call(asked.node).out
        return best_layout(out, operands, product.cut), operands

    def _behind(self, chain: tuple[fx.Node, ...], layout: Layout) -> Layout | None:
        """The layout behind some calls; None where words would move."""
        for node in chain:
            step = self.through(node, layout)
            if step is None or step.exchanges():
                return None
            layout = step.layout
        return layout


def attention_of(node: fx.Node, operators: Operators) -> Attention | None:
    """A call of attention of which keys and values are made in this way, else None."""
    if not node.op.startswith("call") or len(node.args) < 3:
        return None
    call = operators.call(node)
    if call.word != ATTENTION or operators.operator(call).kind != "product":
        return None
    chains = []
    for place, operand in enumerate(node.args[:3]):
        if not isinstance(operand, fx.Node):
            return None
        chain = _chain(operand, operators, alone=place > 0)
        chains.append(chain)
    heads = [chain[0] for chain in chains[1:]]
    sources = set()
    for head in heads:
        if not head.op.startswith("call") or len(head.users) > 1:
            return None
        made = operators.call(head)
        operator = operators.operator(made)
        if operator.kind != "layer" or not isinstance(operator.module, nn.Linear):
            return None
        if len(made.shapes[0]) != 3:
            return None
        sources.add(made.inputs[0])
    apart = heads[0] is not heads[1] and len(sources) == 1
    return Attention(node, tuple(chains)) if apart else None


def _chain(node: fx.Node, operators: Operators, alone: bool) -> tuple[fx.Node, ...]:
    """The calls behind what makes an operand, the last of them the operand itself.

    alone: only those whose results nobody else reads.
    """
    chain = [node]
    while node.op.startswith("call"):
        call = operators.call(node)
        others = alone and len(node.users) > 1
        if others or operators.operator(call).kind not in KEPT or len(call.inputs) != 1:
            break
        node = call.inputs[0]
        chain.append(node)
    return tuple(reversed(chain))


def _is_whole(planned: PlannedLayer, source: Layout) -> bool:
    """Whether all ranks have rows, and hold all channels and the whole weight."""
    layer = planned.module
    frame = tuple((0, extent) for extent in layer.program.ker_shape)
    whole = (0, source.whole[-1])
    return all(box == frame for box in layer.ker_boxes) and all(
        volume(box) and box[-1] == whole for box in source.boxes
    )


def _words(source: Layout, target: Layout) -> int:
    """Words that all ranks receive."""
    same = source.boxes == target.boxes
    return 0 if same else int(overlaps(source, target).sum())


def _read(layout: Layout, operands: list[Operand]) -> int:
    """Words that all ranks receive for their boxes of a product."""
    return sum(
        _words(each, wanted(layout, each.whole, dims)) for each, dims in operands
    )
