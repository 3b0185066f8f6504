"""The bound of layers that may compute words again, beside all sets of small boxes and random schedules."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.optimize import linprog

from synth.bounds.recomputation import Axis, Tensor, in_proportion, in_windows, received_words

Place = tuple[int, ...]


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
    found = in_windows(axes)(np.arange(len(least), dtype=float))
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
    found = in_windows(axes)(np.array([float(len(each)) for each in sets]))
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
    assert (in_windows(axes)(np.arange(len(exact), dtype=float)) <= exact + 1e-9).all()


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
def test_images_and_groups_share_nothing(images: int, groups: int) -> None:
    axes = (Axis(4, 3, 1, 1), Axis(3, 3, 1, 1))
    least = np.array(split(least_read(axes), images * groups)) / groups
    found = in_windows(axes, images, groups)(np.arange(len(least)) / groups)
    assert (found <= least + 1e-9).all()


def chain(lengths: int, channels: Sequence[int], most: float) -> list[Tensor]:
    """Convolutions of 3 taps along one axis."""
    axis = Axis(lengths, 3, 1, 1)
    tensors = [Tensor("0", channels[0], lengths, lengths, given=True)]
    for i, each in enumerate(channels[1:], 1):
        reads = {str(i - 1): in_windows([axis])}
        tensors.append(Tensor(str(i), each, lengths, most, reads))
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
    window, same = in_windows([Axis(64, 3, 1, 1)]), in_proportion(64, 1.0)
    source, other = Tensor("a", 50, 64, 64, given=True), Tensor("d", 900, 64, 64, given=True)
    whole = received_words([source, Tensor("b", 7, 64, 16, {"a": window})], 4)
    parts = received_words([source, Tensor("b", 7, 64, 16, {"a": window}, split=True)], 4)
    assert 3 <= parts <= 7 < 40 <= whole <= 50  # an input at an end of a block, or a part of a result
    both = received_words([source, other, Tensor("c", 7, 64, 16, {"a": window, "d": window})], 4)
    assert 800 + whole <= both <= 950
    one = received_words([source, other, Tensor("c", 7, 64, 16, {"a": window, "d": same})], 4)
    assert whole - 2 <= one <= whole
    assert received_words([source], 4) == 0
    split = Tensor("c", 7, 64, 16, {"a": window, "d": window}, split=True)
    assert received_words([source, other, split], 4) <= 7  # a part stands for words of both


def test_parts_of_sums_take_the_place_of_the_halo_of_some_images() -> None:
    """Complete images need no halo, and parts of sums complete the rest: no more than both together."""
    window = in_windows([Axis(16, 3, 1, 1)], images=4)
    tensor, source = Tensor("b", 3, 64, 40, {"a": window}, split=True), Tensor("a", 5, 64, 64, given=True)
    counts = np.linspace(0, 40, 81)
    found = tensor.received(counts, source, counts)
    for x, y in itertools.product(range(81), repeat=2):
        whole = np.linspace(0, counts[x], 200)
        best = (3 * (counts[x] - whole) + 5 * np.maximum(0.0, window(whole) - counts[y])).min()
        assert found[x, y] <= best + 1e-9


def test_many_images_count_as_wholes() -> None:
    found = in_windows([Axis(8, 3, 1, 1)], images=100)
    assert len(found.xs) == 2
