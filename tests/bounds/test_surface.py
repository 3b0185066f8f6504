"""The surface bound: its lemmas by enumeration, no assignment below it (boxes, blobs, annealed), no plan."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from effort import tried
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from synth.bounds.regions import Part, Reach, kind, line, longest_short, parts, region
from synth.bounds.surface import surface_bound, surface_words
from synth.bounds.universal import universal_bound
from synth.layer.layer import Layer
from synth.layer.window import Window
from synth.planning.derive import plan as plan_layer


def cut(inside: np.ndarray, degree: np.ndarray, ratio: float) -> float:
    """Σ over inputs of the least cost: they are taken, or not."""
    return float(np.minimum(ratio * (degree - inside), inside).sum())


def adjacency(reach: Reach) -> np.ndarray:
    """Row y, column x: whether output x reads input y."""
    shift = np.arange(reach.size)[:, None] + reach.before - np.arange(reach.outputs)[None, :]
    return ((shift >= 0) & (shift < reach.taps)).astype(int)


def plain(reach: Reach) -> list[Part]:
    """An axis with a stride and a dilation of 1."""
    return [Part(1, (reach,))]


def random_reach(rng: random.Random, most: int) -> Reach:
    taps, outputs = rng.choice((2, 3, 3, 4, 5)), rng.randint(2, most)
    before, after = rng.randint(0, taps - 1), rng.randint(0, taps - 1)
    return Reach(taps, max(1, outputs + taps - 1 - before - after), outputs, before)


def test_lines_cost_what_the_lemma_says() -> None:
    """Every set of outputs of a line: its cost, less the charges of its positions, is at least `ends`·..."""
    rng = random.Random(8)
    tight = math.inf
    for _ in range(60):
        reach, ratio = random_reach(rng, 9), rng.choice((0.2, 0.5, 1.0, 2.0, 3.5, 9.0))
        found, pairs = line(plain(reach), ratio), adjacency(reach)
        charges = np.array([kind((reach,), ratio, x)[1] for x in range(reach.outputs)])
        degrees = [kind((reach,), ratio, x)[0] for x in range(reach.outputs)]
        assert degrees == pairs.sum(axis=0).tolist()
        for bits in itertools.product((0, 1), repeat=reach.outputs):
            a = np.array(bits)
            if not a.any():
                continue
            least = found.ends * min(int(a.sum()), found.short) / found.short - charges @ a
            cost = cut(pairs @ a, pairs.sum(axis=1), ratio)
            assert cost >= least - 1e-9, (reach, ratio, bits)
            tight = min(tight, cost - least)
    assert tight == pytest.approx(0, abs=1e-9)


def shapes(rng: random.Random, n1: int, n2: int) -> np.ndarray:
    """A region of an image: a box, a blob that grew from a position, positions at random, or their union."""
    made = np.zeros((n1, n2), dtype=int)
    which = rng.randrange(4)
    if which in (0, 3):
        i, j = sorted(rng.sample(range(n1 + 1), 2)), sorted(rng.sample(range(n2 + 1), 2))
        made[i[0] : i[1], j[0] : j[1]] = 1
    if which in (1, 3):
        seeds = [(rng.randrange(n1), rng.randrange(n2))]
        for _ in range(rng.randrange(n1 * n2)):
            i1, j1 = rng.choice(seeds)
            i1, j1 = i1 + rng.choice((-1, 0, 1)), j1 + rng.choice((-1, 0, 1))
            if 0 <= i1 < n1 and 0 <= j1 < n2 and not made[i1, j1]:
                made[i1, j1] = 1
                seeds.append((i1, j1))
    if which == 2:
        made |= (np.array([[rng.random() for _ in range(n2)] for _ in range(n1)]) < rng.random()).astype(int)
    return made


def window_pairs(window: Window) -> np.ndarray:
    """Row y, column x: whether output x reads input y."""
    found = np.zeros((window.size, window.out), dtype=int)
    for x, tap in itertools.product(range(window.out), range(window.kernel)):
        y = window.stride * x + window.dilation * tap - window.padding
        if 0 <= y < window.size:
            found[y, x] = 1
    return found


def charges_by_definition(window: Window, ratio: Fraction) -> list[tuple[int, Fraction]]:
    """(degree, charge) of each output: what inputs lose that have fewer readers, or do not exist."""
    pairs, found = window_pairs(window), []
    for x in range(window.out):
        charge = Fraction(0)
        for tap in range(window.kernel):
            y = window.stride * x + window.dilation * tap - window.padding
            others = [y + window.padding - window.dilation * r for r in range(window.kernel)]
            full = sum(each % window.stride == 0 for each in others)
            last = window.out * window.stride
            there = sum(each % window.stride == 0 and 0 <= each < last for each in others)
            lost = [Fraction(0)]
            for i in range(1, there + 1):
                real = min(ratio * (there - i), Fraction(i)) if 0 <= y < window.size else 0
                lost.append((min(ratio * (full - i), Fraction(i)) - real) / i)
            charge += max(lost)
        found.append((int(pairs[:, x].sum()), charge))
    return found


def zeros_after(window: Window) -> int:
    return window.stride * (window.out - 1) + window.span - window.padding - window.size


windows = st.builds(
    Window.reduced,
    st.integers(1, 40),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 5),
    st.tuples(st.integers(0, 4), st.integers(0, 4)),
).filter(lambda window: window.out > 0 < window.size and window.padding < window.span > zeros_after(window))


@given(windows, st.sampled_from([Fraction(1, 3), Fraction(1), Fraction(9, 4), Fraction(8)]))
def test_an_axis_is_what_its_windows_say(window: Window, ratio: Fraction) -> None:
    """Strides, dilations, even kernels: outputs, inputs, degrees and charges are those of a count by hand."""
    axis = parts(window, window.out)
    pairs = window_pairs(window)
    assert sum(each.number * each.reaches[0].outputs for each in axis) == window.out
    assert sum(each.number * reach.read for each in axis for reach in each.reaches) == pairs.any(axis=1).sum()
    assert line(axis, ratio).kinds == Counter(charges_by_definition(window, ratio))


@settings(max_examples=tried(40, 400))
@given(
    windows.filter(lambda window: window.out <= 9),
    st.sampled_from([Fraction(1, 3), Fraction(1), Fraction(9, 4), Fraction(8)]),
)
def test_every_set_of_outputs_costs_what_its_lines_say(window: Window, ratio: Fraction) -> None:
    found, pairs = line(parts(window, window.out), ratio), window_pairs(window)
    degrees = pairs.sum(axis=1)
    charges = [float(charge) for _, charge in charges_by_definition(window, ratio)]
    apart = window.dilation // math.gcd(window.stride, window.dilation)
    for bits in itertools.product((0, 1), repeat=window.out):
        a = np.array(bits)
        lines = sum(min(int(a[i::apart].sum()), found.short) for i in range(apart))
        least = float(found.ends * lines / found.short) - float(charges @ a)
        assert cut(pairs @ a, degrees, float(ratio)) >= least - 1e-9


@settings(max_examples=tried(100, 1000), deadline=None)
@given(st.lists(windows, min_size=2, max_size=2), st.randoms(use_true_random=False), st.integers(0, 8))
def test_regions_of_strided_images_cost_what_the_lemma_says(
    axes: list[Window], rng: random.Random, short: int
) -> None:
    """Of each image, into which a dilation divides a layer."""
    ratio = Fraction(rng.choice((1, 3, 9, 20)), rng.choice((1, 4, 9)))
    lines = [line(parts(window, window.out), ratio) for window in axes]
    found = region(lines, short)
    made = shapes(rng, axes[0].out, axes[1].out)
    first, second = (window_pairs(window) for window in axes)
    cost = cut(first @ made @ second.T, np.outer(first.sum(axis=1), second.sum(axis=1)), float(ratio))
    (d1, q1), (d2, q2) = (zip(*charges_by_definition(window, ratio), strict=True) for window in axes)
    taps = [window.kernel for window in axes]
    charge = np.zeros(made.shape)
    for i, j in np.ndindex(*made.shape):
        own = taps[1] * q1[i] + taps[0] * q2[j]
        missing = lines[0].ends * (taps[1] - d2[j]) + lines[1].ends * (taps[0] - d1[i])
        charge[i, j] = float(own + missing / found.short) / 2
    assert charge.sum() == pytest.approx(float(found.charges(ratio)))
    apart = [window.dilation // math.gcd(window.stride, window.dilation) for window in axes]
    least = -float((made * charge).sum())
    for i, j in itertools.product(range(apart[0]), range(apart[1])):
        m = int(made[i :: apart[0], j :: apart[1]].sum())
        least += float(found.scale) * min(2 * math.sqrt(m), m / float(found.short))
    assert cost >= least - 1e-9


def partitions(pairs: list[tuple[int, int]], procs: int, cap: int) -> int:
    """The fewest words beyond one copy, over all ways to give pairs to processes."""
    best, owner = math.inf, [0] * len(pairs)

    def give(at: int, loads: list[int], touched: list[set[tuple[str, int]]], words: int) -> None:
        nonlocal best
        if words >= best:
            return
        if at == len(pairs):
            best = words
            return
        x, y = pairs[at]
        for p in range(procs):
            if loads[p] < cap:
                new = {("out", x), ("in", y)} - touched[p]
                owner[at], loads[p] = p, loads[p] + 1
                touched[p] |= new
                give(at + 1, loads, touched, words + len(new))
                touched[p] -= new
                loads[p] -= 1
            if not touched[p]:  # processes are alike
                break

    give(0, [0] * procs, [set() for _ in range(procs)], 0)
    return int(best) - len({x for x, _ in pairs}) - len({y for _, y in pairs})


@settings(max_examples=tried(60, 500), deadline=None)
@given(
    st.integers(4, 14),
    st.integers(2, 4),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(0, 1),
    st.integers(2, 3),
    st.integers(0, 2),
)
def test_no_partition_of_a_signal_is_below(
    size: int, kernel: int, stride: int, dilation: int, padding: int, procs: int, more: int
) -> None:
    """All partitions of the multiply-adds of small layers."""
    window = Window.reduced(size, kernel, stride, dilation, padding)
    assume(window.out > 0 and window.kernel * window.out <= (20, 13)[procs - 2])
    layer = Layer.conv1d((1, 1, size), 1, kernel, stride=stride, dilation=dilation, padding=padding)
    pairs = sorted((int(x), int(y)) for y, x in zip(*np.nonzero(window_pairs(layer.nest.w)), strict=True))
    assert len(pairs) == layer.nest.real_work
    cap = -(-len(pairs) // procs) + more
    assert surface_words(layer.nest, procs, cap) <= partitions(pairs, procs, cap)


def test_regions_of_images_cost_what_the_lemma_says() -> None:
    rng = random.Random(4)
    for _ in range(500):
        one, two = random_reach(rng, 24), random_reach(rng, 24)
        ratio = rng.choice((0.3, 1.0, 2.0, 8.0))
        found = region([line(plain(one), ratio), line(plain(two), ratio)], rng.choice((0.0, 3.0, 7.5)))
        made = shapes(rng, one.outputs, two.outputs)
        m = int(made.sum())
        if m == 0:
            continue
        first, second = adjacency(one), adjacency(two)
        cost = cut(first @ made @ second.T, np.outer(first.sum(axis=1), second.sum(axis=1)), ratio)
        (d1, q1), (d2, q2) = (
            zip(*(kind((each,), ratio, x) for x in range(each.outputs)), strict=True) for each in (one, two)
        )
        ends = line(plain(one), ratio).ends, line(plain(two), ratio).ends
        charge = two.taps * np.array(q1)[:, None] + one.taps * np.array(q2)[None, :]
        charge = charge + ends[0] / found.short * (two.taps - np.array(d2))[None, :]
        charge = charge + ends[1] / found.short * (one.taps - np.array(d1))[:, None]
        assert (charge / 2).sum() == pytest.approx(sum(q * n for (_, q), n in found.kinds.items()))
        least = found.scale * min(2 * math.sqrt(m), m / found.short) - float((made * charge).sum()) / 2
        assert cost >= least - 1e-9, (one, two, ratio)


def test_regions_of_volumes_cost_what_the_lemma_says() -> None:
    """Charges of each output are summed up by hand, axis by axis."""
    rng, tight = random.Random(5), math.inf
    for number in range(tried(90, 300)):
        reaches = [random_reach(rng, 12) for _ in range(3)]
        ratio = rng.choice((0.3, 1.0, 2.0, 8.0))
        lines = [line(plain(each), ratio) for each in reaches]
        found = region(lines, rng.choice((0.0, 2.5)))
        planes = [shapes(rng, reaches[0].outputs, reaches[1].outputs) for _ in range(reaches[2].outputs)]
        made = np.stack(planes, axis=2)
        if number % 3 == 0:  # a box
            for axis, each in enumerate(reaches):
                low, high = sorted(rng.sample(range(each.outputs + 1), 2))
                one = np.zeros(each.outputs, dtype=int)
                one[low:high] = 1
                shape = [-1 if axis == other else 1 for other in range(3)]
                made = one.reshape(shape) * (made if axis else np.ones_like(made))
        m = int(made.sum())
        if m == 0:
            continue
        inside = made
        for axis, each in enumerate(reaches):
            inside = np.moveaxis(np.tensordot(adjacency(each), inside, axes=(1, axis)), 0, axis)
        sums = [adjacency(each).sum(axis=1) for each in reaches]
        cost = cut(inside, np.einsum("i,j,k->ijk", *sums), ratio)
        charge = np.zeros(made.shape)
        for at in np.ndindex(*made.shape):
            kinds = [kind((each,), ratio, x) for each, x in zip(reaches, at, strict=True)]
            for axis, (_, q) in enumerate(kinds):
                others = [other for other in range(3) if other != axis]
                across = math.prod(reaches[other].taps for other in others)
                there = math.prod(kinds[other][0] for other in others)
                charge[at] += (across * q + lines[axis].ends / found.short * (across - there)) / 3
        assert charge.sum() == pytest.approx(sum(q * n for (_, q), n in found.kinds.items()))
        least = found.scale * min(3 * m ** (2 / 3), m / found.short) - float((made * charge).sum())
        assert cost >= least - 1e-9, (reaches, ratio)
        tight = min(tight, cost - least)
    assert tight < math.inf


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_the_tangent_is_below_the_cost_of_regions(axes: int) -> None:
    lines = [line(plain(Reach(5, 40, 40, 2)), 0.7)] * axes
    for side in (40.0, 40 * 9.0 ** (1 / axes)):
        short, size = longest_short(axes, side), side**axes
        found = region(lines, short)
        assert found.short == short
        linear, square = found.tangent(axes, side)
        for m in np.geomspace(1e-3, 100 * size, 400):
            cost = found.scale * min(axes * m ** (1 - 1 / axes), m / found.short)
            assert linear * m - square * m * m <= cost * (1 + 1e-9)
        touched = found.scale * axes * size ** (1 - 1 / axes)
        assert linear * size - square * size**2 == pytest.approx(touched)


class Assignment:
    """Who does each multiply-add (channel, filter, output, input) of an image layer on P processes."""

    def __init__(self, layer: Layer, procs: int, rng: random.Random) -> None:
        self.rng, self.procs = rng, procs
        (_, self.c, _, _), self.k = layer.input, layer.out_channels
        pairs = window_pairs(layer.nest.h)
        self.m, self.n = pairs.shape
        self.read = int(pairs.any(axis=1).sum())
        y1, x1 = (each.tolist() for each in np.nonzero(pairs))
        self.adds = [
            (c, k, i * self.n + j, y * self.m + x)
            for c, k in itertools.product(range(self.c), range(self.k))
            for y, i in zip(y1, x1, strict=True)
            for x, j in zip(y1, x1, strict=True)
        ]

    def boxes(self, start: str) -> None:
        """Boxes of positions of outputs or of inputs; with "channels" a half of c or of k in each process."""
        halves = 2 if start == "channels" and self.procs % 2 == 0 and max(self.c, self.k) > 1 else 1
        parts = self.procs // halves
        across = max(d for d in range(1, math.isqrt(parts) + 1) if parts % d == 0)
        self.owner = []
        for c, k, x, y in self.adds:
            side = self.m if start == "inputs" else self.n
            i, j = divmod(y if start == "inputs" else x, side)
            box = (i * (parts // across) // side) * across + j * across // side
            half = c * halves // self.c if self.c > 1 else k * halves // self.k
            self.owner.append(half * parts + box)
        self.out = np.zeros((self.procs, self.k * self.n**2), dtype=int)
        self.inp = np.zeros((self.procs, self.c * self.m**2), dtype=int)
        self.load = [0] * self.procs
        for (c, k, x, y), p in zip(self.adds, self.owner, strict=True):
            self.out[p, k * self.n**2 + x] += 1
            self.inp[p, c * self.m**2 + y] += 1
            self.load[p] += 1

    def excess(self) -> int:
        """Words of In and Out that are accessed beyond one copy of each."""
        words = self.k * self.n**2 + self.c * self.read**2
        return int((self.out > 0).sum() + (self.inp > 0).sum()) - words

    def anneal(self, steps: int, cap: int) -> int:
        """The least excess that moves of single multiply-adds to other processes find."""
        best = now = self.excess()
        for step in range(steps):
            e = self.rng.randrange(len(self.adds))
            (c, k, x, y), p = self.adds[e], self.owner[e]
            near = min(len(self.adds) - 1, max(0, e + self.rng.choice((-1, 1, 3 * self.n, -3 * self.n, 9))))
            other = self.owner[near]
            if other == p or self.load[other] >= cap:
                continue
            places = (self.out, k * self.n**2 + x), (self.inp, c * self.m**2 + y)
            change = sum(int(table[other, at] == 0) - int(table[p, at] == 1) for table, at in places)
            if change > 0 and self.rng.random() > math.exp(-change / (0.5 * (1 - step / steps) + 1e-9)):
                continue
            for table, at in places:
                table[p, at] -= 1
                table[other, at] += 1
            self.load[p] -= 1
            self.load[other] += 1
            self.owner[e] = other
            now += change
            best = min(best, now)
        assert now == self.excess()
        return best


@pytest.mark.parametrize("start", ["outputs", "inputs", "channels"])
@pytest.mark.parametrize(
    ("c", "k", "procs", "size", "window"),
    [
        (8, 1, 4, 24, {}),
        (1, 1, 9, 24, {}),
        (2, 2, 16, 24, {}),
        (1, 4, 6, 24, {}),
        (1, 2, 9, 48, {"stride": 2}),
        (2, 2, 16, 40, {"stride": 2, "kernel": 5, "padding": 2}),
        (1, 1, 9, 26, {"kernel": 4}),
        (2, 1, 9, 25, {"kernel": 2, "padding": 0}),
        (1, 1, 25, 32, {"dilation": 2, "padding": 2}),
        (1, 2, 25, 60, {"stride": 2, "dilation": 3, "padding": 3}),
    ],
)
def test_no_annealed_assignment_is_below(
    c: int, k: int, procs: int, size: int, window: dict[str, int], start: str
) -> None:
    layer = Layer.conv2d((1, c, size, size), k, **{"kernel": 3, "padding": 1, **window})  # type: ignore[arg-type]
    made = Assignment(layer, procs, random.Random(procs))
    assert len(made.adds) == layer.nest.real_work
    made.boxes(start)
    cap = max(*made.load, round(1.05 * layer.nest.real_work / procs))
    least = surface_words(layer.nest, procs, cap)
    assert 0 < least <= made.excess()
    assert made.anneal(10_000, cap) >= least


@settings(max_examples=25)
@given(
    st.integers(1, 3),
    st.sampled_from([1, 2, 3, 8, 16]),
    st.sampled_from([1, 2, 3, 8]),
    st.sampled_from([8, 16, 33, 64]),
    st.integers(2, 16),
    st.sampled_from([3, 5]),
)
def test_no_plan_is_below(d: int, c: int, k: int, size: int, procs: int, kernel: int) -> None:
    kind_of = (Layer.conv1d, Layer.conv2d, Layer.conv3d)[d - 1]
    made = plan_layer(kind_of((1, c, *[size] * d), k, kernel, padding=kernel // 2), procs)
    load = made.distribution.most_real_work
    assert surface_bound(made.nest, procs, load) <= made.words["total"] + 1e-6
    assert surface_bound(made.nest, procs, load) >= universal_bound(made.nest, procs, None, load).words - 1e-6


@pytest.mark.parametrize(
    ("layer", "procs", "best"),
    [
        (Layer.conv2d((1, 64, 1024, 1024), 3, 9, padding=4), 16, 27_060),
        (Layer.conv2d((1, 64, 1024, 1024), 3, 3, padding=1), 16, 4_704),
        (Layer.conv2d((1, 64, 512, 512), 2, 3, padding=1), 4, 1_890),
        (Layer.conv2d((1, 128, 512, 512), 64, 3, padding=1), 4, 88_128),
        (Layer.conv2d((1, 128, 512, 512), 64, 3, padding=1), 16, 102_144),
    ],
)
def test_heads_and_decoders_are_within_two_of_the_best_schedule_known(
    layer: Layer, procs: int, best: int
) -> None:
    """`best` are the words of the cut by input rows and columns, counted by hand."""
    fair = -(-layer.nest.real_work // procs)
    bound = surface_bound(layer.nest, procs, fair)
    assert universal_bound(layer.nest, procs).words * 1.05 < bound < best < 2 * bound


def test_where_it_is_not_proved_it_is_nothing() -> None:
    for layer in (
        Layer.conv2d((1, 8, 64, 64), 2, 2, stride=2),
        Layer.conv2d((1, 8, 64, 64), 2, 3, stride=4, padding=1),
        Layer.conv2d((1, 8, 64, 64), 2, 2, dilation=3, stride=2, padding=1),
        Layer.conv2d((1, 8, 64, 64), 2, 33, padding=16),
        Layer.conv2d((1, 8, 64, 64), 2, 3, padding=4),
        Layer.conv2d((1, 8, 64, 64), 2, 1),
        Layer.matmul(64, 64, 64),
    ):
        assert surface_words(layer.nest, 4, -(-layer.nest.real_work // 4)) == 0.0
        alone = universal_bound(layer.nest, 4).words
        assert surface_bound(layer.nest, 4, -(-layer.nest.real_work // 4)) == pytest.approx(alone, abs=1e-6)


@pytest.mark.parametrize(("groups", "c", "k"), [(2, 8, 8), (16, 1, 1), (4, 2, 4), (16, 4, 1)])
def test_groups_are_like_samples(groups: int, c: int, k: int) -> None:
    """The same multiply-adds and words of In and Out, with Ker left out."""
    layer = Layer.conv2d((1, groups * c, 48, 48), groups * k, 3, padding=1, groups=groups)
    other = Layer.conv2d((groups, c, 48, 48), k, 3, padding=1)
    assert layer.nest.real_work == other.nest.real_work
    for procs in (4, 16, 64):
        cap = -(-layer.nest.real_work // procs)
        found = surface_words(layer.nest, procs, cap)
        assert found == surface_words(other.nest, procs, cap)
        assert found > 0 or procs <= groups
        made = plan_layer(layer, procs)
        load = made.distribution.most_real_work
        assert surface_bound(made.nest, procs, load) <= made.words["total"] + 1e-6
