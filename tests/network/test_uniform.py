"""One grid for all layers is among the options of every strategy, so no strategy is priced above it."""

from __future__ import annotations

from synth.layer.axes import PerAxis
from synth.network.file import parse_network
from synth.network.grids.layer_class import LayerClass
from synth.network.planner.candidates import GridCandidates
from synth.network.planner.options import options_within
from synth.network.planner.planner import plan_network
from synth.network.planner.uniform import nearest, uniform_grids
from synth.network.request import NetworkRequest
from synth.schedule.distribution import Distribution
from synth.schedule.pass_plan import PassPlan
from synth.schedule.volume import received

PROCS = 8
CUBE = PerAxis(d=2, h=2, w=2)
NETWORK = parse_network(
    """
network: volumes
input: [1, 2, 16, 16, 16]
layers:
  - {name: a, conv3d: {out_channels: 4, kernel: 3, padding: 1}}
  - {name: p, pool: {kernel: 2, stride: 2}}
  - {name: b, conv3d: {out_channels: 8, kernel: 3, padding: 1}}
  - {name: q, pool: {kernel: 2, stride: 2}}
  - {name: c, conv3d: {out_channels: 8, kernel: 3, padding: 1}}
  - globalpool: {}
  - {name: fc, linear: {out_features: 4}}
""",
    "volumes.yaml",
)
REQUEST = NetworkRequest(PROCS, axes="dhw", strict_axes=False)
CLASSES = list(dict.fromkeys(LayerClass.of(node) for node in NETWORK.planned))
CANDIDATES = [GridCandidates(each, REQUEST) for each in CLASSES]


FIRST = uniform_grids(CANDIDATES, [1] * len(CLASSES), "dhw")[0]


def test_the_first_uniform_grid_suits_most_layers_at_the_fewest_words() -> None:
    some = [each for each in CANDIDATES if CUBE in each.grids.places]
    assert len(some) >= 5
    assert all(FIRST in each.grids.places for each in some)
    assert sum(each.grids.bound(FIRST) for each in some) <= sum(each.grids.bound(CUBE) for each in some)


def test_a_layer_that_does_not_admit_a_grid_gets_the_one_with_most_of_its_cuts() -> None:
    by_name = dict(zip([node.name for node in NETWORK.planned], CANDIDATES, strict=True))
    assert nearest(by_name["a"], CUBE, "dhw") == CUBE
    assert nearest(by_name["fc"], CUBE, "b") is None
    near = nearest(by_name["fc"], PerAxis(c=4, k=2), "ck")
    assert near is not None
    assert (near.c % 4, near.k % 2) == (0, 0)


def test_every_layer_may_have_the_uniform_grid_however_few_options_it_has() -> None:
    layers = [1] * len(CLASSES)
    table = options_within(CANDIDATES, [[] for _ in CLASSES], layers, ["dhw"], count=1)["dhw"]
    assert not isinstance(table, int)
    spatial = [row for each, row in zip(CANDIDATES, table, strict=True) if FIRST in each.grids.places]
    assert len(spatial) >= 5
    assert all(FIRST in [option.placed.grid for option in row] for row in spatial)


def test_a_plan_of_space_moves_no_more_words_than_one_cube_for_all_layers() -> None:
    """Words of the cube are counted layer by layer. All its blocks fit, so nothing moves in between."""
    convs = parse_network(
        "network: convs\ninput: [1, 2, 16, 16, 16]\nlayers:\n"
        + "".join(
            f"  - {{name: {name}, conv3d: {{out_channels: 8, kernel: 3, padding: 1}}}}\n" for name in "abc"
        ),
        "convs.yaml",
    )
    made = plan_network(convs, NetworkRequest(PROCS, axes="dhw"))
    uniform = sum(
        received(Distribution(node.layer.nest, CUBE), PassPlan()).most()["total"]
        for node in convs.planned
        if node.layer
    )
    assert made.cost <= uniform
