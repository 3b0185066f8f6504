"""Seconds of a step of a network: a sum over layers, over neighbours in the order of execution, and buckets.

    step     = Σ layers (computing + exposed moves + what follows the layer + update) + redistributions
             + Σ max(0, Ker of layer i+1 - computing of layer i)           forward; Ker of the first whole
             + Σ max(0, sums of dKer of layer i+1 - computing of layer i)  backward; those of the first whole
             + what nothing hides of buckets      at least buckets - computing that the sums above leave free

Layers whose ranks all hold their whole slices of Ker neither gather it nor sum dKer alone. Their gradients
travel in the all-reduces of buckets (`buckets.exposed`). The last term is not a sum over layers. With a price
from 0 to 1 it is bounded by one, price · (buckets - free computing): so each price gives a choice of options
by `solve`, and a proven lower bound (Lagrangian relaxation; Everett, 1963). The best choice for some prices
is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from synth.machine.hierarchy import Machine
from synth.network.step_time.between import Between
from synth.network.step_time.buckets import Gradient, exposed
from synth.network.step_time.layer_times import LayerTimes, Seconds

PRICES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of a second of buckets, for lower bounds and choices of weights
PLANNED_PRICES = (0.0, 1.0)  # of those, for choices of grids


@dataclass(frozen=True)
class LayerSeconds:
    """Seconds of one layer in a step.

    forward, backward: computing with what follows the layer. comm_forward, comm_backward: exposed moves of
    activations and norms; Ker's gather is in the first one. exchange: exposed sums of dKer. update: of
    weights.
    """

    forward: float
    backward: float
    comm_forward: float
    comm_backward: float
    exchange: float
    update: float

    @property
    def total(self) -> float:
        """All seconds of the layer."""
        return (
            self.forward
            + self.backward
            + self.comm_forward
            + self.comm_backward
            + self.exchange
            + self.update
        )


class StepSeconds:
    """The seconds of a step by options of its layers, in the order of execution.

    rows: layer -> the times of its options. followed: layer -> what follows it. weighted: layer -> whether
    its weights may be whole on every rank. hides: whether Ker moves while neighbours compute. margin: how
    much faster a step must be with shards than with whole weights, as a fraction.
    """

    def __init__(
        self,
        machine: Machine,
        rows: Sequence[LayerTimes],
        followed: Sequence[Between],
        weighted: Sequence[bool],
        training: bool,
        hides: bool,
        margin: float = 0.0,
    ) -> None:
        self.margin = margin
        self.machine, self.rows, self.followed, self.training = machine, rows, followed, training
        self.weighted = weighted
        self.overlap = machine.overlap if hides else 0.0

    # -- what follows a layer ----------------------------------------------------------------------------

    def _computed_after(self, layer: int, backward: bool) -> Seconds:
        """Seconds of the kernels that follow a layer, by option."""
        each, times = self.followed[layer], self.rows[layer]
        touched = each.touched_backward if backward else each.touched_forward
        kernels = each.kernels_backward if backward else each.kernels_forward
        compute = self.machine.compute
        found: Seconds = touched * times.touch + kernels * (compute.overhead + compute.dispatch + times.fresh)
        return found

    def alone(self, layer: int) -> Seconds:
        """Seconds of a layer by option, without all moves of Ker and without the update."""
        times, each = self.rows[layer], self.followed[layer]
        norms = self._norms(layer)
        found: Seconds = times.forward + self._computed_after(layer, False) + norms + each.fixed
        if self.training:
            found = found + times.backward + self._computed_after(layer, True) + norms + each.fixed_backward
        return found

    def _norms(self, layer: int) -> Seconds:
        """Seconds of the exchanges of statistics that follow a layer in one pass, by option."""
        each, times = self.followed[layer], self.rows[layer]
        found: Seconds = each.norms * times.norm
        for count, seconds in ((each.group_norms, times.group_norm), (each.layer_norms, times.layer_norm)):
            found = found + count * seconds if count else found
        return found

    @cached_property
    def _after(self) -> list[tuple[Seconds, Seconds, Seconds]]:
        """Layer -> seconds of what follows it, by option: kernels of each pass, exchanges of statistics."""
        layers = range(len(self.rows))
        return [
            (self._computed_after(i, False), self._computed_after(i, True), self._norms(i)) for i in layers
        ]

    # -- a relaxation that is a sum over layers and pairs of neighbours --------------------------------------

    def whole_where_cheaper(self, price: float) -> list[np.ndarray]:
        """Layer -> by option, whether whole weights are cheaper, if neighbours compute as long as it does."""
        found = []
        for times, may in zip(self.rows, self.weighted, strict=True):
            free, back = (self.overlap * each for each in (times.computing_forward, times.computing_backward))
            left = price * np.maximum(0.0, back - times.reduced)
            shards = times.update + np.maximum(0.0, times.gathered - free)
            shards = shards + np.maximum(0.0, times.reduced - back) - left
            whole = times.update_whole + price * (times.averaged - back)
            found.append((whole < shards) & may)
        return found

    def terms(
        self, whole: Sequence[np.ndarray], price: float
    ) -> tuple[list[Seconds], dict[tuple[int, int], Seconds]]:
        """(layer -> seconds by option, neighbours -> seconds by their options), at a price of the buckets."""
        costs, pairs = list[Seconds](), dict[tuple[int, int], Seconds]()
        before: LayerTimes | None = None
        for layer, (times, chosen) in enumerate(zip(self.rows, whole, strict=True)):
            gathered, reduced = np.where(chosen, 0.0, times.gathered), np.where(chosen, 0.0, times.reduced)
            update = np.where(chosen, times.update_whole, times.update)
            cost = self.alone(layer) + update + price * np.where(chosen, times.averaged, 0.0)
            if before is None:
                cost = cost + gathered + reduced
            else:
                free = self.overlap * before.computing_forward[:, None]
                back = self.overlap * before.computing_backward[:, None]
                pair = np.maximum(0.0, gathered - free) + np.maximum(0.0, reduced - back)
                pairs[layer - 1, layer] = pair - price * np.maximum(0.0, back - reduced)
            costs.append(cost)
            before = times
        return costs, pairs

    # -- one choice ------------------------------------------------------------------------------------------

    def by_layer(self, chosen: Sequence[int], whole: Sequence[bool]) -> list[LayerSeconds]:
        """The seconds of every layer of a choice. Exposed buckets are divided by their seconds."""
        one = [times.at(slice(option, option + 1)) for times, option in zip(self.rows, chosen, strict=True)]
        found, free = list[LayerSeconds](), list[float]()
        spare = spare_back = 0.0  # computing of the layer before
        gradients = list[Gradient | None]()
        for layer, (times, keeps) in enumerate(zip(one, whole, strict=True)):
            gathered = 0.0 if keeps else float(times.gathered[0])
            reduced = 0.0 if keeps else float(times.reduced[0])
            gradients.append(_gradient(times) if keeps else None)
            if layer:
                free.append(max(0.0, spare_back - reduced))
            *after, norms = (float(each[chosen[layer]]) for each in self._after[layer])
            forward, backward = float(times.computing_forward[0]), float(times.computing_backward[0])
            waited = max(0.0, gathered - spare) if layer else gathered
            fixed_back = self.followed[layer].fixed_backward
            comm_back = times.backward[0] - backward + norms + fixed_back if self.training else 0.0
            found.append(
                LayerSeconds(
                    forward=float(forward + after[0]),
                    backward=float(backward + after[1]) if self.training else 0.0,
                    comm_forward=float(
                        times.forward[0] - forward + norms + waited + self.followed[layer].fixed
                    ),
                    comm_backward=float(comm_back),
                    exchange=float(max(0.0, reduced - spare_back) if layer else reduced),
                    update=float(times.update_whole[0] if keeps else times.update[0]),
                )
            )
            spare, spare_back = self.overlap * forward, self.overlap * backward
        late, buckets = exposed(gradients, free), sum(each.seconds for each in gradients if each)
        return [
            _with_exchange(each, late * mine.seconds / buckets) if mine and buckets else each
            for each, mine in zip(found, gradients, strict=True)
        ]

    def seconds(self, chosen: Sequence[int], whole: Sequence[bool]) -> float:
        """The seconds of a choice, without redistributions."""
        return sum(each.total for each in self.by_layer(chosen, whole))

    def weights(self, chosen: Sequence[int], allowed: Sequence[bool]) -> tuple[bool, ...]:
        """Which layers of a choice best have whole weights, of those that may: the best of some prices.

        All that may have them, unless the best is faster by more than the margin.
        """
        if not any(allowed):
            return (False,) * len(chosen)
        one = [times.at(slice(option, option + 1)) for times, option in zip(self.rows, chosen, strict=True)]
        free = [self.overlap * times.computing_forward[0] for times in one]
        back = [self.overlap * times.computing_backward[0] for times in one]
        tried = {tuple(allowed), (False,) * len(chosen)}
        for price in PRICES:
            made = []
            for layer, times in enumerate(one):
                ahead, behind = (free[layer - 1], back[layer - 1]) if layer else (0.0, 0.0)
                shards = times.update[0] + max(0.0, times.gathered[0] - ahead)
                shards += max(0.0, times.reduced[0] - behind) - price * max(0.0, behind - times.reduced[0])
                whole = times.update_whole[0] + price * (times.averaged[0] - behind)
                made.append(bool(allowed[layer] and whole < shards))
            tried.add(tuple(made))
        best = min(sorted(tried), key=lambda each: self.seconds(chosen, each))
        all_whole = self.seconds(chosen, allowed)
        keeps = all_whole * (1 - self.margin) <= self.seconds(chosen, best)
        return tuple(allowed) if keeps else best


def _gradient(times: LayerTimes) -> Gradient:
    """The whole gradient of a layer: of one option. All-reduces of a byte take alike in alike groups."""
    seconds, part = float(times.averaged[0]), float(times.fills[0])
    return Gradient(seconds, round(seconds / part, 12) if part else 0.0, part)


def _with_exchange(each: LayerSeconds, more: float) -> LayerSeconds:
    fields = {**each.__dict__, "exchange": each.exchange + more}
    return LayerSeconds(**fields)


def least_seconds(
    machine: Machine,
    layers: Sequence[tuple[LayerTimes, Between, bool]],
    training: bool,
    hides: bool,
) -> tuple[float, list[Seconds]]:
    """A lower bound of a step over the given placed grids of its layers, without redistributions.

    Returns it, and what every layer adds to it at least, by placed grid: the bound is the sum of the least.

    layers: (times of all placed grids, what follows, whether weights may be whole). Let C compute, and M move
    beside it: C + max(0, M - o·C) is at least (1 - p·o)·C + p·M for every p from 0 to 1, and so are the sums
    over all layers. So each layer takes the least of its grids, and the best p is taken.
    """
    known: dict[tuple[int, Between], list[Seconds]] = {}
    terms: list[list[Seconds]] = []
    for times, each, may in layers:
        if (id(times), each) not in known:
            step = StepSeconds(machine, [times], [each], [may], training, hides)
            alone, least = step.alone(0), list[Seconds]()
            computing = step.overlap * (times.computing_forward + training * times.computing_backward)
            for price in PRICES:
                weights = times.update + price * (times.gathered + times.reduced)
                if may:
                    weights = np.minimum(weights, times.update_whole + price * times.averaged)
                least.append(alone - price * computing + weights)
            known[id(times), each] = least
        terms.append(known[id(times), each])
    bounds = [sum(float(row[price].min()) for row in terms) for price in range(len(PRICES))]
    best = int(np.argmax(bounds))
    return bounds[best], [row[best] for row in terms]
