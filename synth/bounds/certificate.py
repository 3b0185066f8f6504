"""Writes the certificate of a lower bound: the numbers with which `certificate_check` proves it exactly.

Floating-point arithmetic chooses n, x and the multipliers. They are rounded to fractions that keep the
claim true, and `certificate_check` decides.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from synth.bounds.assumptions import claim
from synth.bounds.certificate_check import SCHEMA, TENSORS, Dim, classes, digest, facts, proved, tap_counts
from synth.bounds.holder_brascamp_lieb import hbl_constant
from synth.bounds.universal import words_bound
from synth.layer.layer import Layer

GRAIN = 2**48  # weights and squares are multiples of 1/GRAIN
SLACKS = (1e-10, 1e-8, 1e-6, 1e-4)  # relative slacks of a constant; the first that can be proved is used


def certificate(
    layer: Layer, procs: int, *, limit_words: int | None, most_work: int, simple: bool = False
) -> dict[str, Any]:
    """The certificate of the universal bound of one pass, as JSON data with fractions as text "p/q".

    `limit_words`: memory per process, None for unlimited. `most_work`: the most multiply-adds of one
    process, padding excluded. `simple`: the constants are √min(N, R), and not the least that can be
    certified. `certificate_check.check` explains the values, and checks each of them. Raises `InputError`
    if the layer is too large to count.
    """
    problem = layer.to_json()
    words, work, dims, flat = facts(problem)
    cap = min(most_work, max(1, work))
    constants = {shape: least_constant(*shape, simple=simple) for shape in _shapes(dims)}
    mass = Fraction(flat)
    for dim in dims:
        counts = tap_counts(dim)
        mass *= sum(
            (
                sum(counts[tap] for tap in taps) * constants[outputs, len(taps)][1]
                for outputs, taps in classes(dim)
            ),
            Fraction(0),
        )
    piece = max(1, work // layer.groups)
    sizes = tuple(float(words[t]) for t in TENSORS)
    _, segments, _ = words_bound((sizes[0], sizes[1], sizes[2]), float(mass), cap, procs, limit_words, piece)
    volume = mass**3 / min(-(-cap // segments), piece)
    x, nu = _point([words[t] for t in TENSORS], volume)
    mu = [1 - nu / each for each in x]
    total = 3 * nu + sum(m * words[t] for m, t in zip(mu, TENSORS, strict=True))
    carried = (segments - 1) * (limit_words or 0)
    bound = max(Fraction(0), total / procs - carried - Fraction(sum(words.values()), procs))
    least = str(Fraction(math.floor(bound * 1000), 1000))
    data = {
        "schema": SCHEMA,
        "claim": claim(least, procs, cap, limit_words),
        "problem": problem,
        "procs": procs,
        "memory_words": limit_words,
        "most_work": cap,
        "sizes": words,
        "multiply_adds": work,
        "constants": [
            {"outputs": n, "taps": r, "square": str(square), "weight": str(weight)}
            for (n, r), (square, weight) in constants.items()
        ],
        "segments": segments,
        "x": {t: str(v) for t, v in zip(TENSORS, x, strict=True)},
        "nu": str(nu),
        "multipliers": {t: str(m) for t, m in zip(TENSORS, mu, strict=True)},
        "words": least,
    }
    return {**data, "digest": digest(data)}


def _shapes(dims: list[Dim]) -> list[tuple[int, int]]:
    """The (outputs, number of taps) of all residue classes, without repetitions."""
    return list(dict.fromkeys((outputs, len(taps)) for dim in dims for outputs, taps in classes(dim)))


def least_constant(outputs: int, taps: int, *, simple: bool = False) -> tuple[Fraction, Fraction]:
    """(square, weight) of C(outputs, taps): √min(N, R), or the tightest that `proved` accepts."""
    ceiling = Fraction(min(outputs, taps))
    target = ceiling if simple else hbl_constant(outputs, taps) ** 2
    for slack in () if simple else SLACKS:
        square = min(ceiling, Fraction(math.ceil(target * (1 + slack) * GRAIN), GRAIN))
        if proved(outputs, taps, square):
            break
    else:
        square = ceiling
    weight = Fraction(math.floor(float(square) ** (-1 / 3) * GRAIN), GRAIN)
    while weight**3 * square > 1:
        weight -= Fraction(1, GRAIN)
    return square, weight


def _point(floors: list[int], volume: Fraction) -> tuple[list[Fraction], Fraction]:
    """Water-filling with fractions: (x with ∏x <= volume, ν = the common value above the floors)."""
    order = sorted(range(3), key=lambda i: -floors[i])
    rest = volume
    for position, i in enumerate(order):
        free = 3 - position
        if rest >= Fraction(floors[i]) ** free:
            level = _root_below(rest, free)
            x = [Fraction(floor) for floor in floors]
            for j in order[position:]:
                x[j] = level
            return x, level
        rest /= floors[i]
    return [Fraction(floor) for floor in floors], Fraction(0)  # the floors suffice: ∏ floors > volume


def _root_below(value: Fraction, degree: int) -> Fraction:
    """A lower bound of the root of `value`, exact to about 60 bits."""
    bits = max(0, 60 - value.numerator.bit_length() // degree + value.denominator.bit_length() // degree)
    scaled = (value.numerator << (bits * degree)) // value.denominator
    low, high = 0, 1 << (scaled.bit_length() // degree + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if middle**degree <= scaled:
            low = middle
        else:
            high = middle
    return Fraction(low, 1 << bits)
