"""The bound of layers that may compute words again, beside all sets of small boxes and random schedules."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog

from synth.bounds.least_inputs import Axis, Proportion, Windows, least_inputs
from synth.bounds.piecewise import floats
from synth.bounds.recomputation import Tensor, _Walk, best_proof, proved_words

Place = tuple[int, ...]


def reads(xs: NDArray[Any], *windows: Any) -> NDArray[Any]:
    """The least inputs of some numbers of outputs, in floating point."""
    curve = least_inputs(Windows(*windows))
    found: NDArray[Any] = np.interp(xs, [float(x) for x in curve.xs], [float(y) for y in curve.ys])
    return found


def received_words(tensors: Sequence[Tensor], procs: int) -> int:
    """Whole words that are proved."""
    return math.floor(best_proof(tensors, procs).words)


def inputs(axis: Axis, output: int) -> range:
    """The real inputs of an output along one axis."""
    size = axis.outputs + axis.more
    return range(max(0, output - axis.before), min(size, output - axis.before + axis.taps))


def read(axes: Sequence[Axis], outputs: Sequence[Place]) -> set[Place]:
    """All inputs of some outputs, position by position."""
    each = (itertools.product(*map(inputs, axes, at)) for at in outputs)
    return set(itertools.chain.from_iterable(each))


def least_read(axes: Sequence[Axis]) -> list[int]:
    """The fewest inputs of any set of x outputs, for every x."""
    places = list(itertools.product(*(range(axis.outputs) for axis in axes)))
    numbers = {at: i for i, at in enumerate(sorted(read(axes, places)))}
    masks = [sum(1 << numbers[at] for at in read(axes, [place])) for place in places]
    least, unions = [10**9] * (len(places) + 1), [0] * (1 << len(places))
    for chosen in range(1 << len(places)):
        if chosen:
            low = chosen & -chosen
            unions[chosen] = unions[chosen ^ low] | masks[low.bit_length() - 1]
        count = chosen.bit_count()
        least[count] = min(least[count], unions[chosen].bit_count())
    return least


BOXES = [
    (Axis(9, 3, 1, 1),),
    (Axis(8, 5, 2, 2),),
    (Axis(8, 4, 2, 1),),
    (Axis(7, 3, 0, 0),),
    (Axis(7, 5, 0, 2),),
    (Axis(4, 3, 1, 1), Axis(4, 3, 1, 1)),
    (Axis(3, 3, 1, 1), Axis(5, 5, 2, 2)),
    (Axis(4, 2, 1, 0), Axis(4, 3, 0, 1)),
    (Axis(2, 3, 1, 1), Axis(2, 3, 1, 1), Axis(4, 3, 1, 1)),
    (Axis(2, 2, 0, 0), Axis(3, 3, 1, 1), Axis(2, 2, 1, 0)),
]


@pytest.mark.parametrize("axes", BOXES, ids=str)
def test_no_set_of_a_small_box_reads_fewer_inputs(axes: tuple[Axis, ...]) -> None:
    least = least_read(axes)
    found = reads(np.arange(len(least)), axes)
    assert (found <= np.array(least) + 1e-9).all()
    assert (np.diff(found) >= 0).all()
    assert found[1] >= 1


def down_sets(one: int, two: int) -> list[tuple[int, ...]]:
    """Rows of a box from its corner on: lengths that do not grow."""
    return [at[::-1] for at in itertools.combinations_with_replacement(range(two + 1), one)]


def places(lengths: Sequence[int]) -> list[Place]:
    """The positions of such rows."""
    return [(i, j) for i, length in enumerate(lengths) for j in range(length)]


@pytest.mark.parametrize(
    "axes",
    [
        (Axis(6, 3, 1, 1), Axis(6, 3, 1, 1)),
        (Axis(3, 3, 1, 1), Axis(10, 3, 1, 1)),
        (Axis(5, 5, 2, 2), Axis(6, 5, 2, 2)),
        (Axis(5, 7, 3, 3), Axis(5, 4, 2, 1)),
        (Axis(6, 3, 1, 1), Axis(5, 3, 0, 0)),
    ],
    ids=str,
)
def test_no_set_at_a_corner_reads_fewer_inputs(axes: tuple[Axis, Axis]) -> None:
    """No set reads fewer inputs than some set of rows from a corner on; see docs/bounds.md."""
    sets = [places(each) for each in down_sets(axes[0].outputs, axes[1].outputs)]
    found = reads(np.array([len(each) for each in sets]), axes)
    assert (found <= np.array([len(read(axes, each)) for each in sets]) + 1e-9).all()


@pytest.mark.parametrize(
    "axes",
    [
        (Axis(5, 3, 1, 1), Axis(5, 3, 1, 1), Axis(5, 3, 1, 1)),
        (Axis(3, 3, 1, 1), Axis(4, 3, 1, 1), Axis(9, 3, 1, 1)),
        (Axis(6, 3, 1, 1), Axis(4, 3, 1, 1), Axis(3, 3, 1, 1)),
        (Axis(4, 5, 2, 2), Axis(5, 5, 2, 2), Axis(5, 5, 2, 2)),
        (Axis(4, 3, 1, 1), Axis(4, 2, 1, 0), Axis(6, 3, 0, 0)),
    ],
    ids=str,
)
def test_no_set_of_planes_reads_fewer_inputs(axes: tuple[Axis, Axis, Axis]) -> None:
    """Sets at a corner of a volume, plane by plane: the fewest inputs for every number of outputs."""
    planes = down_sets(axes[0].outputs, axes[1].outputs)
    size = np.array([sum(each) for each in planes])
    inputs_of = np.array([len(read(axes[:2], places(each))) for each in planes])
    last = [inputs(axes[2], x) for x in range(axes[2].outputs)]
    first = np.array([min(x for x, each in enumerate(last) if y in each) for y in range(last[-1].stop)])
    within = np.array([[all(map(int.__le__, a, b)) for b in planes] for a in planes])
    least = np.full((len(planes), int(size.max()) * axes[2].outputs + 1), np.inf)  # plane, outputs so far
    for at in range(axes[2].outputs):
        before = np.zeros(least.shape) if not at else np.stack([least[row].min(axis=0) for row in within])
        if not at:
            before[:, 1:] = np.inf
        for i, (more, words) in enumerate(zip(size, inputs_of * (first == at).sum(), strict=True)):
            least[i] = np.inf
            least[i, more:] = before[i, : least.shape[1] - more] + words
    exact = least.min(axis=0)
    assert (reads(np.arange(len(exact)), axes) <= exact + 1e-9).all()


def split(least: Sequence[int], images: int) -> list[int]:
    """The fewest inputs of x outputs in several images that share nothing."""
    sums = [0]
    for _ in range(images):
        size = len(sums) + len(least) - 1
        sums = [
            min(sums[i] + least[x - i] for i in range(len(sums)) if 0 <= x - i < len(least))
            for x in range(size)
        ]
    return sums


@pytest.mark.parametrize("images", [2, 3, 12])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    "axes",
    [
        (Axis(4, 3, 1, 1), Axis(3, 3, 1, 1)),
        (Axis(2, 3, 1, 1), Axis(2, 3, 1, 1), Axis(3, 3, 1, 1)),
        (Axis(2, 2, 0, 0), Axis(2, 3, 1, 1), Axis(3, 2, 1, 0)),
    ],
    ids=len,
)
def test_images_and_groups_share_nothing(axes: tuple[Axis, ...], images: int, groups: int) -> None:
    least = np.array(split(least_read(axes), images * groups)) / groups
    found = reads(np.arange(len(least)) / groups, axes, images, groups)
    assert (found <= least + 1e-9).all()


def chain(lengths: int, channels: Sequence[int], most: float) -> list[Tensor]:
    """Convolutions of 3 taps along one axis."""
    axis = Axis(lengths, 3, 1, 1)
    tensors = [Tensor("0", channels[0], lengths, Fraction(lengths), given=True)]
    for i, each in enumerate(channels[1:], 1):
        window = {str(i - 1): Windows((axis,))}
        tensors.append(Tensor(str(i), each, lengths, Fraction(most), window))
    return tensors


def cheapest(tensors: Sequence[Tensor], procs: int) -> float:
    """The least average of words over all mixtures of processes that compute intervals or more."""
    size = int(tensors[0].positions)
    exact = least_read([Axis(size, 3, 1, 1)])
    most = [int(each.most) for each in tensors]
    profiles, words = [], []
    for counts in itertools.product(*(range(each + 1) for each in most)):
        profiles.append(counts)
        pairs = zip(tensors, counts, counts[1:], strict=False)
        words.append(sum(each.channels * max(0, exact[x] - y) for each, y, x in pairs))
    rows = np.array(profiles).T * np.array([[1.0]] + [[-1.0]] * (len(tensors) - 1))
    fair = np.array([1.0] + [-1.0] * (len(tensors) - 1)) * size / procs
    found = linprog(words, rows, fair, np.ones((1, len(words))), [1.0], method="highs")
    return float(found.fun)


@pytest.mark.parametrize("channels", [(1, 40, 40), (30, 4, 50), (20, 20, 20), (8, 90, 6)])
@pytest.mark.parametrize(("procs", "most"), [(2, 4), (3, 4), (4, 3)])
def test_it_is_near_the_best_mixture_of_processes(channels: tuple[int, ...], procs: int, most: int) -> None:
    """Beside a linear program over all whole numbers of positions, with the exact numbers of inputs."""
    tensors = chain(8, channels, most)
    best, found = cheapest(tensors, procs), received_words(tensors, procs)
    assert found <= best + 1e-6
    assert found >= 0.6 * best - 2  # between whole numbers, the bound is below


def received(sets: Sequence[Sequence[set[int]]], channels: Sequence[int], size: int) -> float:
    """Words per process, on average. sets: process, tensor -> positions that it has computed, or owns."""
    total, axis = 0, Axis(size, 3, 1, 1)
    for mine in sets:
        for at in range(1, len(channels)):
            needed = {at for output in mine[at] for at in inputs(axis, output)}
            total += channels[at - 1] * len(needed - mine[at - 1])
    return total / len(sets)


def random_schedule(rng: random.Random, size: int, layers: int, procs: int) -> list[list[set[int]]]:
    """Blocks with margins of random widths, some of them with other positions at random."""
    cuts = [round(size * p / procs) for p in range(procs + 1)]
    margins = [0, *(rng.randrange(4) for _ in range(layers))]
    found = []
    for low, high in itertools.pairwise(cuts):
        mine = [set(range(max(0, low - m), min(size, high + m))) for m in margins]
        for each in mine[1:]:
            each.update(rng.sample(range(size), rng.choice([0, 0, 1, 3])))
        found.append(mine)
    return found


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.one_in(3)
def test_no_random_schedule_receives_fewer_words(seed: int) -> None:
    rng = random.Random(seed)
    size, procs = rng.choice([12, 24, 40]), rng.choice([2, 3, 4])
    channels = [rng.choice([1, 3, 16, 50]) for _ in range(rng.choice([2, 3, 5]))]
    for _ in range(4):
        sets = random_schedule(rng, size, len(channels) - 1, procs)
        most = max(len(each) for mine in sets for each in mine[1:])
        bound = received_words(chain(size, channels, most), procs)
        assert bound <= received(sets, channels, size)


def test_split_sums_and_trees() -> None:
    """A word costs at most a part of its sum where sums are split; both sources of a tensor count."""
    window, same = Windows((Axis(64, 3, 1, 1),)), Proportion(64, Fraction(1))
    source, other = (
        Tensor("a", 50, 64, Fraction(64), given=True),
        Tensor("d", 900, 64, Fraction(64), given=True),
    )
    whole = received_words([source, Tensor("b", 7, 64, Fraction(16), {"a": window})], 4)
    parts = received_words([source, Tensor("b", 7, 64, Fraction(16), {"a": window}, split=True)], 4)
    assert 3 <= parts <= 7 < 40 <= whole <= 50  # an input at an end of a block, or a part of a result
    both = received_words([source, other, Tensor("c", 7, 64, Fraction(16), {"a": window, "d": window})], 4)
    assert 800 + whole <= both <= 950
    one = received_words([source, other, Tensor("c", 7, 64, Fraction(16), {"a": window, "d": same})], 4)
    assert whole - 2 <= one <= whole
    assert received_words([source], 4) == 0
    split = Tensor("c", 7, 64, Fraction(16), {"a": window, "d": window}, split=True)
    assert received_words([source, other, split], 4) <= 7  # a part stands for words of both


def random_trees(rng: random.Random) -> tuple[list[Tensor], dict[str, Fraction]]:
    """Tensors of one to three sources each, some of which split their sums, and prices."""
    window, tensors = Axis(24, 3, 1, 1), list[Tensor]()
    for at in range(rng.randrange(2, 7)):
        readings = [Windows((window,)), Windows((Axis(12, 5, 2, 2),), 2), Proportion(24, Fraction(2, 3))]
        names = rng.sample([each.name for each in tensors], min(at, rng.randrange(1, 4)))
        most = Fraction(rng.randrange(6, 49), 2)
        chosen = {name: rng.choice(readings) for name in sorted(names, key=int)}
        tensors.append(Tensor(str(at), rng.randrange(1, 50), 24, most, chosen, rng.random() < 0.4, not at))
    return tensors, {each.name: Fraction(rng.randrange(0, 120), 4) for each in tensors}


def cost_of(
    tensors: Sequence[Tensor],
    sources: Mapping[str, Sequence[str]],
    prices: Mapping[str, Fraction],
    computed: Mapping[str, Fraction],
    whole: Mapping[str, Fraction],
) -> Fraction:
    """Words that are received less the prices of what is computed, by definition."""
    channels, cost = {each.name: each.channels for each in tensors}, Fraction(0)
    for each in tensors:
        cost -= (-1 if each.given else 1) * prices[each.name] * computed[each.name]
        for name in sources[each.name]:
            complete = whole[each.name] if each.split else computed[each.name]
            needed = least_inputs(each.reads[name])(complete)
            cost += channels[name] * max(Fraction(0), needed - computed[name])
            cost += each.channels * (computed[each.name] - complete)
    return cost


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.one_in(3)
def test_a_cheapest_process_costs_what_the_curves_say(seed: int) -> None:
    """No process at random is cheaper. Fractions and floating point agree."""
    rng = random.Random(seed)
    tensors, prices = random_trees(rng)
    sources = best_proof(tensors, 4).sources
    walk = _Walk(tensors, sources, Fraction, lambda curve: curve)
    least = walk.least(prices)
    computed, words = walk.cheapest()
    signed = ((-1 if each.given else 1) * prices[each.name] * computed[each.name] for each in tensors)
    assert least == words - sum(signed)
    inexact = _Walk(tensors, sources, float, floats)
    assert abs(inexact.least({name: float(each) for name, each in prices.items()}) - least) < 1e-6
    for _ in range(300):
        some = {each.name: each.most * Fraction(rng.randrange(65), 64) for each in tensors}
        near = {name: min(x, rng.choice([x, computed[name]])) for name, x in some.items()}
        whole = {name: x * Fraction(rng.randrange(9), 8) for name, x in near.items()}
        assert cost_of(tensors, sources, prices, near, whole) >= least


def test_prices_of_nothing_prove_nothing() -> None:
    tensors = chain(24, (4, 9, 2), 8)
    sources = best_proof(tensors, 3).sources
    assert proved_words(tensors, 3, sources, dict.fromkeys("012", Fraction(0))) == 0


def test_many_images_count_as_wholes() -> None:
    assert len(least_inputs(Windows((Axis(8, 3, 1, 1),), images=100)).xs) == 2


@pytest.mark.slow
def test_long_chains_stay_exact() -> None:
    """The denominators of a hundred tensors in a chain are bounded in practice."""
    proof = best_proof(chain(4096, (3, *([64] * 120)), 1100), 4)
    assert 0 < proof.words < 64 * 240
