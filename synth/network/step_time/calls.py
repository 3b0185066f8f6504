"""Calls of kind `gathered`, for which the planner has no layout: words and seconds, the same on any grid.

What a call is divided as (see `Divided`) says what moves and what each rank computes:

    ""         every rank gathers all inputs, and computes everything
    product    every rank reads its part of the first operand, and the slices of the others that belong to it
    parts      every rank computes its part where it lies
    view, joined   nothing is computed

Values lie in equal parts on all ranks before. Boxes that a model's call cuts anew are not known to a network;
`plan.words` of a model has them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from synth.machine.collectives import best
from synth.machine.hierarchy import Machine
from synth.machine.rank_groups import split_over
from synth.network.graph import Network, Node

THICK = 1 << 20  # channels of a kernel whose rate no narrowness lowers


@dataclass(frozen=True)
class CallCost:
    """One call. words: that a rank receives in a forward pass, at most. forward, backward: seconds."""

    name: str
    what: str
    words: int
    forward: float = 0.0
    backward: float = 0.0


def call_costs(network: Network, procs: int, machine: Machine | None = None) -> list[CallCost]:
    """The calls of a network in order, without those that neither move nor compute; seconds on a machine."""
    found = []
    for node in network.nodes.values():
        if node.kind != "gathered" or node.divided in ("view", "joined"):
            continue
        words = _received(network, node, procs)
        moves = computes = 0.0
        if machine is not None:
            moves, computes = _moves(network, node, procs, machine), _computes(network, node, procs, machine)
        what = {"": "gathered", "parts": "in parts"}.get(node.divided, node.divided)
        found.append(CallCost(node.name, what, words, moves + computes, moves + 2 * computes))
    return found


def call_lines(calls: list[CallCost], training: bool) -> list[str]:
    """One sentence that names the calls that take most; no line without calls."""
    if not calls:
        return []
    seconds = {each.name: each.forward + each.backward * training for each in calls}
    most = sorted(calls, key=lambda each: (seconds[each.name], each.words), reverse=True)[:3]
    shown = [f"{each.name} ({each.what}) {_shown(seconds[each.name], each.words)}" for each in most]
    total = _shown(sum(seconds.values()), sum(each.words for each in calls))
    return [f"calls without a layout of their own: {len(calls)}, {total}; most in {', '.join(shown)}"]


def _shown(seconds: float, words: int) -> str:
    received = f"{words:,} words forward"
    return f"{seconds * 1e3:.3g} ms, {received}" if seconds else received


def _words(network: Network, name: str) -> int:
    node = network.nodes.get(name)
    return node.out_words if node else math.prod(network.input)


def _read(network: Network, node: Node, procs: int) -> list[int]:
    """Words of every input that a rank reads from others and from itself."""
    sizes = [_words(network, name) for name in node.inputs]
    if node.divided == "":
        return sizes
    if node.divided == "parts":
        return [-(-size // procs) for size in sizes]
    blocks = max(1, min(procs, math.prod(node.shape[:-2])))  # that read slices of their own
    return [-(-size // (procs if place == 0 else blocks)) for place, size in enumerate(sizes)]


def _received(network: Network, node: Node, procs: int) -> int:
    own = [-(-_words(network, name) // procs) for name in node.inputs]
    return sum(max(0, read - each) for read, each in zip(_read(network, node, procs), own, strict=True))


def _moves(network: Network, node: Node, procs: int, machine: Machine) -> float:
    """Seconds of all-gathers over all ranks, by which every rank has what it reads."""
    group = split_over(machine, procs)
    own = [-(-_words(network, name) // procs) for name in node.inputs]
    sizes = [
        (read - each) * procs / max(1, procs - 1) * network.word_bytes
        for read, each in zip(_read(network, node, procs), own, strict=True)
        if read > each
    ]
    return sum(best(machine, "all_gather", size, group).seconds for size in sizes)


def _computes(network: Network, node: Node, procs: int, machine: Machine) -> float:
    """Seconds of one pass of a rank: of a product by its rate, of all else by the words that it touches."""
    compute, parts = machine.compute, procs if node.divided else 1
    if node.divided == "product":
        rate = compute.rate_of(THICK, network.dtype)
        return compute.overhead + 2 * _products(network, node) / parts / rate
    touched = sum(_words(network, name) for name in node.inputs) + node.out_words
    return compute.overhead + touched * network.word_bytes / parts / (compute.bandwidth or compute.rate)


def _products(network: Network, node: Node) -> int:
    """Multiply-adds: of a matrix product, or of attention with queries, keys and values."""
    shapes = [network.nodes[n].shape if n in network.nodes else network.input for n in node.inputs]
    if len(shapes) >= 3:  # queries with keys, and the weights with values
        return 2 * math.prod(shapes[0]) * shapes[1][-2]
    return node.out_words * shapes[0][-1]
