"""Where two passes differ, and the first call to which that leads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import fx

from synth.runtime.model.self_check.passes import Pass, Values
from synth.runtime.model.self_check.twins import place_of_node
from synth.runtime.model.step_graph import StepGraph
from synth.runtime.rules.rule import is_trainable

LEAST = 1e-3  # of the largest word, below which words count as if they were so large
CANCELLED = 64  # times the rounding of a dtype: gradients that are zero but for it
# share of the largest word: sums in another order, through some hundred layers
TOLERANCE, ROUNDINGS, MOST = 1e-7, 1e4, 0.1


def coarsest(graph: fx.Graph) -> float:
    """The relative rounding of the coarsest dtype in which a graph computes."""
    values = (node.meta.get("value") for node in graph.nodes)
    dtypes = {each.dtype for each in values if isinstance(each, torch.Tensor)}
    reals = (each for each in dtypes if each.is_floating_point or each.is_complex)
    return max((torch.finfo(each).eps for each in reals), default=0.0)


def tolerance(rounding: float) -> float:
    """What two passes may differ by, relative to the largest word of a tensor."""
    return min(MOST, max(TOLERANCE, ROUNDINGS * rounding))


@dataclass(frozen=True)
class Difference:
    """A tensor in which two passes differ.

    kind: "output", "gradient" or "buffer". name: of the output, parameter, input or
    buffer. how: the difference, in words. error: relative; infinite for another shape.
    """

    kind: str
    name: str
    how: str
    error: float


def differences(theirs: Pass, ours: Pass, limit: float) -> Iterator[Difference]:
    """Where a pass of a network differs from one of its model by more than a limit."""
    for kind, mine, right in (
        ("output", theirs.outputs, ours.outputs),
        ("buffer", theirs.state, ours.state),
        ("buffer", theirs.later, ours.later),
        ("gradient", theirs.gradients, ours.gradients),
    ):
        gradients = kind == "gradient"  # some are zero but for rounding
        most = max(map(_most, right.values()), default=0.0) if gradients else 1.0
        for name, values in right.items():
            least = _least(values) * most if gradients else LEAST
            error, how = apart(mine.get(name), values, least)
            if not error <= limit:
                yield Difference(kind, name, how, error)


def _least(gradient: torch.Tensor | None) -> float:
    """The share of the largest gradient below which words may be rounding alone."""
    if gradient is None or not gradient.is_floating_point():
        return LEAST
    return max(LEAST, CANCELLED * torch.finfo(gradient.dtype).eps)


def apart(
    mine: torch.Tensor | None, right: torch.Tensor | None, least: float
) -> tuple[float, str]:
    """The largest difference of two tensors, relative to the largest word; in words.

    None is a tensor of zeros. least: what the largest word counts as, if it is less.
    """
    if right is None or mine is None:
        one = right if mine is None else mine
        most = _most(one)
        if most <= least * TOLERANCE or not most:
            return 0.0, ""
        return 1.0, "is missing" if mine is None else "is there, which it should not be"
    if mine.shape != right.shape:
        return float("inf"), f"is of {tuple(mine.shape)}, not {tuple(right.shape)}"
    if mine.dtype != right.dtype:
        return float("inf"), f"is of {_word(mine.dtype)}, not {_word(right.dtype)}"
    if not right.numel():
        return 0.0, ""
    if not is_trainable(right):
        share = float((mine != right).double().mean())
        return share, f"differs in {share:.0%} of its words"
    finite = torch.isfinite(right)
    if not torch.equal(torch.isfinite(mine), finite):
        return float("inf"), "is NaN or infinite elsewhere"
    gap = torch.where(finite, (mine - right).abs(), 0).max()
    error = float(gap) / max(_most(right), least, 1e-300)
    return error, f"is off by {error:.1e} of its largest word"


def first_call(
    found: Difference,
    theirs: Pass,
    ours: Pass,
    limit: float,
    graph: fx.Graph,
    steps: StepGraph,
) -> str:
    """The first call that gives something else, in words; "" where none is known.

    theirs, ours: passes of which the values of all calls were looked at.
    """
    nodes = {node.name: node for node in graph.nodes}
    wrong = _wrong(theirs.values, ours.values, limit, LEAST, nodes)
    if wrong:
        return f"{place_of_node(nodes[wrong[0]])}"
    holders = [
        name
        for name, pairs in steps.held.items()
        if any(k == found.name for k, _ in pairs)
    ]
    if found.kind == "gradient":
        least = LEAST * max(map(_most, ours.slopes.values()), default=0.0)
        bad = _wrong(theirs.slopes, ours.slopes, limit, least, nodes)
        readers = [n for n in nodes[bad[-1]].users if n.op != "output"] if bad else []
        if readers:
            return f"{place_of_node(readers[0])}"
        if not holders and found.name in steps.inputs:
            users = nodes[steps.inputs[found.name]].users
            return next((f"{place_of_node(n)}" for n in users if n.op != "output"), "")
    return f"{place_of_node(nodes[holders[-1]])}" if holders else ""


def _wrong(
    mine: Values,
    right: Values,
    limit: float,
    least: float,
    nodes: Mapping[str, fx.Node],
) -> list[str]:
    """The calls whose values differ, in their order."""
    found = []
    for name in nodes:
        one, other = mine.get(name), right.get(name)
        if one is None or other is None or one.numel() != other.numel():
            continue
        error, _ = apart(one.reshape(other.shape), other, least)
        if not error <= limit:
            found.append(name)
    return found


def _most(values: torch.Tensor | None) -> float:
    """The largest finite word."""
    if values is None or not values.numel():
        return 0.0
    if not is_trainable(values):
        return float(values.abs().max()) if values.dtype != torch.bool else 1.0
    size = values.abs()
    return float(torch.where(torch.isfinite(size), size, 0).max())


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
