"""Checks a certificate of a lower bound with integers and fractions, without floating point.

The claim: a process receives at least `words` words, on average over the processes, under the assumptions
that `assumptions.claim` states: among them P processes, none of which does more than `most_work`
multiply-adds. The file has no field that is not checked: the claim is written anew and compared, and the
digest is that of all other fields. The proof has six steps, which docs/bounds.md justifies:

    1  facts      |Out|, |In|, |Ker|, F: counted here from the layer, independently of the planner
    2  constants  C(N, R)² <= square, by exact factorizations; weight <= C^(-2/3)
    3  mass       H >= ∏ over dimensions of Σ over taps of (outputs with a real input)·weight
    4  volume     the totals over all segments have X_O·X_I·X_K >= V = H³/q, q multiply-adds per segment
    5  duality    x_O·x_I·x_K <= V, so Σ X/x >= 3, and ν·(Σ X/x - 3) + Σ μ·(X - |T|) >= 0 with
                  ν/x + μ = 1 gives Σ X >= 3ν + Σ μ·|T|
    6  words      >= ΣX/P - (n-1)·M - (|Out|+|In|+|Ker|)/P
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from synth.base.errors import CheckError, InputError
from synth.base.user_files import MOST_JSON, read_text
from synth.bounds.assumptions import claim
from synth.layer.layer import Layer

SCHEMA = "synth.certificate/2"
FIELDS = {"schema", "claim", "problem", "procs", "memory_words", "most_work", "sizes", "multiply_adds"}
FIELDS |= {"constants", "segments", "x", "nu", "multipliers", "words", "digest"}
TENSORS = ("Out", "In", "Ker")
MOST_ROWS = 2**22  # limit of outputs times taps of a dimension, which are counted one by one
MOST_OUTPUTS = {2: 2**17, 3: 2**12, 4: 2**12}  # taps -> limit of outputs for a constant below √min(N, R)
MOST_PROOF = 2**17  # limit of matrix rows in one proof; certificates of the planner need a third of it
BITS = 80  # fractional bits of the factorizations, whose residuals are computed exactly
Dim = tuple[int, int, int, int, int, int]  # input size, kernel, stride, zeros before, dilation, zeros after


# --- 1: facts ------------------------------------------------------------------------------------------


def tap_counts(dim: Dim) -> list[int]:
    """Per tap: the number of output positions at which it reads an input row, not padding."""
    size, kernel, stride, padding, dilation, after = dim
    out = (size + padding + after - dilation * (kernel - 1) - 1) // stride + 1
    rows = range(-padding, -padding + stride * out, stride)
    return [sum(0 <= row + dilation * tap < size for row in rows) for tap in range(kernel)]


def classes(dim: Dim) -> list[tuple[int, list[int]]]:
    """The residue classes of taps, as (outputs N of the constant C(N, R), the taps).

    Two taps are in the same class if they can read the same input row; see docs/bounds.md.
    """
    size, kernel, stride, padding, dilation, after = dim
    out = (size + padding + after - dilation * (kernel - 1) - 1) // stride + 1
    common = math.gcd(stride, dilation)
    step = stride // common
    members = [list(range(first, kernel, step)) for first in range(min(step, kernel))]
    return [(-(-out * common // dilation), taps) for taps in members]


def _dim(size: int, kernel: int, stride: int, padding: int | list[int], dilation: int) -> Dim:
    before, after = (padding, padding) if isinstance(padding, int) else padding
    return size, kernel, stride, before, dilation, after


def _turned(dim: Dim, output_padding: int) -> Dim:
    """The dimension of the convolution that reads what a transposed layer writes along `dim`."""
    size, kernel, stride, before, dilation, after = dim
    whole = (size - 1) * stride - before - after + dilation * (kernel - 1) + output_padding + 1
    return whole, kernel, stride, before, dilation, after


def loops(problem: dict[str, Any]) -> tuple[int, int, int, int, list[Dim]]:
    """The problem's samples, groups, filters and channels of one group, and spatial dimensions.

    `problem` is the layer's JSON. A matrix product has a row for a sample. A transposed layer is the
    convolution of which it is the backward-data pass.
    """
    if problem["kind"] == "matmul":
        m, n, k = problem["input"]
        return m, 1, n, k, []
    batch, channels, *sizes = problem["input"]
    keys = ("kernel", "stride", "padding", "dilation")
    dims = [_dim(*numbers) for numbers in zip(sizes, *(problem[key] for key in keys), strict=True)]
    filters, groups = problem["out_channels"], problem["groups"]
    if problem.get("transposed"):  # backward-data of a convolution over the layer's output
        dims = [_turned(dim, more) for dim, more in zip(dims, problem["output_padding"], strict=True)]
        channels, filters = filters, channels
    return batch, groups, filters // groups, channels // groups, dims


def facts(problem: dict[str, Any]) -> tuple[dict[str, int], int, list[Dim], int]:
    """The problem's (words per tensor, multiply-adds, spatial dimensions, product of the other loops).

    `problem` is the layer's JSON, see `loops`. In counts only the rows that are read, and multiply-adds
    with padding do not count. Raises `InputError` if the layer is too large to count.
    """
    batch, groups, filters, channels, dims = loops(problem)
    outs = inputs = taps = real = 1
    for dim in dims:
        size, kernel, stride, padding, dilation, after = dim
        out = (size + padding + after - dilation * (kernel - 1) - 1) // stride + 1
        if out * kernel > MOST_ROWS:
            raise InputError(
                f"{out} outputs of {kernel} taps are too many for a certificate, which counts each of them, "
                f"at most {MOST_ROWS}; take a smaller layer"
            )
        tops = range(-padding, -padding + stride * out, stride)
        read = {top + dilation * tap for top in tops for tap in range(kernel)}
        inputs *= sum(0 <= row < size for row in read)
        outs, taps, real = outs * out, taps * kernel, real * sum(tap_counts(dim))
    words = {
        "Out": batch * groups * filters * outs,
        "In": batch * groups * channels * inputs,
        "Ker": groups * filters * channels * taps,
    }
    flat = batch * groups * filters * channels
    return words, flat * real, dims, flat


# --- 2: constants --------------------------------------------------------------------------------------


def below(outputs: int, lags: list[Fraction], square: Fraction) -> bool:
    """Whether the Toeplitz matrix T with diagonal 1 and these lags has no eigenvalue above `square`.

    G is a fixed-point Cholesky factor of (square - margin)·I - T. The residual E with
    (square - margin)·I - T = G·Gᵀ + E is exact, so no eigenvalue of T exceeds square - margin plus the
    largest row sum of |E|. False means that this proof fails.
    """
    margin = Fraction(1, 2**40)
    scale, width = 1 << BITS, len(lags)
    entries = [square - margin - 1, *(-lag for lag in lags)]
    fixed = [(entry.numerator << BITS) // entry.denominator for entry in entries]
    rows: list[list[int]] = []  # row i: entries of G at columns i-width .. i
    for i in range(outputs):
        row, first = [0] * (width + 1), max(0, i - width)
        for j in range(first, i):
            dot = sum(row[c - i + width] * rows[j][c - j + width] for c in range(first, j))
            row[j - i + width] = ((fixed[i - j] << BITS) - dot) // rows[j][width]
        rest = (fixed[0] << BITS) - sum(entry * entry for entry in row)
        if rest <= 0:
            return False
        row[width] = math.isqrt(rest)
        rows.append(row)
    sums = [0] * outputs  # row sums of |E|, in units of 2^-2·BITS, rounded up by one per entry
    for i in range(outputs):
        for j in range(max(0, i - width), i + 1):
            columns = range(max(0, i - width), j + 1)
            dot = sum(rows[i][c - i + width] * rows[j][c - j + width] for c in columns)
            error = abs((fixed[i - j] << BITS) - dot) + scale
            sums[i] += error
            sums[j] += error if j < i else 0
    return Fraction(max(sums), scale * scale) <= margin


def _lags(s: Fraction, e: Fraction, taps: int) -> list[Fraction] | None:
    """The autocorrelation whose symbol is proportional to (y-s)(y-e), times 1+y for 4 taps; y = cos θ."""
    p = [s * e, -(s + e), Fraction(1), Fraction(0)]
    if taps == 4:
        p = [p[0], p[0] + p[1], p[1] + 1, Fraction(1)]
    constant = p[0] + p[2] / 2
    if constant <= 0:
        return None
    return [v / (2 * constant) for v in (p[1] + p[3] * 3 / 4, p[2] / 2, p[3] / 4)[: taps - 1]]


def proved(outputs: int, taps: int, square: Fraction) -> bool:
    """Whether this function can prove C(outputs, taps)² <= square.

    C is symmetric in its arguments and at most √min(outputs, taps). For 3 and 4 taps the proof is that of
    `holder_brascamp_lieb._certified`, with exact arithmetic.
    """
    few, many = sorted((outputs, taps))
    if few <= square:
        return True
    if few not in MOST_OUTPUTS or many > MOST_OUTPUTS[few]:
        return False
    if few == 2:  # lags of unit vectors are at most 1/2, and the largest eigenvalue grows with the lag
        return below(many, [Fraction(1, 2)], square)
    ends = [Fraction(n, 2) for n in ((-2, -1, 0) if few == 3 else (-2, -1, 0, 1, 2))]
    pieces = list(itertools.pairwise(ends))
    for start, end in pieces:  # the list grows: a piece without a proof is split into halves
        control_points = [
            (lags := _lags(s, e, few)) is not None and below(many, lags, square)
            for s, e in ((start, start), (end, end), (start, end))
        ]
        if all(control_points):
            continue
        if not (control_points[0] and control_points[1]) or len(pieces) * many > MOST_PROOF:
            return False  # false at a point of the curve, or too close to decide
        middle = (start + end) / 2
        pieces += [(start, middle), (middle, end)]
    return True


# --- 3 to 6: the chain ---------------------------------------------------------------------------------


def check(data: dict[str, Any]) -> list[str]:
    """Check all fields and the six steps of a certificate, and return the claim and the steps as text.

    Raises `CheckError` at the first false step.
    """
    must(data.keys() == FIELDS, f"its fields are {', '.join(sorted(FIELDS))}")
    problem = data["problem"]
    procs, segments, most_work = (_whole(data[key]) for key in ("procs", "segments", "most_work"))
    words, work, dims, flat = facts(problem)
    for key, found in (("sizes", words), ("multiply_adds", work)):
        equal = json.dumps(data[key], sort_keys=True) == json.dumps(found, sort_keys=True)
        must(equal, f"{key} are {data[key]}, but the layer has {found}")
    must(most_work * procs >= work, f"{procs} processes of {most_work} multiply-adds can do {work}")
    sizes = ", ".join(f"|{t}| = {words[t]}" for t in TENSORS)
    lines = [
        f"1  {sizes}; F = {work} multiply-adds, padding left out, P = {procs}, "
        f"at most {most_work} in each process"
    ]

    needed = {(outputs, len(taps)) for dim in dims for outputs, taps in classes(dim)}
    weights = _weights(data["constants"], needed, lines)
    mass = Fraction(flat)
    for dim in dims:
        counts = tap_counts(dim)
        mass *= sum(
            counts[tap] * weights[outputs, len(taps)] for outputs, taps in classes(dim) for tap in taps
        )
    lines.append(f"3  H >= {float(mass):.6e}")

    piece = max(1, work // problem["groups"] if problem["kind"] != "matmul" else work)
    largest = min(-(-min(most_work, work) // segments), piece)
    volume = mass**3 / largest
    lines.append(f"4  {segments} segments of at most {largest} multiply-adds: V = {float(volume):.6e}")

    x = {t: _fraction(data["x"][t]) for t in TENSORS}
    nu = _fraction(data["nu"])
    mu = {t: _fraction(data["multipliers"][t]) for t in TENSORS}
    must(nu == 0 or math.prod(x.values()) <= volume, "x_O·x_I·x_K <= V")
    must(nu >= 0 and min(x.values()) > 0 and min(mu.values()) >= 0, "ν, μ >= 0 and x > 0")
    for t in TENSORS:
        must(nu / x[t] + mu[t] == 1, f"ν/x + μ = 1 for {t}")
    total = 3 * nu + sum(mu[t] * words[t] for t in TENSORS)
    shown = ", ".join(f"μ_{t} = {float(mu[t]):.6f}" for t in TENSORS)
    lines.append(f"5  ν = {float(nu):.6e}, {shown}: X_O + X_I + X_K >= {float(total):.6e}")

    limit_words = None if data["memory_words"] is None else _whole(data["memory_words"])
    must(segments == 1 or limit_words is not None, "several segments need a memory limit")
    carried = (segments - 1) * (limit_words or 0)
    bound = total / procs - carried - Fraction(sum(words.values()), procs)
    claimed = _fraction(data["words"])
    must(claimed <= max(bound, Fraction(0)), f"{float(claimed):.3f} words follow; {float(bound):.3f} do")
    must(data["claim"] == claim(data["words"], procs, most_work, limit_words), "the claim is what is proved")
    must(data["digest"] == digest(data), "the digest is that of the other fields, which were edited")
    lines.append(f"6  received words per process >= {float(bound):.3f} >= {float(claimed):.3f}, as claimed")
    return [*lines, f"so {data['claim']}"]


def digest(data: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits of all fields but this one, so that any edit is noticed."""
    rest = {key: value for key, value in data.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]


