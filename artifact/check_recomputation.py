"""Checks certificates of networks that compute words again on their own: the standard library, fractions.

    python artifact/check_recomputation.py bound.json ...

`synth plan NET.yaml --procs P --recompute 10% --certify -o bound.json` writes a certificate. Nothing of synth
is imported. A certificate has the tensors between the layers, what each reads of its sources, and a price per
position of each. docs/bounds.md ("Networks with recomputation") has the argument. Here

    1  What a layer reads follows from its sizes. Every point of the least inputs follows from an inequality.
    2  The tensors form trees.
    3  The claim follows from the cheapest process at these prices.

The exit code is 0 if every certificate is right, 1 if one is wrong, 2 if a file cannot be read.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from bisect import bisect_left
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from typing import Any

FIELDS = {"schema", "claim", "network", "procs", "tensors", "words", "digest"}
TENSOR = {"name", "channels", "positions", "most", "split", "given", "layer", "reads", "sources", "price"}
MANY = 8  # images and groups of which only complete ones count
FINE = 1024  # roots are taken in parts of 1/FINE
Axis = tuple[int, int, int, int]  # outputs, taps, zeros before and after
Points = list[tuple[Fraction, Fraction]]  # of a function that is linear between them


class Wrong(Exception):
    """A step of the proof is false."""


def need(true: bool, step: str) -> None:
    """Raises `Wrong` with the name of a step that is false."""
    if not true:
        raise Wrong(step)


def whole(value: object, least: int = 0) -> int:
    """A whole number."""
    if type(value) is not int or value < least:
        raise ValueError(f"{value!r} is not a whole number from {least}")
    return value


def fraction(text: object) -> Fraction:
    """A fraction from 0 on, in lowest terms."""
    if not isinstance(text, str) or str(Fraction(text)) != text or Fraction(text) < 0:
        raise ValueError(f"{text!r} is not a fraction from 0")
    return Fraction(text)


# -- 1: least inputs ------------------------------------------------------------------------------------


class Box:
    """Outputs along one to three axes, and what sets of them read beyond themselves."""

    def __init__(self, axes: list[Axis]) -> None:
        self.n = [outputs for outputs, *_ in axes]
        self.more = [taps - 1 - before - after for _, taps, before, after in axes]
        self.side = [min(before, after) for _, _, before, after in axes]
        self.cost = [more + side for more, side in zip(self.more, self.side, strict=True)]
        self.all = math.prod(self.n)
        self.inputs = math.prod(n + more for n, more in zip(self.n, self.more, strict=True))
        if len(axes) == 3:
            area = self.n[0] * self.n[1]
            self.half = self.largest(lambda t: self.of_plane(Fraction(area, 2), t))
            self.slope = 2 * min(self.half, Fraction(2 * area, (self.side[0] + self.side[1] + 1) ** 2)) / area

    def largest(self, holds: Any) -> Fraction:
        """The largest multiple of 1/FINE up to which an inequality holds."""
        high = 1
        while holds(Fraction(high, FINE)):
            high *= 2
        return Fraction(bisect_left(range(high), True, key=lambda n: not holds(Fraction(n, FINE))) - 1, FINE)

    def of_plane(self, x: Fraction, t: Fraction, last: bool = True) -> bool:
        """Whether x outputs of a plane read x + t inputs at least. last: also if lines of both are full."""
        (n1, n2), (s1, s2), (c1, c2) = self.n[:2], self.side[:2], self.cost[:2]
        right = t <= 0 or t * t <= 4 * c1 * c2 * x
        right = right and (s1 == 0 or t <= c2 * (n1 - s1 + 1)) and (s2 == 0 or t <= c1 * (n2 - s2 + 1))
        if last and s1 and s2:
            over = t + s1 + s2
            right = right and (over <= 0 or over * over <= 4 * (n1 * n2 - x))
        return right

    def adds(self, x: Fraction, t: Fraction) -> bool:
        """Whether x outputs read x + t inputs at least; along three axes, up to half of all."""
        if len(self.n) == 1:
            return t <= min(Fraction(self.cost[0]), self.n[0] + self.more[0] - x)
        if len(self.n) == 2:
            return self.of_plane(x, t)
        if t <= 0:
            return True
        n3, s3, c3 = self.n[2], self.side[2], self.cost[2]
        plane, thin = Fraction(c3 * self.n[0] * self.n[1]), self.slope * x
        short = max(Fraction(0), c3 - self.slope * (Fraction(n3, 2) - s3))
        thick = (t + thin) ** 2 <= 4 * thin * plane
        if plane <= thin:
            thick = t <= plane
        if plane >= 4 * thin:
            thick = t <= thin + plane / 2
        alike = n3 > s3 and self.of_plane(x / n3, t / (n3 - s3), last=False) and t <= (n3 - s3) * self.half
        return (
            t**3 <= 27 * math.prod(self.cost) * x * x
            and t * t <= 4 * self.half * c3 * x
            and thick
            and t <= plane - short * x / n3
            and alike
        )

    def share(self, x: Fraction, y: Fraction) -> bool:
        """Whether x outputs read y inputs at least, axis by axis."""
        here = [1 - Fraction(side, n) for side, n in zip(self.side, self.n, strict=True)]
        more = math.prod(cost * each**i for i, (cost, each) in enumerate(zip(self.cost, here, strict=True)))
        degree, rest = len(self.n), y - math.prod(here) * x
        return rest <= 0 or rest**degree <= degree**degree * more * x ** (degree - 1)

    def proves(self, points: Points, concave: bool) -> bool:
        """Whether the points, and the lines between them, are below what is read at least."""
        need(points[0] == (0, 0) and points[-1][0] == self.all, "1: the points of a box are of all outputs")
        rising = all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(points))
        few = [(x, y) for x, y in points if len(self.n) < 3 or x <= self.all // 2]
        right = all(self.adds(x, y - x) or y == before for (_, before), (x, y) in pairwise(few))
        if len(few) == len(points) or not (rising and right):
            return rising and right
        return (self._to_all if any(self.more) else self._behind)(few, points[len(few) :], concave)

    def _behind(self, few: Points, rest: Points, concave: bool) -> bool:
        """More than half, with as many inputs as outputs: readers of what is not read are missing."""
        half = Fraction(self.all // 2)
        middle = max(y - x for x, y in [few[-1], rest[0]])
        return self.adds(half, middle) and all(
            self.unread(x, y) for x, y in [*rest, (half, half + middle)] if y > 0
        )

    def unread(self, x: Fraction, y: Fraction) -> bool:
        """Whether no more than all but y inputs have all their readers among all but x outputs."""
        unread = math.floor(self.all - y) + 1
        missing = math.floor(self.all - x)
        return unread > missing or self.adds(Fraction(unread), missing - unread + Fraction(1, 10**6))

    def _to_all(self, few: Points, rest: Points, concave: bool) -> bool:
        """More than half otherwise: what half of the outputs read, and from some number on a share."""
        half, (size, end) = Fraction(self.all // 2), rest[-1]
        top = half + (self.largest(lambda t: self.adds(half, t)) if half else 0)
        first = bisect_left(range(self.all), True, key=lambda x: x >= half and self.share(Fraction(x), top))
        if end <= top:
            return not concave or (len(rest) == 1 and all(y <= end for _, y in few))
        if first >= self.all or not self.share(size, end):
            return False
        slope = (end - top) / (size - first)
        if concave:
            below = all(y <= top + slope * (x - first) for x, y in few)
            return len(rest) == 1 and below and slope * first <= top
        *flat, last = [few[-1], *rest[:-1]]
        if last[0] > half:
            return len(rest) == 2 and last[1] <= top and self.share(*last)
        return not flat and last[1] + (end - last[1]) * (first - last[0]) / (size - last[0]) <= top


def least_inputs(data: dict[str, Any], outputs: int) -> Points:
    """By x: what x outputs of some images read at least, if the points of one image are right."""
    axes = [(*map(whole, axis),) for axis in data["axes"]]
    images, groups = whole(data["images"], 1), whole(data["groups"], 1)
    points = [(fraction(x), fraction(y)) for x, y in data["points"]]
    need(1 <= len(axes) <= 3 and all(len(axis) == 4 for axis in axes), "1: windows have one to three axes")
    box, parts = Box(axes), images * groups  # type: ignore[arg-type]
    right = all(
        n >= 1 and taps > max(before, after) and taps - 1 - before - after >= 0 and min(before, after) <= n
        for n, taps, before, after in axes
    )
    need(right and box.all * images == outputs, "1: windows of all positions")
    need(box.proves(points, parts > 1), "1: least inputs follow from an inequality")
    if parts > MANY:
        most = box.largest(lambda y: box.share(Fraction(box.all), y))
        return [(Fraction(0), Fraction(0)), (Fraction(box.all * parts, groups), most * parts / groups)]
    size, read = points[-1]
    every = [(x + i * size, y + i * read) for i in range(parts) for x, y in (points if not i else points[1:])]
    return [(x / groups, y / groups) for x, y in every]


def windows_of(problem: dict[str, Any], weighted: bool) -> tuple[int, int, int, Any]:
    """The channels and positions of a layer, the positions of its input, and what it reads of these.

    Windows (axes, images, groups), or the input positions that an output has for itself.
    """
    batch, _, *sizes = problem["input"]
    transposed, filters = bool(problem.get("transposed")), problem["out_channels"]
    kernel, stride, dilation = (problem[key] for key in ("kernel", "stride", "dilation"))
    zeros = [pad if isinstance(pad, list) else [pad, pad] for pad in problem["padding"]]
    outputs = list[int]()
    for i, (size, (before, after)) in enumerate(zip(sizes, zeros, strict=True)):
        reach = dilation[i] * (kernel[i] - 1)
        if transposed:
            outputs.append((size - 1) * stride[i] - before - after + reach + problem["output_padding"][i] + 1)
        else:
            outputs.append((size + before + after - reach - 1) // stride[i] + 1)
    axes = [(n, taps, *pad) for n, taps, pad in zip(outputs, kernel, zeros, strict=True)]
    positions, read = batch * math.prod(outputs), batch * math.prod(sizes)
    some = [axis for axis in axes if axis[1] > 1]
    more = [(taps - 1 - before - after, min(before, after) <= n) for n, taps, before, after in axes]
    if not transposed and {*stride, *dilation} == {1} and some and all(e >= 0 and fits for e, fits in more):
        images = positions // math.prod(axis[0] for axis in some)
        return filters, positions, read, (some, images, problem["groups"] if weighted else filters)
    own = Fraction(1)
    for axis, step, wide, size in zip(axes, stride, dilation, sizes, strict=True):
        own *= shared(axis, step, size) if transposed else apart(axis, step, wide, size)
        need(not (transposed and wide > 1), "1: a transposed layer without dilation")
    return filters, positions, read, own


def apart(axis: Axis, stride: int, dilation: int, size: int) -> int:
    """Inputs that every output has for itself: taps that meet no other one and are inside for all outputs."""
    outputs, taps, before, _ = axis
    inside = [tap * dilation - before for tap in range(taps)]
    inside = [at for at in inside if at >= 0 and stride * (outputs - 1) + at < size]
    return len({at % stride for at in inside})


def shared(axis: Axis, stride: int, size: int) -> Fraction:
    """1 over the outputs that share an input, if each takes one that is near the middle of its own."""
    outputs, taps, before, _ = axis
    taken = Counter[int]()
    for output in range(outputs):
        own = [at for at in range(size) if 0 <= output + before - stride * at < taps] if size < 64 else None
        first = max(0, -((taps - 1 - output - before) // stride))
        last = min(size - 1, (output + before) // stride)
        need(first <= last and (own is None or own == list(range(first, last + 1))), "1: outputs read inputs")
        taken[min(max((output + before - max(0, taps - stride) // 2) // stride, first), last)] += 1
    return Fraction(1, max(taken.values()))


# -- 3: the cheapest process ----------------------------------------------------------------------------


def at(points: Points, x: Fraction) -> Fraction:
    """The value of a function at x."""
    i = min(max(bisect_left(points, x, key=lambda point: point[0]), 1), len(points) - 1)
    (x0, y0), (x1, y1) = points[i - 1], points[i]
    return y0 + (x - x0) * (y1 - y0) / (x1 - x0)


def where(points: Points, y: Fraction) -> Fraction:
    """An x at which a function that does not fall has a value."""
    i = min(max(bisect_left(points, y, key=lambda point: point[1]), 1), len(points) - 1)
    (x0, y0), (x1, y1) = points[i - 1], points[i]
    return x1 if y1 == y0 else x0 + (y - y0) * (x1 - x0) / (y1 - y0)


def clipped(points: Points, slope: Fraction) -> Points:
    """The largest function below one that rises by at most `slope`."""
    found = [points[0]]
    for (x0, y0), (x1, y1) in pairwise(points):
        before = found[-1][1] + slope * (x0 - found[-1][0])  # what may have been reached at x0
        here, there = min(y0, before), before + slope * (x1 - x0)
        if here < y0 and y1 < there:  # from the limit to the function
            gap0, gap1 = y0 - here, y1 - there
            x = x0 + (x1 - x0) * gap0 / (gap0 - gap1)
            found += [(x0, here)] * (x0 > found[-1][0])
            found.append((x, here + slope * (x - x0)))
        elif x0 > found[-1][0]:
            found.append((x0, here))
        if x1 > found[-1][0]:
            found.append((x1, min(y1, there)))
    return found


def backwards(points: Points) -> Points:
    """The largest function below one that does not fall."""
    turned = [(-x, y) for x, y in reversed(points)]
    return [(-x, y) for x, y in reversed(clipped(turned, Fraction(0)))]


def read_through(cost: Points, reading: Points, most: Fraction, channels: int) -> Points:
    """The least cost of a source, by the positions of the tensor that reads it, up to `most`."""
    cost = clipped(backwards(cost), Fraction(channels))
    top, (last, price) = at(reading, most), cost[-1]
    if top > last:
        cost = [*cost, (top, price + channels * (top - last))]
    points = {x: at(cost, y) for x, y in reading if x < most} | {most: at(cost, top)}
    points |= {where(reading, y): price for y, price in cost if reading[0][1] < y < top}
    return sorted(points.items())


def check(data: dict[str, Any]) -> str:
    """The claim of a right certificate. Raises `Wrong` at the first false step."""
    schema = "synth.recomputation-certificate/1"
    need(data.keys() == FIELDS and data["schema"] == schema, "the fields")
    procs, words = whole(data["procs"], 1), whole(data["words"])
    known, costs, taken = dict[str, dict[str, Any]](), dict[str, Points](), set[str]()
    total = Fraction(0)
    for each in data["tensors"]:
        reads = readings(each, known, procs)
        price = fraction(each["price"]) * (-1 if each["given"] else 1)
        most = fraction(each["most"])
        sources = each["sources"]
        need(not taken & set(sources) and len(set(sources)) == len(sources), "2: one reader for each tensor")
        need(not each["split"] or len(sources) <= 1, "2: split sums have one source")
        parts = [[(Fraction(0), Fraction(0)), (most, -price * most)]]
        for name in sources:
            below = read_through(costs.pop(name), reads[name], most, known[name]["channels"])
            parts.append(clipped(below, Fraction(each["channels"])) if each["split"] else below)
            taken.add(name)
        places = sorted({x for part in parts for x, _ in part})
        costs[each["name"]] = [(x, sum((at(part, x) for part in parts), Fraction(0))) for x in places]
        known[each["name"]] = each
        total += price * each["positions"] / procs
    total += sum(min(y for _, y in points) for points in costs.values())
    need(words <= max(total, 0), f"3: a process receives at least {words} words")
    said = claim(data)
    need(data["claim"] == said, "the claim is what is proved")
    rest = {key: value for key, value in data.items() if key != "digest"}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]
    need(data["digest"] == digest, "the digest is that of the other fields")
    return said


def readings(data: dict[str, Any], known: dict[str, dict[str, Any]], procs: int) -> dict[str, Points]:
    """What a tensor reads of its sources at least."""
    need(data.keys() == TENSOR and data["name"] not in known, "the fields of a tensor")
    channels, positions = whole(data["channels"], 1), whole(data["positions"], 1)
    most = fraction(data["most"])
    need(positions <= most * procs and most <= positions, "2: the processes can complete a tensor")
    need(type(data["split"]) is bool and data["given"] is (data["name"] == "input"), "2: the input is given")
    names = [each["source"] for each in data["reads"]]
    need(len(set(names)) == len(names) and set(data["sources"]) <= set(names), "2: sources are read")
    need(not (data["given"] and names), "2: the input reads nothing")
    layer, found = data["layer"], dict[str, Points]()
    right: Any = None
    if layer is not None:
        need(layer.keys() == {"problem", "weighted"} and type(layer["weighted"]) is bool, "1: a layer")
        *sizes, read, right = windows_of(layer["problem"], layer["weighted"])
        need(sizes == [channels, positions], "1: a tensor has the shape of its layer")
        need(all(known[name]["positions"] == read for name in names), "1: a layer reads its input")
        count, inputs = sum(known[name]["channels"] for name in names), layer["problem"]["input"][1]
        alone = layer["weighted"] and layer["problem"]["groups"] == 1
        need(count <= inputs and (alone or not names or (len(names) == 1 and count == inputs)), "1: channels")
    for each in data["reads"]:
        if "windows" in each:
            need(each.keys() == {"source", "windows"} and isinstance(right, tuple), "1: windows of a layer")
            given = each["windows"]
            stated = [tuple(axis) for axis in given["axes"]], given["images"], given["groups"]
            need(stated == right and len(given) == 4, "1: windows are those of the layer")
            found[each["source"]] = least_inputs(given, positions)
            continue
        need(each.keys() == {"source", "ratio"}, "1: the fields of what is read")
        alike = Fraction(known[each["source"]]["positions"], positions) if layer is None else right
        need(fraction(each["ratio"]) == alike and alike > 0, "1: a tensor reads in proportion")
        found[each["source"]] = [(Fraction(0), Fraction(0)), (Fraction(positions), alike * positions)]
    return found


def claim(data: dict[str, Any]) -> str:
    """What is proved, with all that it assumes."""
    return (
        f"in a forward pass of {data['network']} a process receives at least {data['words']} words of the"
        f" tensors between layers, on average over the processes, given: {data['procs']} processes; a process"
        " that computes a word of a layer has all words that it reads, and words of layers are computed as"
        " often as one likes; sums are split in those layers alone in which the certificate splits them; one"
        " owner of every word of the network's input; weights may be everywhere; in any process at most the"
        " positions of each tensor that the certificate has; any memory"
    )


def main(paths: list[str]) -> int:
    """Checks files, and prints a line for each."""
    if not paths:
        print("name certificates: python check_recomputation.py bound.json ...", file=sys.stderr)
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
