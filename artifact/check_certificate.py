"""Checks certificates of lower bounds on their own: one file, the standard library, exact arithmetic.

    python artifact/check_certificate.py bound.json ...

`synth plan LAYER --procs P --certify -o bound.json` writes a certificate. Nothing of synth is imported,
and the steps are proved in other ways than in `synth certify`: sizes and work are counted by definition, and
matrices are proved positive by elimination with outward rounding. A referee has to read this file and
docs/bounds.md, which has the theorems.

The exit code is 0 if every certificate is right, 1 if one is wrong, 2 if a file cannot be read.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import sys
from collections import defaultdict
from fractions import Fraction
from typing import Any

FIELDS = {"claim", "constants", "digest", "memory_words", "most_work", "multiply_adds", "multipliers", "nu"}
FIELDS |= {"problem", "procs", "schema", "segments", "sizes", "words", "x"}
TENSORS = ("Out", "In", "Ker")
DTYPES = ("float64", "float32", "float16", "bfloat16")
AXES = {"conv1d": "w", "conv2d": "hw", "conv3d": "dhw"}
BITS = 90  # matrix entries are multiples of 2^-BITS
MOST_STEPS = 4_000_000  # limit of the work for one constant, and of the pairs of one dimension


class Wrong(Exception):
    """A step of the proof is false."""


def need(true: bool, step: str) -> None:
    """Raises `Wrong` with the name of a step that is false."""
    if not true:
        raise Wrong(step)


# --- 1: the layer, counted by definition ---------------------------------------------------------------


def same(given: object, counted: object) -> bool:
    """Whether a field has this value as JSON writes it: 28 is neither 28.0 nor 1 true."""
    return json.dumps(given, sort_keys=True) == json.dumps(counted, sort_keys=True)


def convolution(problem: dict[str, Any]) -> tuple[int, int, int, int, list[tuple[int, ...]]]:
    """(batch, input channels, filters, groups, dimensions); a dimension is (rows, taps, σ, π, π', δ).

    A transposed layer is the backward-data pass of the convolution that is returned for it.
    """
    batch, channels, *sizes = problem["input"]
    filters, dims = problem["out_channels"], []
    for i, size in enumerate(sizes):
        taps, stride, pad, dilation = (problem[key][i] for key in ("kernel", "stride", "padding", "dilation"))
        before, after = pad if isinstance(pad, list) else (pad, pad)
        if problem.get("transposed"):
            more = problem["output_padding"][i]
            size = (size - 1) * stride - before - after + dilation * (taps - 1) + more + 1
        dims.append((size, taps, stride, before, after, dilation))
    if problem.get("transposed"):
        channels, filters = filters, channels
    return batch, channels, filters, problem["groups"], dims


def outputs_of(dim: tuple[int, ...]) -> int:
    """Output positions along a dimension."""
    size, taps, stride, before, after, dilation = dim
    return int((size + before + after - dilation * (taps - 1) - 1) // stride + 1)


def pairs(dim: tuple[int, ...]) -> tuple[int, dict[int, int]]:
    """(input rows that some output reads, {tap: outputs at which it reads a real row})."""
    size, taps, stride, before, _, dilation = dim
    outputs = outputs_of(dim)
    need(outputs * taps <= MOST_STEPS, "a dimension is too large to count")
    rows, counts = set(), dict.fromkeys(range(taps), 0)
    for x in range(outputs):
        for tap in range(taps):
            row = stride * x + dilation * tap - before
            if 0 <= row < size:
                rows.add(row)
                counts[tap] += 1
    return len(rows), counts


def classes(dim: tuple[int, ...]) -> list[tuple[int, list[int]]]:
    """The residue classes of taps: (N of the constant C(N, n), the n taps), "Geometric inequality"."""
    _, taps, stride, _, _, dilation = dim
    members = defaultdict(list)
    for tap in range(taps):
        members[dilation * tap % stride].append(tap)
    apart = dilation // math.gcd(stride, dilation)  # outputs that read a row through two taps next to
    return [(-(-outputs_of(dim) // apart), each) for each in members.values()]  # each other in the class


# --- 2: the constants C(N, n) --------------------------------------------------------------------------


def positive(order: int, band: list[Fraction]) -> bool:
    """Whether elimination proves that the Toeplitz matrix with the diagonals `band`, main first, is positive.

    Entries are rounded down at first and after each step, and the diagonal is lowered by as many units as a
    row has rounded entries. What is taken away is diagonally dominant, so a matrix that is positive after
    rounding was so before.
    """
    width, one = len(band), 1 << BITS

    def entry(row: int, column: int) -> int:
        if row >= order or column >= order:  # the rows after the last one: an identity matrix
            return one if row == column else 0
        value = band[abs(row - column)]
        return (value.numerator << BITS) // value.denominator - (2 * width if row == column else 0)

    window = [[entry(i, j) for j in range(width)] for i in range(width)]
    for first in range(order):
        pivot = window[0][0]
        if pivot <= 0:
            return False
        rest = [
            [
                window[i][j] - -(-window[i][0] * window[0][j] // pivot) - (width if i == j else 0)
                for j in range(1, width)
            ]
            for i in range(1, width)
        ]
        last = first + width
        column = [entry(last, first + 1 + i) for i in range(width)]
        window = [[*row, column[i]] for i, row in enumerate(rest)] + [column]
    return True


def below(order: int, symbol: list[Fraction], square: Fraction) -> bool:
    """Whether no eigenvalue of the Toeplitz matrix with this symbol exceeds `square`.

    symbol: a polynomial in y = cos θ, by rising powers, at most four; it is divided by its mean.
    """
    p = [*symbol, *[Fraction(0)] * (4 - len(symbol))]
    mean = p[0] + p[2] / 2
    if mean <= 0:
        return False
    lags = [(p[1] + p[3] * 3 / 4) / (2 * mean), p[2] / (4 * mean), p[3] / (8 * mean)]
    return positive(order, [square - 1, *(-lag for lag in lags[: len(symbol) - 1])])


def product(p: list[Fraction], q: list[Fraction]) -> list[Fraction]:
    """The product of two polynomials."""
    out = [Fraction(0)] * (len(p) + len(q) - 1)
    for i, j in itertools.product(range(len(p)), range(len(q))):
        out[i + j] += p[i] * q[j]
    return out


def proved(outputs: int, taps: int, square: Fraction) -> bool:
    """Whether C(N, n)² <= square is proved: by √min(N, n), or for 2, 3 and 4 taps by extreme symbols.

    The matrices have the autocorrelations of unit vectors, whose symbols are the non-negative polynomials in
    y on [-1, 1] with mean 1. The largest eigenvalue is convex in the symbol, so extreme symbols decide:

        2 taps   1 ± y
        3 taps   (y-s)² for -1 <= s <= 1, and 1 - y²
        4 taps   (1 ± y)(y-s)²

    y -> -y changes signs of lags, and no eigenvalue. The symbols for s from a to b lie between those of
    (y-a)², (y-a)(y-b) and (y-b)², with means above 0.
    """
    few, order = sorted((outputs, taps))
    if few <= square:
        return True
    plus = [Fraction(1), Fraction(1)]
    if few not in (2, 3, 4) or order * few > MOST_STEPS:
        return False
    if few == 2:
        return below(order, plus, square)
    if few == 3 and not below(order, product(plus, [Fraction(1), Fraction(-1)]), square):
        return False

    def at(a: Fraction, b: Fraction) -> bool:
        symbol = product([-a, Fraction(1)], [-b, Fraction(1)])
        return below(order, symbol if few == 3 else product(plus, symbol), square)

    start, steps = Fraction(-1), 0
    end = Fraction(0) if few == 3 else Fraction(1)
    pieces = [(start + i * (end - start) / 4, start + (i + 1) * (end - start) / 4) for i in range(4)]
    while pieces:
        a, b = pieces.pop()
        steps += order
        if not (at(a, a) and at(b, b)) or steps > MOST_STEPS:
            return False
        if not at(a, b):
            pieces += [(a, (a + b) / 2), ((a + b) / 2, b)]
    return True


# --- 3 to 6: the proof ---------------------------------------------------------------------------------


def fraction(text: object) -> Fraction:
    """A fraction "p/q" or "p", not negative."""
    need(isinstance(text, str) and bool(re.fullmatch(r"\d+(/[1-9]\d*)?", text)), f"{text!r} is a fraction")
    return Fraction(str(text))


def count(value: object) -> int:
    """A whole number from 1."""
    need(type(value) is int and value >= 1, f"{value!r} is a whole number from 1")
    return int(str(value))


def contraction(problem: dict[str, Any]) -> tuple[dict[str, int], int, int]:
    """(words of the tensors, multiply-adds, groups) of a contraction in the notation of `torch.einsum`."""
    one, other, out = re.split(r"\s*(?:,|->)\s*", problem["equation"].strip())
    sizes, together = problem["index_extents"], one + other + out
    need(sizes.keys() == set(together), "1: the extents are those of the indices")
    need(all(2 <= together.count(index) <= 3 for index in sizes), "1: each index is in two of the tensors")
    need(all(len(set(each)) == len(each) for each in (one, other, out)), "1: no tensor repeats an index")
    words = {
        name: math.prod(count(sizes[index]) for index in indices)
        for name, indices in (("Out", out), ("In", one), ("Ker", other))
    }
    groups = math.prod(sizes[index] for index in sizes if together.count(index) == 3)
    return words, math.prod(sizes.values()), groups


def layer(problem: dict[str, Any]) -> tuple[dict[str, int], int, int, int, list[tuple[int, ...]]]:
    """(words of the tensors, multiply-adds, those of one tap, groups, dimensions) of a layer."""
    kind = problem["kind"]
    if kind == "matmul":
        m, n, k = problem["input"]
        return {"Out": m * n, "In": m * k, "Ker": k * n}, m * n * k, m * n * k, 1, []
    if kind == "einsum":
        words, work, groups = contraction(problem)
        return words, work, work, groups, []
    need(kind in ("conv1d", "conv2d", "conv3d"), f"1: {kind} is a kind that is known here")
    batch, channels, filters, groups, dims = convolution(problem)
    read = [pairs(dim) for dim in dims]
    words = {
        "Out": batch * filters * math.prod(map(outputs_of, dims)),
        "In": batch * channels * math.prod(rows for rows, _ in read),
        "Ker": filters * (channels // groups) * math.prod(dim[1] for dim in dims),
    }
    flat = batch * filters * (channels // groups)
    return words, flat * math.prod(sum(counts.values()) for _, counts in read), flat, groups, dims


def folded(problem: dict[str, Any]) -> dict[str, Any]:
    """The fields of a contraction that follow from its equation and its extents."""
    one, other, out = re.split(r"\s*(?:,|->)\s*", problem["equation"])
    sizes = {index: count(size) for index, size in problem["index_extents"].items()}

    tensors = (one, other, out)

    def size(*inside: str) -> int:
        """The product of the extents of the indices that exactly these tensors have."""
        own = [index for index in sizes if [t for t in tensors if index in t] == list(inside)]
        return math.prod(sizes[index] for index in own)

    rows, columns, inner, groups = size(one, out), size(other, out), size(one, other), size(*tensors)
    return {
        "input": [rows, groups * inner],
        "out_channels": groups * columns,
        "groups": groups,
        "equation": f"{one},{other}->{out}",
        "index_extents": sizes,
    }


def whole_problem(problem: dict[str, Any]) -> dict[str, Any]:
    """The problem with every field as the layer makes it; the loop extents and the dtype prove nothing."""
    kind, keys = problem["kind"], ("kernel", "stride", "padding", "dilation")
    found: dict[str, Any] = {"kind": kind, "dtype": problem["dtype"], **{key: [] for key in keys}}
    need(problem["dtype"] in DTYPES, f"1: the dtype is one of {', '.join(DTYPES)}")
    if kind == "matmul":
        m, n, k = map(count, problem["input"])
        found |= {"input": [m, n, k], "out_channels": n, "groups": 1}
        loops = {"b": m, "g": 1, "c": k, "k": n, "h": 1, "w": 1, "r": 1, "s": 1}
    elif kind == "einsum":
        found |= folded(problem)
        (b, c), k, g = found["input"], found["out_channels"], found["groups"]
        loops = {"b": b, "g": g, "c": c // g, "k": k // g, "h": 1, "w": 1, "r": 1, "s": 1}
    else:
        turned = ["output_padding"] if problem.get("transposed") else []
        found |= {"input": [*map(count, problem["input"])]}
        found |= {key: count(problem[key]) for key in ("out_channels", "groups")}
        found |= {"transposed": True} if turned else {}
        found |= {key: [zeros(n) for n in problem[key]] for key in (*keys, *turned)}
        b, c, k, g, dims = convolution(found)
        need(len(dims) == len(AXES[kind]), "1: the input has the dimensions of its kind")
        need(c % g == k % g == 0, "1: the groups divide the channels")
        loops = {"b": b, "g": g, "c": c // g, "k": k // g, "h": 1, "r": 1}
        loops |= {axis: outputs_of(dim) for axis, dim in zip(AXES[kind], dims, strict=True)}
        loops |= {"trs"["dhw".index(axis)]: dim[1] for axis, dim in zip(AXES[kind], dims, strict=True)}
        need(min(loops.values()) > 0, "1: the layer has outputs")
    return {**found, "extents": {key: n for key, n in loops.items() if (key, n) != ("g", 1)}}


def zeros(value: object) -> object:
    """A whole number from 0, or a pair of them: zeros before and after a dimension."""
    each = value if isinstance(value, list) else [value]
    need(all(type(n) is int and n >= 0 for n in each), f"1: {value!r} are whole numbers from 0")
    need(not isinstance(value, list) or len(value) == 2, f"1: {value!r} are zeros before and after")
    return value


def check(data: dict[str, Any]) -> str:
    """The claim of a right certificate. Raises `Wrong` at the first false step."""
    need(data.keys() == FIELDS and data["schema"] == "synth.certificate/2", "the fields")
    need(same(data["problem"], whole_problem(data["problem"])), "1: all fields of the layer agree")
    words, work, flat, groups, dims = layer(data["problem"])
    need(same(data["sizes"], words), f"1: the tensors have {words} words")
    need(same(data["multiply_adds"], work), f"1: the layer has {work} multiply-adds with a real input")
    procs, segments, most = (count(data[key]) for key in ("procs", "segments", "most_work"))
    need(procs * most >= work, "1: the processes can do the work")

    wanted = {(n, len(taps)) for dim in dims for n, taps in classes(dim)}
    weights: dict[tuple[int, int], Fraction] = {}
    for each in data["constants"]:
        shape = (count(each["outputs"]), count(each["taps"]))
        square, weight = fraction(each["square"]), fraction(each["weight"])
        need(shape in wanted and shape not in weights, f"2: C{shape} is needed once")
        need(weight > 0 and weight**3 * square <= 1, f"2: the weight is at most C{shape}^(-2/3)")
        need(proved(*shape, square), f"2: C{shape}² <= {float(square)}")
        weights[shape] = weight
    need(weights.keys() == wanted, f"2: the constants {sorted(wanted)}")

    mass = Fraction(flat)  # H of (2)
    for dim in dims:
        _, counts = pairs(dim)
        mass *= sum(counts[tap] * weights[n, len(taps)] for n, taps in classes(dim) for tap in taps)
    segment = min(-(-min(most, work) // segments), max(1, work // groups))
    volume = mass**3 / segment  # X_O·X_I·X_K is at least this

    x, mu = ({t: fraction(data[key][t]) for t in TENSORS} for key in ("x", "multipliers"))
    need(x.keys() == data["x"].keys() == data["multipliers"].keys() and min(x.values()) > 0, "5: x > 0")
    nu = fraction(data["nu"])
    need(nu == 0 or math.prod(x.values()) <= volume, f"5: the product of x is at most V = {float(volume)}")
    need(all(nu / x[t] + mu[t] == 1 for t in TENSORS), "5: nu/x + mu = 1 for each tensor")
    touched = 3 * nu + sum(mu[t] * words[t] for t in TENSORS)

    memory = None if data["memory_words"] is None else count(data["memory_words"])
    need(segments == 1 or memory is not None, "6: several segments need a limit of memory")
    least = (touched - sum(words.values())) / procs - (segments - 1) * (memory or 0)
    claimed = fraction(data["words"])
    need(claimed <= max(least, Fraction(0)), f"6: {float(least)} words are proved, {float(claimed)} claimed")
    claim = sentence(data["words"], procs, most, memory)
    need(data["claim"] == claim, "the claim is what is proved")
    rest = {key: value for key, value in data.items() if key != "digest"}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]
    need(data["digest"] == digest, "the digest is that of the other fields")
    return claim


def sentence(words: str, procs: int, most: int, memory: int | None) -> str:
    """What is proved, with all that it assumes."""
    return (
        f"a process receives at least {words} words, on average over the processes, given: classical "
        "multiply-adds, each on a real input element done once, in one process; one owner of every word of "
        "In, Ker and Out, at the start and at the end; words that travel whole, from process to process, and "
        f"are not added on the way; {procs} processes, at most {most} multiply-adds in each; "
        + ("any memory" if memory is None else f"at most {memory} words of memory each")
    )


def main(paths: list[str]) -> int:
    """Checks files, and prints a line for each."""
    if not paths:
        print("name certificates: python check_certificate.py bound.json ...", file=sys.stderr)
        return 2
    code = 0
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                data = json.load(file)
            print(f"{path}: proved: {check(data)}")
        except Wrong as fault:
            print(f"{path}: WRONG: it is not true: {fault}")
            code = max(code, 1)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as fault:
            print(f"{path}: not a certificate ({fault!r})", file=sys.stderr)
            code = 2
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
