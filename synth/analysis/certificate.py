"""Writes the certificate of a plan's lower bound: the numbers that `certify` needs to prove it exactly.

Floating point chooses n, x and the multipliers; they are rounded to the safe side, and `certify` decides.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from synth.base.errors import InfeasibleError
from synth.bounds.certificate_check import SCHEMA, TENSORS, classes, facts, proved, tap_counts
from synth.bounds.holder_brascamp_lieb import hbl_constant
from synth.bounds.universal import words_bound
from synth.planning.plan import Plan

GRAIN = 2**48  # weights and squares are multiples of 1/GRAIN
LOOSER = (1e-10, 1e-8, 1e-6, 1e-4)  # relative slack of a constant, the first that can be proved


def certificate(plan: Plan) -> dict[str, Any]:
    """The certificate as JSON data; fractions are strings "p/q". One pass only: raises `InfeasibleError`."""
    if plan.pass_ == "training":
        raise InfeasibleError("a certificate is about one pass; plan with --pass forward, not training")
    problem, procs, limit_words = plan.layer.to_json(), plan.procs, plan.limit_words
    words, work, dims, flat = facts(problem)
    cap = min(plan.distribution.most_real_work, max(1, work))
    constants: dict[tuple[int, int], tuple[Fraction, Fraction]] = {}
    mass = Fraction(flat)
    for dim in dims:
        counts, factor = tap_counts(dim), Fraction(0)
        for outputs, taps in classes(dim):
            if (outputs, len(taps)) not in constants:
                constants[outputs, len(taps)] = _constant(outputs, len(taps))
            factor += sum(counts[tap] for tap in taps) * constants[outputs, len(taps)][1]
        mass *= factor
    piece = max(1, work // plan.layer.groups)
    sizes = tuple(float(words[t]) for t in TENSORS)
    _, segments, _ = words_bound((sizes[0], sizes[1], sizes[2]), float(mass), cap, procs, limit_words, piece)
    volume = mass**3 / min(-(-cap // segments), piece)
    x, nu = _point([words[t] for t in TENSORS], volume)
    mu = [1 - nu / each for each in x]
    total = 3 * nu + sum(m * words[t] for m, t in zip(mu, TENSORS, strict=True))
    carried = (segments - 1) * (limit_words or 0)
    bound = max(Fraction(0), total / procs - carried - Fraction(sum(words.values()), procs))
    return {
        "schema": SCHEMA,
        "plan": plan.id,
        "name": plan.layer.name,
        "claim": "received words per process, average over processes, for every schedule that the docs admit",
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
        "words": str(Fraction(math.floor(bound * 1000), 1000)),
        "words_decimal": math.floor(bound * 1000) / 1000,
    }


def _constant(outputs: int, taps: int) -> tuple[Fraction, Fraction]:
    """(square, weight): the tightest that can be proved exactly, √min(N, R) at worst."""
    target = hbl_constant(outputs, taps) ** 2
    ceiling = Fraction(min(outputs, taps))
    for slack in LOOSER:
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
    """Water-filling with fractions: x with ∏x <= volume, and ν = the level of those above their floors."""
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
    return [Fraction(floor) for floor in floors], Fraction(0)  # ∏ floors > volume: the floors alone


def _root_below(value: Fraction, degree: int) -> Fraction:
    """A fraction just below the root: 60 bits of it, but never more."""
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
