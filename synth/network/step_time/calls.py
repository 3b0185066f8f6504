"""Calls of kind `gathered`, for which the planner has no layout: words and seconds, the same on any grid.

What a call is divided as (see `Divided`) says what moves and what each rank computes:

* "": every rank gathers all inputs, and computes everything.
* product: every rank reads its part of the first operand. It gathers what this needs of the others.
* parts: every rank computes its part where it lies.
* view, joined: nothing is computed.

Values lie in equal parts on all ranks before, and a rank has its share of what it reads. Boxes that a call
cuts anew are not known to a network; the steps of a model know them (`plan.words`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from synth.base.units import show_words
from synth.machine.collectives import best, exchange_seconds
from synth.machine.hierarchy import Machine
from synth.machine.rank_groups import split_over
from synth.network.graph import Network, Node

Counted = Mapping[str, tuple[Sequence[int], Sequence[int]]]  # call -> words by rank, forward and backward
SHOWN = {"": "gathered", "parts": "in parts", "view": "cut anew", "joined": "cut anew"}
THICK = 1 << 20  # channels of a kernel whose rate no narrowness lowers


@dataclass(frozen=True)
class CallCost:
    """One call. words, back: received by a rank forward and backward, at most. forward, backward: seconds."""

    name: str
    what: str
    words: int
    back: int
    forward: float = 0.0
    backward: float = 0.0


def call_costs(network: Network, procs: int, machine: Machine | None = None) -> list[CallCost]:
    """The calls of a network in order, without those that neither move nor compute; seconds on a machine."""
    found = []
    for node in network.nodes.values():
        if node.kind != "gathered" or node.divided in ("view", "joined"):
            continue
        received = _received(network, node, procs)
        found.append(_cost(network, node, procs, machine, received, received))
    return found


def counted_costs(network: Network, procs: int, machine: Machine | None, words: Counted) -> list[CallCost]:
    """The same with the words that the steps of a model exchange; also what is cut anew without computing."""
    found = []
    for node in network.nodes.values():
        if node.kind != "gathered":
            continue
        forward, backward = ([max(each)] for each in words.get(node.name, ((0,), (0,))))
        if node.divided not in ("view", "joined") or forward[0] or backward[0]:
            found.append(_cost(network, node, procs, machine, forward, backward))
    return found


def _cost(
    network: Network,
    node: Node,
    procs: int,
    machine: Machine | None,
    received: Sequence[int],
    back: Sequence[int],
) -> CallCost:
    """received, back: words of every exchange of the forward and of the backward pass."""
    forward = backward = 0.0
    if machine is not None:
        computes = _computes(network, node, procs, machine)
        forward, backward = (
            times * computes + sum(_seconds(network, node, words, procs, machine) for words in each)
            for times, each in ((1, received), (2, back))
        )
    what = SHOWN.get(node.divided, node.divided)
    return CallCost(node.name, what, sum(received), sum(back), forward, backward)


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


def _received(network: Network, node: Node, procs: int) -> list[int]:
    """Words of every input that a rank receives: all of what it reads but its share.

    What ranks divided before stays where it is, as the weights of attention do.
    """
    pairs = zip(node.inputs, _read(network, node, procs), strict=True)
    return [0 if _stays(network, node, name) else read - read // procs for name, read in pairs]


def _stays(network: Network, node: Node, name: str) -> bool:
    if node.divided == "parts":
        return True
    source = network.nodes.get(name)
    while source is not None and source.divided == "view":
        source = network.nodes.get(source.inputs[0])
    return node.divided == "product" and source is not None and source.divided in ("product", "parts")


def _seconds(network: Network, node: Node, words: int, procs: int, machine: Machine) -> float:
    """Of an exchange by which a rank receives some words: an all-gather, or messages between all ranks."""
    group, size = split_over(machine, procs), words * network.word_bytes
    if node.divided == "" and group.units():
        return best(machine, "all_gather", size * procs / (procs - 1), group).seconds
    return exchange_seconds(machine, size, group)


def _computes(network: Network, node: Node, procs: int, machine: Machine) -> float:
    """Seconds of one pass of a rank: of a product by its rate, of all else by the words that it touches."""
    if node.divided in ("view", "joined"):
        return 0.0
    compute, parts = machine.compute, procs if node.divided else 1
    if node.divided == "product":
        rate = compute.rate_of(THICK, network.dtype)
        return compute.overhead + 2 * _products(network, node) / parts / rate
    touched = sum(_words(network, name) for name in node.inputs) + node.out_words
    return compute.overhead + touched * network.word_bytes / parts / (compute.bandwidth or compute.rate)


def gathered_calls(network: Network) -> tuple[dict[str, int], float]:
    """Calls that every rank computes from gathered values -> the words that they read; and their share.

    The share is that of the words that all calls of the network read.
    """
    read = {
        name: sum(_words(network, source) for source in node.inputs) for name, node in network.nodes.items()
    }
    found = {
        name: read[name]
        for name, node in network.nodes.items()
        if node.kind == "gathered" and node.divided == ""
    }
    return found, sum(found.values()) / max(1, sum(read.values()))


def gathered_text(network: Network) -> str:
    """A sentence on the calls that every rank computes from gathered values; "" where there are none."""
    found, share = gathered_calls(network)
    if not found:
        return ""
    most = sorted(found, key=lambda name: -found[name])
    shown = ", ".join(f"{name} ({show_words(found[name])} words)" for name in most[:5])
    more = f" and {len(most) - 5} more" if len(most) > 5 else ""
    return (
        f"every rank gathers all that these calls read, and computes them whole: {shown}{more}; they read "
        f"{share:.1%} of the words that calls read"
    )


def operations(network: Network) -> int:
    """Floating-point operations of a forward pass: two per multiply-add of layers, products and attention.

    Those on padding zeros are counted, as `torch.utils.flop_counter` does.
    """
    layers = (node.layer.nest for node in network.planned if node.layer is not None)
    products = (_products(network, n) for n in network.nodes.values() if n.divided == "product")
    return 2 * (sum(nest.extents.size * nest.taps for nest in layers) + sum(products))


def _products(network: Network, node: Node) -> int:
    """Multiply-adds: of a matrix product, or of attention with queries, keys and values."""
    if node.multiply_adds:
        return node.multiply_adds
    shapes = [network.nodes[n].shape if n in network.nodes else network.input for n in node.inputs]
    if len(shapes) >= 3:  # queries with keys, and the weights with values
        return 2 * math.prod(shapes[0]) * shapes[1][-2]
    return node.out_words * shapes[0][-1]
