"""Peak memory of a forward pass, or a training step, of a network as `parallelize` runs it.

The walk follows the runtime: a value is freed after its last reader, unless the backward pass needs it. The
backward pass runs the nodes in reverse, and frees what a node saved after it. A checkpoint's region keeps its
inputs alone; its nodes run again before their backward passes. Buffers of messages stay in the pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from synth.layer.axes import Tensor
from synth.network.graph import Node
from synth.network.memory.forward_walk import (
    ForwardWalk,
    Record,
    RegionRecord,
    Tape,
    is_alias,
    release,
)
from synth.network.memory.layer_words import LayerWords
from synth.network.memory.timeline import Storage

if TYPE_CHECKING:
    from synth.network.plan.plan import NetworkPlan


@dataclass(frozen=True)
class StepMemory:
    """Words that each rank holds, at most, as tuples with one number per rank.

    weights: its shards of weights, biases and other parameters. gradients: theirs, in training.
    buffers: of messages. values: everything else at the moment of the peak.
    An optimizer holds as many words as `weights` once or more (Adam twice); they are not part of `peak`.
    """

    weights: tuple[int, ...]
    gradients: tuple[int, ...]
    buffers: tuple[int, ...]
    values: tuple[int, ...]

    @property
    def peak(self) -> tuple[int, ...]:
        """The sum of all, by rank."""
        return tuple(map(sum, zip(self.weights, self.gradients, self.buffers, self.values, strict=True)))

    @property
    def most(self) -> int:
        """The words of the rank that holds most."""
        return max(self.peak)


def step_memory(plan: NetworkPlan, training: bool | None = None, ahead: int | None = None) -> StepMemory:
    """The memory of a step of a plan.

    training: a training step, or a forward pass without gradients; None for what was planned.
    ahead: layers whose Ker is prefetched, as `parallelize` has it; None for those of the plan.
    """
    train = plan.request.training if training is None else training
    walk = _StepWalk(plan, train, plan.request.prefetched if ahead is None else ahead)
    walk.run()
    values = walk.timeline.peak - (walk.weights if train else walk.nothing)
    weights = walk.weights
    gradients = weights if train else walk.nothing
    parts = (weights, gradients, walk.pooled, values)
    return StepMemory(*(tuple(int(each) for each in part) for part in parts))


class _StepWalk(ForwardWalk):
    """A step of a network; `gradients` has those of the values, by the names of their nodes."""

    def run(self) -> None:
        """One step from the network's input to the gradients of its parameters."""
        self.gradients: dict[str, Storage] = {}
        nodes = list(self.network.nodes.values())
        last = nodes[-1].name
        first = next(iter(self.layers.values()))
        self.own["input"] = first.given
        self.values["input"] = self.timeline.new(self.nothing)  # the caller's
        self._fetch("input")
        tape = self.forward(nodes, {last}, depth=0)
        if self.training:
            self.gradients[last] = self.timeline.new(self.own[last])
            self._backward(tape, depth=0)

    def _backward(self, tape: Tape, depth: int) -> None:
        for each in reversed(tape):
            if isinstance(each, RegionRecord):
                outer = self.values, self.again
                self.values = {name: storage.hold() for name, storage in each.inputs.items()}
                self.again = {node.name for node in each.nodes}
                outputs = {node.name for node in each.nodes if node.name in self.gradients}
                again = self.forward(each.nodes, outputs, depth + 1)
                for storage in self.values.values():
                    storage.free()
                self.values, self.again = outer
                self._backward(again, depth + 1)
            else:
                self._differentiate(each)
            release(each)

    def _differentiate(self, record: Record) -> None:
        node = record.node
        gradient = self.gradients.pop(node.name, None)
        if gradient is None:
            return
        if self.margins.covers(node):
            self._differentiate_covered(node, self._sent_back(node.name, gradient))
            return
        if node.name in self.layers and node.weighted:
            self._differentiate_layer(record, self.layers[node.name])
        elif node.name in self.layers:
            self._differentiate_weightless(node, self.layers[node.name])
        elif node.kind == "add" or is_alias(node):
            for name in node.inputs:
                self._arrive(name, gradient.hold())
        else:
            for name in node.inputs:
                if name in self.network.trained:
                    self._arrive(name, self.timeline.new(self.own[name]))
            self.timeline.add(self.parameters(node))
        gradient.free()

    def _sent_back(self, name: str, gradient: Storage) -> Storage:
        """The gradient of what is computed, to which that of rows that others hold is added."""
        if not self.margins.is_fetched(name):
            return gradient
        sent, received = self.margins.messages(name)
        total = self.timeline.new(self.margins.computed(name))
        self.timeline.brief(sent + received)
        gradient.free()
        return total

    def _differentiate_covered(self, node: Node, gradient: Storage) -> None:
        """From the gradient of the computed rows to those of the rows that are held of the inputs."""
        if is_alias(node):
            self._arrive(node.inputs[0], gradient)
            return
        if node.name not in self.layers:
            for name in node.inputs:
                if name in self.network.trained:
                    self._arrive(name, self.timeline.new(self.margins.held(name)))
            self.timeline.add(self.parameters(node))
            gradient.free()
            return
        (source,) = node.inputs
        read, held = self.margins.read(node, source), self.margins.held(source)
        moved = self.timeline.new(np.maximum(read, self.margins.padded(node, source)))
        if node.weighted:
            copies = [self.copied(node, i) for i in range(1, len(self.layers[node.name].passes))]
            self.timeline.brief(np.maximum.reduce([self.nothing, *copies]))
            self.timeline.add(self.parameters(node))
            self.timeline.brief(2 * self.parameters(node))  # sums of all copies
        if (read < held).any():  # torch lays zeros around
            narrow, moved = moved, self.timeline.new(held)
            narrow.free()
        gradient.free()
        self._arrive(source, moved)

    def _differentiate_layer(self, record: Record, layer: LayerWords) -> None:
        node = record.node
        slices: dict[Tensor, Storage] = {}
        moved, pending = None, list[Storage]()
        for each, plan in zip(layer.passes[1:], layer.tiling.pass_plans[1:], strict=True):
            self.timeline.brief(each.arriving)
            for tensor, words in each.gathered.items():
                slices.setdefault(tensor, self.timeline.new(words))
            self.timeline.brief(each.halo + each.kernel)
            own = layer.own("Ker") if plan.written == "Ker" else layer.input
            self.timeline.brief(each.result + (own if each.reduced else 0.0))
            if plan.written == "Ker":
                self.timeline.add(own + layer.bias)
            else:  # the shard of a result that is reduced is apart from its sums
                moved = self.timeline.new(own if each.reduced else each.result)
            if layer.overlap:  # sums travel during the next pass
                pending.append(self.timeline.new(each.travelling))
            for tensor in [tensor for tensor in slices if tensor not in plan.saves]:
                slices.pop(tensor).free()
        for storage in pending:
            storage.free()
        if layer.leaves_rows:  # torch frees what the passes saved before it lays zeros between the rows
            release(record)
            record.saved = ()
        if moved is not None:
            self._return(node, moved)

    def _differentiate_weightless(self, node: Node, layer: LayerWords) -> None:
        """A pooling or a resizing makes the gradient of the rows that it read, and then that of its shard."""
        if layer.distribution.row_axes:
            self.timeline.brief(layer.slice("In"))
        self._return(node, self.timeline.new(layer.input))

    def _return(self, node: Node, moved: Storage) -> None:
        """The gradient of a layer's input in the layout of its source."""
        name = node.inputs[0]
        if node.name in self.entered or (node.weighted and self.layers[node.name].leaves_rows):
            back = self.timeline.new(self.own[name])
            moved.free()
            moved = back
        self._arrive(name, moved)

    def _arrive(self, name: str, gradient: Storage) -> None:
        """A gradient of a value, added to the one that is there."""
        if name not in self.network.trained:
            gradient.free()
            return
        found = self.gradients.pop(name, None)
        if found is None:
            self.gradients[name] = gradient
            return
        alone = found.holders == 1 or gradient.holders == 1
        total = found.hold() if alone else self.timeline.new(found.words)
        found.free()
        gradient.free()
        self.gradients[name] = total
