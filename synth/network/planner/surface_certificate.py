"""The part of a network's certificate that is about any schedule: the surface bound, layer by layer.

A layer has the most multiply-adds of a process, a `Cut` and the words that it proves, in exact arithmetic.
Words add up where every activation has one owner between two layers; docs/bounds.md has the argument.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from synth.bounds.certificate_check import must
from synth.bounds.surface import Cut, surface_cut, words_of
from synth.network.grids.layer_class import LayerClass
from synth.network.plan.universal import given, passes_between_layers

WORK = "in any process at most the multiply-adds of each layer that the certificate has"
FRACTION = re.compile(r"(0|[1-9]\d{0,39})(/[1-9]\d{0,39})?")
MOST_WORK = 2**200


def any_schedule(
    network: str,
    kinds: Sequence[LayerClass],
    of: Sequence[int],
    loads: Sequence[int],
    procs: int,
    training: bool = False,
) -> dict[str, Any]:
    """The bound as JSON data. `kinds`: classes of layers; `of`: the class of each layer.

    In a training step halos move in each pass that writes no weights.
    """
    layers: list[dict[str, Any]] = []
    for number, load in zip(of, loads, strict=True):
        nest = kinds[number].nest
        cut = surface_cut(nest, procs, load)
        words = 0 if cut is None else words_of(nest, procs, load, cut)
        words *= passes_between_layers(kinds[number], training)
        shown = None if cut is None or not words else _shown(cut)
        layers.append({"most_work": load, "cut": shown, "words": words})
    total = str(Fraction(sum(each["words"] for each in layers), procs))
    return {"words": total, "claim": claim(network, procs, total, training), "layers": layers}


def _shown(cut: Cut) -> dict[str, Any]:
    return {**cut._asdict(), "side": str(cut.side), "weight": str(cut.weight)}


def claim(network: str, procs: int, words: str, training: bool = False) -> str:
    """The sentence that is proved, with all that it assumes."""
    assumed = "; ".join([f"{procs} processes", *given(True, WORK + ", in each pass" * training)])
    what = f"{'a training step of ' * training}the layers of {network}"
    return (
        f"any schedule of {what} receives at least {words} words, on average over the"
        f" processes, given: {assumed}"
    )


def check(
    data: Mapping[str, Any],
    network: str,
    kinds: Sequence[LayerClass],
    of: Sequence[int],
    procs: int,
    training: bool = False,
) -> list[str]:
    """Compute the words of all layers anew; returns the step as text. Raises `CheckError` if one differs."""
    must(data.keys() == {"words", "claim", "layers"}, "any_schedule has the fields of this version")
    must(len(data["layers"]) == len(of), "any_schedule has an entry for each layer")
    total, known = 0, dict[tuple[Any, ...], int]()
    for place, (number, each) in enumerate(zip(of, data["layers"], strict=True)):
        must(each.keys() == {"most_work", "cut", "words"}, f"layer {place} has the fields of this version")
        nest, load, cut = kinds[number].nest, each["most_work"], _cut(each["cut"])
        must(type(load) is type(each["words"]) is int, f"the numbers of layer {place} are whole")
        must(load * procs >= nest.real_work and load < MOST_WORK, f"the processes can do layer {place}")
        if (number, load, cut) not in known:
            known[number, load, cut] = 0 if cut is None else words_of(nest, procs, load, cut)
        words = known[number, load, cut] * passes_between_layers(kinds[number], training)
        must(each["words"] == words, f"layer {place} moves {each['words']} words; its cut proves {words}")
        total += words
    average = str(Fraction(total, procs))
    must(data["words"] == average, f"{data['words']} words on average follow; {average} do")
    must(data["claim"] == claim(network, procs, average, training), "the claim is what is proved")
    return [f"surface of regions, {len(of)} layers: {total} words of all processes", f"so {data['claim']}"]


def _cut(data: Mapping[str, Any] | None) -> Cut | None:
    if data is None:
        return None
    must(data.keys() == set(Cut._fields), "a cut has the fields of this version")
    must(type(data["turned"]) is type(data["squares"]) is bool, "a cut is turned or not, squares or lines")
    cut = Cut(data["turned"], data["squares"], lowest_terms(data["side"]), lowest_terms(data["weight"]))
    must(min(cut.side, cut.weight) > 0, "the side and the weight of a cut are above 0")
    return cut


def lowest_terms(text: object) -> Fraction:
    """A fraction from 0 that is written in lowest terms. Raises `ValueError` for any other value."""
    if not isinstance(text, str) or not FRACTION.fullmatch(text) or str(Fraction(text)) != text:
        raise ValueError(f"{str(text)[:40]!r} is not a fraction p/q from 0 in lowest terms")
    return Fraction(text)