def _weights(
    constants: list[dict[str, Any]], needed: set[tuple[int, int]], lines: list[str]
) -> dict[tuple[int, int], Fraction]:
    """(outputs, taps) -> a proved lower bound of C^(-2/3). Appends step 2 to `lines`.

    Raises `CheckError` if a constant is not proved, and `ValueError` for one that is not needed.
    """
    weights: dict[tuple[int, int], Fraction] = {}
    for each in constants:
        outputs, taps = _whole(each["outputs"]), _whole(each["taps"])
        if (outputs, taps) not in needed or (outputs, taps) in weights:
            raise ValueError(f"C({outputs},{taps}) is given, but not needed once more")
        square, weight = _fraction(each["square"]), _fraction(each["weight"])
        must(weight > 0 and weight**3 * square <= 1, f"weight of C({outputs},{taps}) is at most C^(-2/3)")
        must(proved(outputs, taps, square), f"C({outputs},{taps})² <= {float(square):.9f}")
        weights[outputs, taps] = weight
        lines.append(f"2  C({outputs},{taps})² <= {float(square):.9f}, weight {float(weight):.9f}")
    return weights


def must(true: bool, what: str) -> None:
    """Raises `CheckError` for a step that is false."""
    if not true:
        raise CheckError(f"the certificate is wrong: it is not true that {what}")


