"""A lower bound on the received words of a training step: three passes that may share what they gather.

In pass i let a process touch I_i, K_i and O_i words of In (or dIn), Ker and Out; every pass does the same
multiply-adds, so `I_i·K_i·O_i >= V` in each, as for one pass. Memory may carry what was gathered from one
pass to another, and then the step receives, per process and less what it owns,

    In   max(I_1, I_3) gathered   +  I_2 summed        forward 1, backward-data 2, backward-filter 3
    Ker  max(K_1, K_2) gathered   +  K_3 summed
    Out  max(O_2, O_3) gathered   +  O_1 summed

A maximum is at least the mean, so pass 1 pays `I_1/2 + K_1/2 + O_1`, and the others alike: per pass a
water-filling with weights 1/2, 1/2 and 1. All is counted for the average process; what a process owns is
subtracted twice, once for the gathers and once for the sums. Memory is taken as unlimited, which can only
lower the bound. Re-derived here; compare `docs/bounds.md` for a single pass, `docs/training.md` for this.

`training_bound` lets every pass choose its own work. A plan has one grid: each process does the same block
in all passes, so `I_1 = I_2 = I_3` and so on, and a tensor is paid 3 times, or 2 where its gathers are kept:

    minimise  w_I·I + w_K·K + w_O·O   under   I·K·O >= V       =  3·(w_I·w_K·w_O·V)^(1/3) inside all bounds

That is `one_grid_bound`; with everything kept it is twice the bound of one pass. A step that leaves a
gradient out has two passes: what only one of them reads is paid whole.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from synth.bounds.holder_brascamp_lieb import weighted_work
from synth.bounds.universal import UniversalBound, words_bound
from synth.layer.axes import TENSORS, Tensor
from synth.layer.nest import Nest
from synth.layer.passes import PASSES, WRITES, Passes, moves, reuse_intervals


def training_bound(nest: Nest, procs: int, most_work: int, passes: Passes = PASSES) -> UniversalBound:
    """Received words of a training step, for the average (hence for some) of `procs` processes.

    `most_work`: real multiply-adds of the most loaded process in one pass.
    """
    cap = min(most_work, max(1, nest.real_work))
    mass = weighted_work(nest, 2 / 3)
    piece = max(1, nest.real_work // nest.extents.g)
    resident = sum(times * nest.words[tensor] for tensor, times in moves(passes).items()) / procs
    words, point, shared = 0.0, (0.0, 0.0, 0.0), reuse_intervals(passes)
    for pass_ in passes:
        weights = {t: 0.5 if t in shared and t != WRITES[pass_] else 1.0 for t in TENSORS}
        out, inp, ker = (weights[tensor] * nest.words[tensor] for tensor in ("Out", "In", "Ker"))
        scaled = mass * math.prod(weights.values()) ** (1 / 3)
        each, _, x = words_bound((out, inp, ker), scaled, cap, procs, None, piece)
        words += each * (1 - 1e-12)
        point = (point[0] + x[0], point[1] + x[1], point[2] + x[2])
    kappa = nest.taps * (mass / max(1, nest.real_work)) ** 1.5
    return UniversalBound(max(0.0, words - resident), 1, point, kappa, procs, cap, resident, "received")


def one_grid_bound(
    nest: Nest, procs: int, most_work: int, kept: Collection[Tensor] = TENSORS, passes: Passes = PASSES
) -> UniversalBound:
    """Received words of a training step whose passes give every process the same multiply-adds.

    `kept`: tensors of which a later pass finds what an earlier one gathered.
    """
    cap = min(most_work, max(1, nest.real_work))
    mass = weighted_work(nest, 2 / 3)
    piece = max(1, nest.real_work // nest.extents.g)
    times = moves(passes, kept)
    out, inp, ker = (times[tensor] * nest.words[tensor] for tensor in ("Out", "In", "Ker"))
    scaled = mass * math.prod(times.values()) ** (1 / 3)
    words, _, point = words_bound((out, inp, ker), scaled, cap, procs, None, piece)
    resident = (out + inp + ker) / procs
    kappa = nest.taps * (mass / max(1, nest.real_work)) ** 1.5
    least = max(0.0, words * (1 - 1e-12) - resident)
    return UniversalBound(least, 1, point, kappa, procs, cap, resident, "received")
