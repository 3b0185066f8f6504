"""Lower bounds on the received words of a training step, whose three passes may reuse gathered slices.

In pass i a process touches I_i, K_i and O_i words of In (or dIn), Ker and Out. Every pass does the same
multiply-adds, so `I_i·K_i·O_i >= V` holds in each, as for one pass. A slice that one pass gathers may stay
in memory for another. So a process receives at least, without the words that it owns,

    In   max(I_1, I_3) gathered   +  I_2 reduced       1 forward, 2 backward-data, 3 backward-filter
    Ker  max(K_1, K_2) gathered   +  K_3 reduced
    Out  max(O_2, O_3) gathered   +  O_1 reduced

A maximum is at least the mean. So pass 1 contributes `I_1/2 + K_1/2 + O_1`, and the others likewise: each
pass is a water-filling problem with weights 1/2, 1/2 and 1. The bounds hold for the average process. Owned
words are subtracted twice, once for the gathers and once for the reductions. The memory is unlimited, which
can only lower a bound. The derivation is our own; docs/bounds.md has that of one pass and
docs/passes.md this one.

`training_bound` lets each pass distribute its work in its own way. A plan has one grid, so each process
has the same block in all passes: `I_1 = I_2 = I_3`, and so on. A tensor then counts w = 3 times, or twice
if a gathered slice is reused:

    minimise  w_I·I + w_K·K + w_O·O   under   I·K·O >= V       =  3·(w_I·w_K·w_O·V)^(1/3) inside all bounds

That is `one_grid_bound`. If every tensor is reused, it is twice the bound of one pass. A step without one
of the gradients has two passes, and a tensor that only one of them reads has weight 1 there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from synth.bounds.holder_brascamp_lieb import weighted_work
from synth.bounds.universal import UniversalBound, words_bound
from synth.layer.axes import TENSORS, Tensor
from synth.layer.nest import Nest
from synth.layer.passes import PASSES, WRITES, Passes, moves, reuse_intervals


def training_bound(nest: Nest, procs: int, most_work: int, passes: Passes = PASSES) -> UniversalBound:
    """Lower bound on the received words of a training step, on average over `procs` processes.

    `most_work`: multiply-adds of the most loaded process in one pass, without those on padding.
    """
    shared = reuse_intervals(passes)
    halves = [{t: 0.5 if t in shared and t != WRITES[each] else 1.0 for t in TENSORS} for each in passes]
    return _bound(nest, procs, most_work, halves, moves(passes))


def one_grid_bound(
    nest: Nest, procs: int, most_work: int, kept: Collection[Tensor] = TENSORS, passes: Passes = PASSES
) -> UniversalBound:
    """Lower bound on the received words of a training step with the same grid in all passes.

    `most_work` as for `training_bound`. `kept`: the tensors whose slices a later pass reuses.
    """
    times = moves(passes, kept)
    return _bound(nest, procs, most_work, [times], times)


def _bound(
    nest: Nest,
    procs: int,
    most_work: int,
    blocks: Sequence[Mapping[Tensor, float]],
    times: Mapping[Tensor, int],
) -> UniversalBound:
    """The bound of the sum of some weighted blocks. blocks: the weights of each. times: see `_shards`."""
    cap = min(most_work, max(1, nest.real_work))
    mass = weighted_work(nest, 2 / 3)
    piece = max(1, nest.real_work // nest.extents.g)
    words, point = 0.0, (0.0, 0.0, 0.0)
    for weights in blocks:
        out, inp, ker = (weights[tensor] * nest.read_words[tensor] for tensor in ("Out", "In", "Ker"))
        scaled = mass * math.prod(weights.values()) ** (1 / 3)
        each, _, x = words_bound((out, inp, ker), scaled, cap, procs, None, piece)
        words += each * (1 - 1e-12)
        point = (point[0] + x[0], point[1] + x[1], point[2] + x[2])
    shards = _shards(nest, procs, times)
    kappa = nest.taps * (mass / max(1, nest.real_work)) ** 1.5
    return UniversalBound(max(0.0, words - sum(shards)), 1, point, kappa, procs, cap, shards, "received")


def _shards(nest: Nest, procs: int, times: Mapping[Tensor, int]) -> tuple[float, float, float]:
    """Words of (Out, In, Ker) that a process owns, once for each time that the tensor moves."""
    out, inp, ker = (times[tensor] * nest.read_words[tensor] / procs for tensor in ("Out", "In", "Ker"))
    return out, inp, ker
