"""Keys and values of attention that ranks compute from what they both come from.

Attention reads all rows of keys and values. If layers without neighbours make these of
one value, ranks may gather that value once in place of both. Such are linear layers and
convolutions with a kernel of one. One layer may make query, keys and values. Each rank
then computes keys and values of all rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from synth.runtime.comm.exchanges import Exchange, moved
from synth.runtime.comm.layout import Layout
from synth.runtime.comm.redistribute import Count
from synth.runtime.grid.boxes import volume
from synth.runtime.layers.products.read_whole import (
    GatheredRows,
    LayerOfAllRows,
    all_rows,
    channel_dim,
)
from synth.runtime.layers.steps.pulled import Pulled
from synth.runtime.layers.steps.step import Step
from synth.runtime.operators.alike_positions import ATTENTION
from synth.runtime.operators.call import Call
from synth.runtime.operators.one_tensor import RESHAPES
from synth.runtime.operators.table import Operators
from synth.runtime.rules.local_forms import reshape_groups
from synth.runtime.rules.movement import from_own_boxes
from synth.runtime.rules.row_calls import MovedRows
from synth.runtime.tracing.expressions import is_expression

# Multiply-adds more for a word less. In the time of a word between the nodes of a
# cluster a process makes some 10,000, inside of a node some 500.
WORTH = 1024
KEPT = ("same", "permute", "reindex", "local")  # calls behind a projection
Chosen = Callable[[Call, Mapping[fx.Node, Layout]], "Step | None"]
Chain = tuple[fx.Node, ...]  # a layer, and the calls behind it


class Copy(NamedTuple):
    """A step of all rows, beside that of a call of the model.

    sources: the values that it reads.
    """

    name: str
    node: fx.Node
    step: Step
    sources: tuple[str, ...]


class OfAllRows(NamedTuple):
    """Attention that reads copies.

    step: of the attention. copies: in order. reads: operand -> its copy. unread: calls
    of whose results there is no other reader.
    """

    step: Step
    copies: list[Copy]
    reads: dict[str, str]
    unread: set[str]


class Projections:
    """Decides where ranks compute keys and values of all rows, and makes their steps.

    steps, layouts: of the calls so far. chosen: makes the step of a call, for the
    layouts of what it reads. counter: makes the counter of received words for a name.
    """

    def __init__(
        self,
        operators: Operators,
        steps: Mapping[str, Step],
        layouts: Mapping[str, Layout],
        chosen: Chosen,
        counter: Callable[[str], Count],
    ) -> None:
        self.operators, self.chosen, self.counter = operators, chosen, counter
        self.steps, self.layouts = steps, layouts

    def of_all_rows(self, call: Call, planned: Step) -> OfAllRows | None:
        """How attention reads all rows, if this moves fewer words; None elsewhere.

        planned: its step for keys and values as they lie. Shares stay as equal as in
        it. What follows is taken to read the result where the query lies.
        """
        chains = chains_of(call, self.operators)
        layers, work = self._of_layers(chains, call)
        behind = [*dict.fromkeys(node for chain in chains for node in chain[1:])]
        own = self._copies(layers[1:], behind)
        if not own:
            return None
        lie = {each: self.layouts[each.name] for each in call.inputs}
        first: Any = call.node.args[0]
        query = lie.get(first, planned.layout)
        like = _as_query(planned.layout, query)
        lie |= {each: own[each].step.layout for each in lie if each in own}
        step = self.chosen(call, lie)
        if step is None or step.layout.most_words != planned.layout.most_words:
            return None
        unread = _unread(behind, call.node)
        less = _words([planned, *(self.steps[name] for name in unread)])
        less -= _words([layers[0].step, step])
        less += _received(moved(planned.layout, like))
        less -= _received(moved(step.layout, like))
        if less <= 0 or work > WORTH * less:
            return None
        reads = {each.name: own[each].name for each in lie if each in own}
        return OfAllRows(step, [layers[0], *own.values()], reads, unread)

    def _copies(
        self, layers: Sequence[Copy], behind: Sequence[fx.Node]
    ) -> dict[fx.Node, Copy]:
        """Those of layers and of the calls behind them; none where words would move."""
        own = {each.node: each for each in layers}
        for node in behind if own else ():
            call = self.operators.call(node)
            before = own[call.inputs[0]]
            made = self._of_own_box(call, before.step.layout)
            if made is None or made.exchanges():
                return {}
            own[node] = Copy(_beside(node), node, made, (before.name,))
        return own

    def _of_layers(
        self, chains: Sequence[Chain], attention: Call
    ) -> tuple[list[Copy], int]:
        """The rows that are gathered, and what layers make of them; or nothing.

        Also the multiply-adds of all ranks for rows of others.
        """
        found, work, name = list[Copy](), 0, _beside(attention.node)
        for layer in dict.fromkeys(chain[0] for chain in chains):
            ((source,), made) = self._read(layer), self.layouts[layer.name]
            weight = self.operators.operator(self.operators.call(layer)).module.weight
            held = self.steps[layer.name].held_tensors()
            places = [each.partition for each in held.values()]
            whole = all(each is not None and each.replicated for each in places)
            if not (whole and {"weight"} <= held.keys() <= {"weight", "bias"}):
                return [], 0
            rows = all_rows(made, channel_dim(weight.shape), weight.shape[1])
            if not found:
                count = self.counter(attention.name)
                gather = GatheredRows(self.layouts[source], rows, count)
                found.append(Copy(name, layer, gather, (source,)))
            if found[0].sources != (source,) or found[0].step.layout != rows:
                return [], 0
            read = [_channels(c, self.operators) for c in chains if c[0] is layer]
            channels = sorted({*itertools.chain(*read)})
            step = LayerOfAllRows(weight.shape, held, made, channels)
            found.append(Copy(_beside(layer), layer, step, (name, layer.name)))
            lacked = sum(map(volume, step.layout.boxes)) - sum(map(volume, made.boxes))
            work += lacked // weight.shape[0] * weight.shape[1] * len(channels)
        return found, work

    def _of_own_box(self, call: Call, source: Layout) -> Step | None:
        """The step of a call where ranks may have the same words; None for others.

        A selection of rows reads those of the own box, which has them all.
        """
        operator = self.operators.operator(call)
        if operator.kind != "reindex":
            return self.chosen(call, {call.inputs[0]: source})
        form, count = operator.form, self.counter(call.name)
        for box in filter(volume, source.boxes):
            pairs = zip(form.maps, box, strict=True)
            if not all(each.plain or rows == (0, each.size) for each, rows in pairs):
                return None
        return Pulled(from_own_boxes(source, *form), count)

    def _read(self, node: fx.Node) -> tuple[str, ...]:
        return tuple(each.name for each in self.operators.call(node).inputs)


def chains_of(call: Call, operators: Operators) -> tuple[Chain, ...]:
    """Those of keys and values of attention, from the layers that make them."""
    if call.word != ATTENTION or len(call.node.args) < 3:
        return ()
    chains = [_chain(each, operators) for each in call.node.args[1:3]]
    return () if None in chains else tuple(each for each in chains if each)


def _chain(node: Any, operators: Operators) -> Chain | None:
    """The calls that make an operand of one layer; None where others are between."""
    chain = list[fx.Node]()
    while isinstance(node, fx.Node) and node.op.startswith("call"):
        if is_expression(node) or "only" in node.meta:
            break
        chain.append(node)
        call = operators.call(node)
        kind = operators.operator(call).kind
        if _is_pointwise(call, operators):
            return tuple(reversed(chain))
        if kind not in KEPT or len(call.inputs) != 1:
            break
        (node,) = call.inputs
    return None


def _is_pointwise(call: Call, operators: Operators) -> bool:
    """Whether a layer computes each row of samples from that row alone."""
    operator = operators.operator(call)
    if operator.kind != "layer":
        return False
    module, (before,) = operator.module, call.shapes
    if isinstance(module, nn.Linear):
        return len(before) > 2
    if not isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return False
    one = {*module.kernel_size, *module.stride, module.groups} == {1}
    return one and before[2:] == call.out[2:] and len(before) == module.weight.dim()


def _channels(chain: Chain, operators: Operators) -> set[int]:
    """The channels of a layer that calls behind it read; all where that is unknown."""
    first, *behind = map(operators.call, chain)
    weight = operators.operator(first).module.weight
    shape = [1] * len(first.out)
    shape[channel_dim(weight.shape)] = weight.shape[0]
    found: torch.Tensor | None = torch.arange(weight.shape[0]).reshape(shape)
    for call in behind:
        found = None if found is None else _behind(call, operators, found)
    return {*range(weight.shape[0])} if found is None else {*found.flatten().tolist()}


def _behind(
    call: Call, operators: Operators, found: torch.Tensor
) -> torch.Tensor | None:
    """The numbers of channels where a call has them; None where it mixes rows in.

    found: along the dimensions of its input that have channels; 1 along others.
    """
    operator = operators.operator(call)
    match operator.kind:
        case "same":
            return found
        case "permute":
            return found.permute(call.order())
        case "reindex":
            return _moved(operator.form, found)
    return _reshaped(call, found) if call.word in RESHAPES else None


def _moved(form: MovedRows, found: torch.Tensor) -> torch.Tensor | None:
    for dim, each in enumerate(form.maps):
        if found.shape[dim] > 1:
            rows = torch.tensor([*each.rows])
            if int(rows.min()) < 0:  # constants
                return None
            found = found.index_select(dim, rows)
    if form.dims is None:
        return found
    return found.reshape([1 if d is None else found.shape[d] for d in form.dims])


def _reshaped(call: Call, found: torch.Tensor) -> torch.Tensor | None:
    sizes, (before,) = list[int](), call.shapes
    for mine, its in reshape_groups(before, call.out):
        own, there = [found.shape[dim] for dim in mine], [before[dim] for dim in mine]
        if max(own, default=1) > 1 and own != there:
            return None
        sizes += [call.out[dim] if own == there else 1 for dim in its]
    return found.reshape(sizes)


def _unread(behind: Iterable[fx.Node], reader: fx.Node) -> set[str]:
    """The calls that are read by each other and one reader alone."""
    alone = {reader}
    for node in reversed([*behind]):
        if all(each in alone for each in node.users):
            alone.add(node)
    return {each.name for each in alone - {reader}}


def _beside(node: fx.Node) -> str:
    return f"{node.name}_all_rows"


def _as_query(made: Layout, query: Layout) -> Layout:
    """Where the result of attention lies if it lies as the query does."""
    if made.whole[:-1] != query.whole[:-1]:
        return made
    rows = (0, made.whole[-1])
    return made.with_boxes(
        made.whole,
        ((*box[:-1], rows if volume(box) else (0, 0)) for box in query.boxes),
    )


def _words(steps: Iterable[Step]) -> int:
    """Words that all ranks receive in some steps."""
    return sum(_received(step.exchanges()) for step in steps)


def _received(exchanges: Iterable[Exchange]) -> int:
    return sum(sum(each.forward) for each in exchanges)
