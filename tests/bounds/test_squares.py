"""Regions of windows of 3 by 3: the steps of the proof in docs/bounds.md, and regions of all shapes."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from effort import tried
from test_surface import adjacency, plain, shapes

from synth.bounds.regions import Reach, longest_short
from synth.bounds.squares import CORNERS, LINES, OCTAGON, SQUARE, THIN, lost, plane_cost, square_region
from synth.bounds.surface import surface_words
from synth.layer.layer import Layer

Cells = frozenset[tuple[int, int]]
CENTRE = (0.012, 0.005)  # on no line of reflection


def reflections(most: int) -> Iterator[tuple[tuple[int, int, int], ...]]:
    """The reflections of the lattice across axes and diagonals, as two rows (a, b, shift)."""
    for k in range(-2 * most, 2 * most + 1):
        yield (-1, 0, k), (0, 1, 0)
        yield (1, 0, 0), (0, -1, k)
        yield (0, 1, k), (1, 0, -k)
        yield (0, -1, k), (-1, 0, k)


def far(cell: tuple[float, float]) -> float:
    return (cell[0] - CENTRE[0]) ** 2 + (cell[1] - CENTRE[1]) ** 2


def nearer(cell: tuple[int, int]) -> set[tuple[int, int]]:
    """The images of a cell that a symmetric region has with it."""
    most = 2 * max(map(abs, cell)) + 2
    images = {tuple(a * cell[0] + b * cell[1] + s for a, b, s in each) for each in reflections(most)}
    return {each for each in images if far(each) < far(cell)}  # type: ignore[misc]


def symmetric(most: int) -> Iterator[Cells]:
    """All symmetric regions of at most `most` cells: each is one of a cell less, and a farther cell."""
    near = range(-most, most + 1)
    needed = {cell: nearer(cell) for cell in itertools.product(near, near) if sum(map(abs, cell)) <= 7}
    level: set[Cells] = {frozenset()}
    for _ in range(most):
        level = {
            cells | {new}
            for cells in level
            for new, first in needed.items()
            if new not in cells and len(first) <= len(cells) and first <= cells
        }
        yield from level


def plane(cells: Cells, part: float) -> float:
    """What the inputs of a plane without borders cost."""
    n = 2 * max(max(map(abs, cell)) for cell in cells) + 7
    made = np.zeros((n, n), dtype=int)
    for a, b in cells:
        made[a + n // 2, b + n // 2] = 1
    inside = sum(np.roll(made, shift, (0, 1)) for shift in itertools.product((-1, 0, 1), repeat=2))
    assert isinstance(inside, np.ndarray)
    first, last = np.minimum(9 - inside, inside).sum(), np.where(inside < 9, inside, 0).sum()
    return float((1 - part) * first + part * last)


def test_symmetric_regions_cost_what_the_octagon_says() -> None:
    """Few lines of a symmetric region have one cell. Its lines have no gaps."""
    seen = 0
    for cells in symmetric(tried(24, 40)):
        m = len(cells)
        seen += 1
        assert plane(cells, 0.0) >= OCTAGON * math.sqrt(m) - CORNERS
        assert plane(cells, 1.0) >= SQUARE * (math.sqrt(m) - 1) - 1e-9
        single = 0
        for one, other in ((1, 0), (0, 1), (1, 1), (1, -1)):
            lines: dict[int, list[int]] = {}
            for a, b in cells:
                lines.setdefault(one * b - other * a, []).append(a if one else b)
            assert all(max(each) - min(each) == len(each) - 1 for each in lines.values())
            assert max(lines) - min(lines) == len(lines) - 1
            single += sum(len(each) == 1 for each in lines.values())
        assert single <= 8 or m <= 4
    assert seen > 50


def test_reflections_take_no_pairs_away() -> None:
    """Moved to the side of the centre, the cells of two sets make at least as many pairs."""
    rng = random.Random(6)
    cells = list(itertools.product(range(-4, 5), repeat=2))
    for _ in range(tried(150, 1000)):
        x, y = (set(rng.sample(cells, rng.randint(1, 30))) for _ in range(2))
        rows = rng.choice(list(reflections(5)))

        def moved(one: set[tuple[int, int]], rows: tuple[tuple[int, int, int], ...]) -> set[tuple[int, int]]:
            images = {cell: tuple(a * cell[0] + b * cell[1] + s for a, b, s in rows) for cell in one}
            return {
                image if image not in one and far(image) < far(cell) else cell  # type: ignore[misc]
                for cell, image in images.items()
            }

        def pairs(x: set[tuple[int, int]], y: set[tuple[int, int]]) -> int:
            return sum(max(abs(a - c), abs(b - d)) <= 1 for a, b in x for c, d in y)

        x2, y2 = moved(x, rows), moved(y, rows)
        assert (len(x2), len(y2)) == (len(x), len(y))
        assert pairs(x2, y2) >= pairs(x, y)


@pytest.mark.parametrize("part", [0.0, 0.14, 0.5, 1.0])
def test_the_cost_of_a_plane_is_below_what_is_proved(part: float) -> None:
    found = 0
    for side in (2, 3, 5, 6, 8, 12, 20, 100, 1000):
        cost = plane_cost(part, side)
        if cost is None:
            continue
        found += 1
        for m in np.geomspace(1, 1e8, 4000):
            octagon = (1 - part) * (OCTAGON * math.sqrt(m) - CORNERS) + part * SQUARE * (math.sqrt(m) - 1)
            flat = ((1 - part) * LINES[0] + part * LINES[1]) * min(math.sqrt(m), m / (2 * THIN))
            assert cost * min(math.sqrt(m), m / side) <= max(octagon, flat) * (1 + 1e-12)
    assert found > 3


@pytest.mark.parametrize("axes", [2, 3])
def test_regions_cost_what_the_lemma_says(axes: int) -> None:
    """Inputs that are taken may cost less by their charge; outputs are charged for missing inputs."""
    rng, found = random.Random(axes), 0
    for _ in range(tried(300, 2000)):
        largest = (26, 15)[axes - 2]
        reaches = []
        for _ in range(axes):
            outputs, before, after = rng.randint(4, largest), rng.randint(0, 2), rng.randint(0, 2)
            reaches.append(Reach(3, max(1, outputs + 2 - before - after), outputs, before))
        ratio, short = rng.choice((1.0, 1.3, 2.0, 8.0, 20.0)), rng.choice((2.5, 3.0, 5.0, 8.0))
        shape = square_region([plain(each) for each in reaches], ratio, short)
        if shape is None:
            continue
        made = shapes(rng, reaches[0].outputs, reaches[1].outputs)
        if axes == 3:
            n = reaches[2].outputs
            low, high = sorted(rng.sample(range(n + 1), 2))
            made = made[:, :, None] * ((np.arange(n) >= low) & (np.arange(n) < high))
            made = np.maximum(made, np.stack([shapes(rng, *made.shape[:2]) for _ in range(n)], axis=2))
        m, part = int(made.sum()), min(1.0, (ratio - 1) / 7)
        if not m:
            continue
        inside = made
        for axis, each in enumerate(reaches):
            inside = np.moveaxis(np.tensordot(adjacency(each), inside, axes=(1, axis)), 0, axis)
        reads = [adjacency(each).sum(axis=0) for each in reaches]
        readers = [adjacency(each).sum(axis=1) for each in reaches]
        q, p = np.zeros(made.shape), np.zeros(inside.shape)
        families = list(itertools.combinations(range(axes), 2))
        for one, two in families:
            third = 3 - one - two
            for at in np.ndindex(*made.shape):
                planes = int(reads[third][at[third]]) if axes == 3 else 1
                missing = 3 - planes if axes == 3 else 0
                own = 9 - int(reads[one][at[one]] * reads[two][at[two]])
                q[at] += (planes * own + missing * shape.scale / short) / len(families)
            for at in np.ndindex(*inside.shape):
                planes = int(readers[third][at[third]]) if axes == 3 else 1
                p[at] += planes * lost(int(readers[one][at[one]] * readers[two][at[two]]), ratio, part)
        p /= len(families)
        assert q.sum() + p.sum() == pytest.approx(shape.charges(ratio))
        degrees = np.array(readers[0])
        for each in readers[1:]:
            degrees = np.multiply.outer(degrees, each)
        real = np.minimum(ratio * (degrees - inside) + p, inside).sum() + (q * made).sum()
        least = shape.scale * min(axes * m ** (1 - 1 / axes), m / short)
        assert real >= least - 1e-9, (reaches, ratio, short)
        found += 1
    assert found > 50


def test_the_bound_of_one_image_is_near_the_halo() -> None:
    """64 to 64 channels: an input halo of one row is 1.5 times what the argument of pairs sees."""
    layer = Layer.conv2d((1, 64, 512, 512), 64, 3, padding=1)
    for procs in (4, 16, 64):
        n = math.isqrt(procs)
        halos = 2 * 2 * (n - 1) * 512 * 64  # two rows or columns along each cut
        bound = surface_words(layer.nest, procs, -(-layer.nest.real_work // procs))
        assert 0.45 * halos < bound < halos / 1.5


def test_other_windows_have_no_squares() -> None:
    wide, near = plain(Reach(5, 40, 40, 2)), plain(Reach(3, 40, 40, 1))
    assert square_region([near, near], 0.5, longest_short(2, 400)) is None
    assert square_region([near, wide], 2.0, longest_short(2, 400)) is None
    assert square_region([near], 2.0, 10.0) is None
    assert square_region([near, near], 1.0, 0.5) is None


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("outputs", [1, 2, 5, 9])
@pytest.mark.parametrize("before", [0, 1, 2, 4])
def test_outputs_are_counted_by_what_they_read(size: int, outputs: int, before: int) -> None:
    """Also of extents of 2^40, of which the ends alone are looked at."""
    for taps in (1, 3, 5):
        reach = Reach(taps, size, outputs, before)
        assert reach.degrees() == Counter(reach.partners(x) for x in range(outputs))
    assert sum(Reach(3, 2**40, 2**40, 1).degrees().values()) == 2**40
