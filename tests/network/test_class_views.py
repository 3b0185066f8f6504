"""Words between views with other residue classes, and what classes would save in a network."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.class_networks import Study
from benchmarks.class_views import PLAIN, View, moved_between, viewed
from synth.layer.axes import PerAxis
from synth.layer.layer import Layer
from synth.layer.nest import Nest
from synth.layer.residue_classes import into_classes
from synth.network.file import parse_network
from synth.network.grids.owned_boxes import OwnedBoxes, PlacedGrid
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest

NEST = Layer.conv2d((2, 4, 24, 12), 4, 3, padding=12, dilation=12).nest
PROCS = 6
GRIDS = (PerAxis(b=6), PerAxis(b=3, h=2), PerAxis(h=2, w=3), PerAxis(b=2, k=2), PerAxis(k=4), PerAxis(b=5))


def _nest(view: View) -> Nest:
    found = viewed(NEST, view)
    assert found is not None
    return found


def _boxes(nest: Nest) -> OwnedBoxes:
    fit = [grid for grid in GRIDS if all(p <= n for p, n in zip(grid, nest.extents, strict=True))]
    return OwnedBoxes(nest, [PlacedGrid(grid) for grid in fit], PROCS)


def _owned(nest: Nest) -> list[list[set[int]]]:
    """By option and rank: the words of Out, by their number in the user's tensor."""
    low, high, _ = _boxes(nest).flat("Out")
    numbers = np.arange(NEST.words["Out"]).reshape(NEST.shapes["Out"])
    words = into_classes(nest, "Out", numbers).reshape(nest.extents.b, -1, *nest.shapes["Out"][-3:])
    return [
        [
            set(
                words[
                    tuple(
                        slice(*each) for each in zip(low[:, option, rank], high[:, option, rank], strict=True)
                    )
                ].flat
            )
            for rank in range(PROCS)
        ]
        for option in range(low.shape[1])
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (PLAIN, (1, 2, 2)),
        ((1, 4, 1), PLAIN),
        (PLAIN, (1, 12, 6)),
        ((1, 2, 2), (1, 4, 4)),
        ((1, 4, 1), (1, 6, 3)),
    ],
)
def test_words_between_views_are_those_of_sets_of_words(before: View, after: View) -> None:
    nests = _nest(before), _nest(after)
    ends = [_boxes(nest).flat("Out")[:2] for nest in nests]
    extents = 2, 1, 24, 12
    forward, both = (moved_between(*ends, (before, after), extents, back) for back in (False, True))
    owned = [_owned(nest) for nest in nests]
    for one, have in enumerate(owned[0]):
        for two, want in enumerate(owned[1]):
            pairs = list(zip(have, want, strict=True))
            there = max(len(new - old) for old, new in pairs)
            assert forward[one, two] == there
            assert both[one, two] == there + max(len(old - new) for old, new in pairs)
    assert forward.max() > 0


def test_a_view_needs_classes_without_filler() -> None:
    """12 columns in 8 classes, and a stride, have no view; a kernel of one has any."""
    assert viewed(NEST, (1, 1, 8)) is None
    assert viewed(Layer.conv1d((1, 4, 16), 4, 3, stride=2, padding=1).nest, (1, 1, 2)) is None
    plain = viewed(Layer.conv1d((1, 4, 16), 4, 1).nest, (1, 1, 8))
    assert plain is not None
    assert (plain.extents.b, plain.w.out) == (8, 2)


def test_redistributions_of_a_chain_are_paid_once() -> None:
    """Three layers with a dilation as large as a block: a halo of two blocks each, or two redistributions."""
    layers = [
        f"  - conv1d: {{out_channels: 8, kernel: {k}, dilation: 4, padding: {k // 2 * 4}}}"
        for k in (1, 3, 3, 3, 1)
    ]
    network = parse_network(
        "network: chain\ninput: [1, 8, 16]\nlayers:\n" + "\n".join(layers) + "\n", "chain"
    )
    request = NetworkRequest(4, resident_weights=True)
    row = Study(network, request, ((1, 1, 4),)).row()
    assert row.plain == plan_network(network, request).cost > 2 * row.classes
    assert (row.classes, row.changes) == (2 * 3 * 8, 2 * 3 * 8)
    assert (row.inside, row.layers) == (3, 5)
