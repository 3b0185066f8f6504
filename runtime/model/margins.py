"""Steps whose ranks compute rows that others own, in place of fetching them.

A *covered* call computes a box, its own rows and a margin, from what the rank holds of
its inputs. What a rank needs of a value and does not compute is fetched once, for all
covered calls that read it. All other calls read the own box, as without margins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import fx

from synth.runtime.comm.layout import Layout, replicated
from synth.runtime.comm.redistribute import Count
from synth.runtime.comm.ring import Ring
from synth.runtime.grid.boxes import Box, volume, with_interval
from synth.runtime.grid.ranks import Ranks
from synth.runtime.layers.steps.on_rows import OnRows, Read
from synth.runtime.layers.steps.pulled import Pulled
from synth.runtime.layers.steps.replicated_params import ReplicatedParams
from synth.runtime.layers.steps.step import Step
from synth.runtime.operators.batch_norms import BatchNorms
from synth.runtime.operators.call import Call, node_shape
from synth.runtime.operators.step_choice import choose_step
from synth.runtime.operators.table import Operator
from synth.runtime.rules.access import read_ends
from synth.runtime.rules.convolution import convolution
from synth.runtime.rules.movement import from_own_boxes
from synth.runtime.rules.rule import Operand

BY_RULE = (
    "layer",
    "pool",
    "resize",
    "shuffle",
    "cat",
)  # which read other rows than their own


class MarginPlace(NamedTuple):
    """The boxes of all ranks of a value: owned, needed by covered calls, computed.

    covered: whether the call that makes it is. in_buckets: whether gradients of the
    weights of that call are summed in buckets.
    """

    owned: tuple[Box, ...]
    needed: tuple[Box, ...]
    computed: tuple[Box, ...]
    covered: bool
    in_buckets: bool


class Margins:
    """Makes the steps of covered calls, and the rings of the values that they read.

    places: node -> its boxes. counter: of the words that are fetched, by call.
    """

    def __init__(
        self,
        places: Mapping[str, MarginPlace],
        ranks: Ranks,
        counter: Callable[[str], Count],
        batch_norms: BatchNorms,
    ) -> None:
        self.places, self.ranks, self.counter = places, ranks, counter
        self.batch_norms = batch_norms
        self.rings: dict[str, Ring] = {}  # node -> what ranks hold of its value

    def covers(self, node: fx.Node) -> bool:
        """Whether a call computes its box from what ranks hold of its inputs."""
        place = self.places.get(node.name)
        return place is not None and place.covered

    def add(self, node: fx.Node, layout: Layout | None, name: str) -> Layout | None:
        """Note a value; returns the layout of its own words.

        layout: what its step makes; None for an input of the network. name: of the
        call that its fetched words are counted for.
        """
        place = self.places.get(node.name)
        if place is None:
            return layout
        whole = node_shape(node)
        owned = Layout(whole, place.owned, self.ranks)
        if layout is not None and not place.covered and layout.boxes != owned.boxes:
            raise ValueError(
                f"{name}: its ranks compute {layout.boxes[0]} and others, but margins"
                f" were planned for {owned.boxes[0]} and others; this is a fault of"
                " synth: report it with this line, and plan without recompute"
            )
        computed = Layout(whole, place.computed, self.ranks)
        needed = Layout(whole, place.needed, self.ranks)
        ring = Ring(owned, computed, needed, self.counter(name))
        if ring.moves or ring.held.boxes != owned.boxes:
            self.rings[node.name] = ring
        return owned

    def step(
        self, call: Call, operator: Operator, owned: Mapping[fx.Node, Layout]
    ) -> Step:
        """The step of a covered call. owned: of each input, the layout of own words."""
        held = {
            node: self.rings[node.name].held if node.name in self.rings else layout
            for node, layout in owned.items()
        }
        place = self.places[call.node.name]
        computed = Layout(call.out, place.computed, self.ranks)
        if operator.kind in BY_RULE:
            first = self._by_rule(call, operator, held, computed)
            operands = {each.place: each for each in reversed(first.rule.operands)}
            each = [operands[place] for place in range(len(call.inputs))]
            taken = {node: _reads(one) for node, one in zip(held, each, strict=True)}
            used = [_used(one, computed) for one in each]
            step: Step = self._by_rule(call, operator, taken, computed)
        else:
            taken = {node: _of_channels(computed, node_shape(node)[1]) for node in held}
            used = list(taken.values())
            mine = computed.with_boxes(computed.whole, place.owned)
            step = self._in_place(call, operator, taken, mine)
        places = zip(held.values(), taken.values(), used, strict=True)
        reads = [Read(*each) for each in places]
        self._check(call, reads)
        made = OnRows(step, reads)
        made.settings = step.settings
        return made

    def _in_place(
        self,
        call: Call,
        operator: Operator,
        given: Mapping[fx.Node, Layout],
        owned: Layout,
    ) -> Step:
        """The step of a call that reads its own rows."""
        if operator.kind == "reindex":
            ((_, source),) = given.items()
            rule = from_own_boxes(source, operator.form.maps, operator.form.value)
            return Pulled(rule, self.counter(call.name))
        place = given, self.counter, self.batch_norms
        chosen = choose_step(call, operator, *place, owned=owned)
        assert chosen is not None
        return chosen

    def _by_rule(
        self,
        call: Call,
        operator: Operator,
        given: Mapping[fx.Node, Layout],
        out: Layout,
    ) -> Pulled:
        """The step of a call that reads other rows than its own."""
        if operator.kind != "layer":
            place = given, self.counter, self.batch_norms, out
            step = choose_step(call, operator, *place)
            assert isinstance(step, Pulled)
            return step
        ((_, source),) = given.items()
        values: dict[str, torch.Tensor] = dict(operator.module.named_parameters())
        layouts = {n: replicated(v.shape, self.ranks) for n, v in values.items()}
        count = self.counter(call.name)
        in_buckets = self.places[call.node.name].in_buckets
        params = ReplicatedParams(values, layouts, count, in_buckets)
        return Pulled(convolution(operator.module, source, out), count, params)

    def _check(self, call: Call, reads: list[Read]) -> None:
        for node, read in zip(call.inputs, reads, strict=True):
            rank = read.missing()
            if rank is not None:
                raise ValueError(
                    f"{call.name}: rank {rank} reads {read.used.boxes[rank]} of"
                    f" {node.name}, but holds {read.held.boxes[rank]}; this is a fault"
                    " of synth: report it with this line, and plan without recompute"
                )


def _of_channels(layout: Layout, channels: int) -> Layout:
    """The positions of boxes with all channels, of which there may be others."""
    if layout.whole[1] == channels:
        return layout
    boxes = (
        with_interval(box, 1, (0, channels if volume(box) else 0))
        for box in layout.boxes
    )
    whole = (layout.whole[0], channels, *layout.whole[2:])
    return layout.with_boxes(whole, boxes)


def _reads(operand: Operand) -> Layout:
    assert isinstance(operand.reads, Layout)
    return operand.reads


def _used(operand: Operand, out: Layout) -> Layout:
    """The words that a rule reads, without rows at the ends that no word reads."""
    reads: Any = operand.reads
    ends = (read_ends(operand.accesses, box) for box in out.boxes)
    return out.with_boxes(reads.whole, ends)