def _whole(value: object) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{value!r} is not a whole number from 1")
    return value


def _fraction(text: object) -> Fraction:
    if not isinstance(text, str) or not re.fullmatch(r"\d{1,4000}(/\d{1,4000})?", text):
        raise ValueError(f"{str(text)[:40]!r} is not a fraction p/q")
    return Fraction(text)


def read_certificate(path: str) -> dict[str, Any]:
    """The JSON data of a certificate file, unchecked. Raises `InputError` if it is not one."""
    try:
        data = json.loads(read_text(path, MOST_JSON, "certificate"))
    except (ValueError, RecursionError) as fault:
        raise InputError(f"{path}: is not JSON; write it with `synth plan --certify`") from fault
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise InputError(f"{path}: is not a certificate ({SCHEMA}); write one with `synth plan --certify`")
    return data


def check_file(path: str) -> list[str]:
    """`check` of a file. Raises `InputError` if it is not a certificate, `CheckError` at a false step."""
    data = read_certificate(path)
    layer = Layer.from_json(data.get("problem"), path)
    for key in data["problem"]:
        if key not in layer.to_json():
            raise InputError(f"{path}: problem.{str(key)[:40]!r} is no field of a {layer.what}; leave it out")
    try:
        return check(data)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as fault:
        raise InputError(f"{path}: is not a complete certificate ({fault!r}); write it again") from fault
