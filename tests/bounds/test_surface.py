"""The surface bound: its lemmas by enumeration, no assignment below it (boxes, blobs, annealed), no plan."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from effort import tried
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.bounds.regions import Reach, kind, line, longest_short, region
from synth.bounds.surface import surface_bound, surface_words
from synth.bounds.universal import universal_bound
from synth.layer.layer import Layer
from synth.planning.derive import plan as plan_layer


def cut(inside: np.ndarray, degree: np.ndarray, ratio: float) -> float:
    """Σ over inputs of the least cost: they are taken, or not."""
    return float(np.minimum(ratio * (degree - inside), inside).sum())


def adjacency(reach: Reach) -> np.ndarray:
    """Row y, column x: whether output x reads input y."""
    shift = np.arange(reach.size)[:, None] + reach.before - np.arange(reach.outputs)[None, :]
    return ((shift >= 0) & (shift < reach.taps)).astype(int)


def random_reach(rng: random.Random, most: int) -> Reach:
    taps, outputs = rng.choice((3, 3, 5)), rng.randint(2, most)
    before, after = rng.randint(0, taps - 1), rng.randint(0, taps - 1)
    return Reach(taps, max(1, outputs + taps - 1 - before - after), outputs, before)


def test_lines_cost_what_the_lemma_says() -> None:
    """Every set of outputs of a line: its cost, less the charges of its positions, is at least `ends`·..."""
    rng = random.Random(8)
    tight = math.inf
    for _ in range(60):
        reach, ratio = random_reach(rng, 9), rng.choice((0.2, 0.5, 1.0, 2.0, 3.5, 9.0))
        found, pairs = line(reach, ratio), adjacency(reach)
        charges = np.array([kind(reach, ratio, x)[1] for x in range(reach.outputs)])
        degrees = [kind(reach, ratio, x)[0] for x in range(reach.outputs)]
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


def test_regions_of_images_cost_what_the_lemma_says() -> None:
    rng = random.Random(4)
    for _ in range(500):
        one, two = random_reach(rng, 24), random_reach(rng, 24)
        ratio = rng.choice((0.3, 1.0, 2.0, 8.0))
        found = region([line(one, ratio), line(two, ratio)], rng.choice((0.0, 3.0, 7.5)))
        made = shapes(rng, one.outputs, two.outputs)
        m = int(made.sum())
        if m == 0:
            continue
        first, second = adjacency(one), adjacency(two)
        cost = cut(first @ made @ second.T, np.outer(first.sum(axis=1), second.sum(axis=1)), ratio)
        (d1, q1), (d2, q2) = (
            zip(*(kind(each, ratio, x) for x in range(each.outputs)), strict=True) for each in (one, two)
        )
        ends = line(one, ratio).ends, line(two, ratio).ends
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
        lines = [line(each, ratio) for each in reaches]
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
            kinds = [kind(each, ratio, x) for each, x in zip(reaches, at, strict=True)]
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
    lines = [line(Reach(5, 40, 40, 2), 0.7)] * axes
    for size in (40.0**axes, 9.0 * 40**axes):
        short = longest_short(axes, size)
        found = region(lines, short)
        assert found.short == short
        linear, square = found.tangent(axes, size)
        for m in np.geomspace(1e-3, 100 * size, 400):
            cost = found.scale * min(axes * m ** (1 - 1 / axes), m / found.short)
            assert linear * m - square * m * m <= cost * (1 + 1e-9)
        touched = found.scale * axes * size ** (1 - 1 / axes)
        assert linear * size - square * size**2 == pytest.approx(touched)


class Assignment:
    """Who does each multiply-add (channel, filter, output, input) of an image layer on P processes."""

    def __init__(self, layer: Layer, procs: int, rng: random.Random) -> None:
        self.rng, self.procs = rng, procs
        (_, self.c, self.n, _), self.k = layer.input, layer.out_channels
        pairs = adjacency(Reach(layer.kernel[0], self.n, self.n, layer.kernel[0] // 2))
        y1, x1 = (each.tolist() for each in np.nonzero(pairs))
        self.adds = [
            (c, k, i * self.n + j, y * self.n + x)
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
            i, j = divmod(y if start == "inputs" else x, self.n)
            box = (i * (parts // across) // self.n) * across + j * across // self.n
            half = c * halves // self.c if self.c > 1 else k * halves // self.k
            self.owner.append(half * parts + box)
        self.out = np.zeros((self.procs, self.k * self.n**2), dtype=int)
        self.inp = np.zeros((self.procs, self.c * self.n**2), dtype=int)
        self.load = [0] * self.procs
        for (c, k, x, y), p in zip(self.adds, self.owner, strict=True):
            self.out[p, k * self.n**2 + x] += 1
            self.inp[p, c * self.n**2 + y] += 1
            self.load[p] += 1

    def excess(self) -> int:
        """Words of In and Out that are accessed beyond one copy of each."""
        return int((self.out > 0).sum() + (self.inp > 0).sum()) - (self.k + self.c) * self.n**2

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
            places = (self.out, k * self.n**2 + x), (self.inp, c * self.n**2 + y)
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
@pytest.mark.parametrize(("c", "k", "procs"), [(8, 1, 4), (1, 1, 9), (2, 2, 16), (1, 4, 6)])
def test_no_annealed_assignment_is_below(c: int, k: int, procs: int, start: str) -> None:
    layer = Layer.conv2d((1, c, 24, 24), k, 3, padding=1)
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
        Layer.conv2d((1, 8, 64, 64), 2, 4, padding=1),
        Layer.conv2d((1, 8, 64, 64), 2, 3, stride=2, padding=1),
        Layer.conv2d((1, 8, 64, 64), 2, 3, dilation=2),
        Layer.conv3d((1, 8, 32, 32, 32), 2, 4),
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
