"""Plans that together reach every statement the emitter can write. Small: they run on real ranks."""

from __future__ import annotations

from dataclasses import replace

from synth.layer.axes import PerAxis
from synth.layer.layer import Layer
from synth.layer.passes import sequences
from synth.planning.plan import Plan
from synth.schedule.pass_plan import ONES, PassPlan
from synth.search.training_step import pass_templates


def _plan(
    layer: Layer,
    grid: PerAxis,
    stationary: str = "Out",
    tiles: PerAxis = ONES,
    procs: int = 0,
    swapped: bool = False,
    pass_: str = "forward",
) -> Plan:
    return Plan(layer, procs or grid.size, grid, PassPlan(stationary, tiles, swapped, pass_))  # type: ignore[arg-type]


def _training(
    layer: Layer,
    grid: PerAxis,
    saved: str = "In Ker Out",
    tiles: tuple[PerAxis, ...] = (),
    stationary: str = "Out",
    swapped: bool = False,
    gradients: str = "In Ker",
) -> Plan:
    """The passes of a step with the tensors that they save.

    tiles, stationary: one for each pass, in order of execution. swapped: the gradients come in the other
    order, dKer first (of a transposed layer last).
    """
    sequence = sequences(layer.transposed, gradients.split())[swapped]  # type: ignore[arg-type]
    templates = pass_templates(frozenset(saved.split()), sequence)  # type: ignore[arg-type]
    counts, tensors = tiles or (ONES,) * len(sequence), (stationary.split() * 3)[: len(sequence)]
    first, *later = (
        replace(template, stationary=tensor, counts=count)  # type: ignore[arg-type]
        for template, tensor, count in zip(templates, tensors, counts, strict=True)
    )
    return Plan(layer, grid.size, grid, first, later=tuple(later))


G = PerAxis
SMALL = Layer.conv2d((4, 16, 8, 8), 16, 3, padding=1, name="small")
UNEVEN = Layer.conv2d((3, 7, 11, 9), 5, 3, padding=1, name="uneven")
STRIDED = Layer.conv2d(
    (2, 4, 15, 13), 6, (3, 5), stride=(2, 3), padding=(1, 2), dilation=(2, 1), name="strided"
)
POINT = Layer.conv2d((4, 8, 9, 9), 8, 1, stride=2, name="pointwise")
GAPS = Layer.conv2d((2, 4, 17, 17), 4, 2, stride=3, padding=1, name="gaps")
SPREAD = Layer.conv2d((2, 4, 17, 17), 4, 2, stride=3, padding=1, dilation=2, name="spread")
WIDE = Layer.conv2d((2, 3, 12, 6), 4, 7, padding=3, name="wide")
GROUPED = Layer.conv2d((2, 12, 8, 8), 8, 3, padding=1, groups=4, name="grouped")
DEPTHWISE = Layer.conv1d((2, 6, 20), 6, 5, stride=2, padding=2, groups=6, name="depthwise")
LINE = Layer.conv1d((4, 6, 30), 8, 4, stride=1, padding=2, dilation=2, name="line")
VOLUME = Layer.conv3d((2, 4, 6, 7, 5), 6, 3, padding=1, stride=(1, 2, 1), name="volume")
MATRIX = Layer.matmul(12, 10, 14, name="matrix")
SCORES = Layer.einsum("hqd,hkd->hqk", {"h": 3, "q": 10, "k": 12, "d": 6}, name="scores")
NINE = Layer.matmul(9, 12, 18, name="nine")
DOUBLE = Layer.conv2d((2, 4, 6, 6), 4, 3, padding=1, dtype="float64", name="double")
HALF = Layer.conv2d((2, 8, 6, 6), 4, 3, padding=1, dtype="bfloat16", name="half")
RGB = Layer.conv2d((2, 1, 16, 6), 16, 3, padding=1, name="one_channel")
UP = Layer.conv2d((2, 8, 5, 6), 6, 3, stride=2, padding=1, transposed=True, output_padding=1, name="up")
APART = Layer.conv2d(
    (2, 4, 5, 6), 6, 2, stride=3, groups=2, transposed=True, output_padding=(1, 0), name="apart"
)
ATROUS = Layer.conv2d((2, 4, 11, 10), 6, 3, padding=(2, 1), dilation=(3, 2), name="atrous")
UP_ATROUS = Layer.conv2d(
    (2, 4, 7, 6), 6, 3, stride=(1, 2), padding=1, dilation=2, transposed=True, name="up_atrous"
)

CASES: dict[str, Plan] = {
    "alone": _plan(SMALL, G()),
    "data": _plan(SMALL, G(b=4)),
    "data_panels": _plan(UNEVEN, G(b=3), "Out", G(c=3)),
    "data_rotated": _plan(SMALL, G(b=4), "Out", G(c=4)),
    "data_2d_rotated": _plan(SMALL, G(h=2, w=2), "Out", G(c=4)),
    "rows_shared_panels": _plan(RGB, G(h=2, k=4), "Ker", G(h=2), pass_="backward-filter"),
    "data_halves": _plan(SMALL, G(h=2, w=4), "Out", G(c=2)),
    "cannon": _plan(SMALL, G(h=2, k=2), "Out", G(c=2)),
    "filter": _plan(SMALL, G(k=8)),
    "channel": _plan(UNEVEN, G(c=3)),
    "spatial": _plan(WIDE, G(h=4)),
    "spatial_2d": _plan(UNEVEN, G(h=4, w=2)),
    "summa": _plan(SMALL, G(b=2, k=4), "Out", G(c=4)),
    "summa_3d": _plan(SMALL, G(h=2, c=2, k=2), "Out", G(c=4)),
    "uneven_3d": _plan(UNEVEN, G(h=2, c=2, k=2), "Out", G(c=2)),
    "strided": _plan(STRIDED, G(h=3, w=2), "Out", G(c=2)),
    "strided_shared": _plan(STRIDED, G(h=2, k=3), "Out", G(c=2, h=2)),
    "pointwise": _plan(POINT, G(h=2, w=2, k=2), "Out", G(c=2)),
    "gaps": _plan(GAPS, G(h=4, k=2), "Out", G(c=2)),
    "rows_shared": _plan(RGB, G(h=2, k=4)),
    "rows_shared_tiles": _plan(RGB, G(h=2, k=4), "Ker", G(h=2)),
    "ker_stationary": _plan(SMALL, G(c=2, k=2, b=2), "Ker", G(b=2)),
    "ker_stationary_rows": _plan(UNEVEN, G(h=2, c=2, k=2), "Ker", G(h=2, w=2)),
    "ker_stationary_tiles": _plan(SMALL, G(b=2, c=2, k=2), "Ker", G(b=2, c=2, k=2)),
    "ker_stationary_swapped": _plan(SMALL, G(b=2, c=2, k=2), "Ker", G(h=2, c=2, k=2), swapped=True),
    "ker_stationary_sums": _plan(UNEVEN, G(b=2, c=2), "Ker", G(h=2, c=2), swapped=True),
    "in_stationary": _plan(SMALL, G(b=2, c=2, k=2), "In", G(k=4)),
    "in_stationary_halo": _plan(UNEVEN, G(h=3, k=2), "In", G(k=2)),
    "in_stationary_tiles": _plan(SMALL, G(h=2, c=2, k=2), "In", G(k=2, h=2, c=2), swapped=True),
    "in_stationary_sums": _plan(SMALL, G(w=2, c=2, k=2), "In", G(k=2, h=2, c=2)),
    "out_stationary_tiles": _plan(SMALL, G(h=2, k=2), "Out", G(c=2, h=2, k=2)),
    "out_stationary_swapped": _plan(UNEVEN, G(b=3, k=2), "Out", G(c=2, w=2, k=2), swapped=True),
    "grouped": _plan(GROUPED, G(g=2, h=2, k=2), "Out", G(c=3)),
    "grouped_channels": _plan(GROUPED, G(g=2, c=3), "Ker", G(h=2)),
    "depthwise": _plan(DEPTHWISE, G(g=3, w=2)),
    "line": _plan(LINE, G(b=2, w=2, k=2), "Out", G(c=2)),
    "volume": _plan(VOLUME, G(d=2, h=2, k=2), "Out", G(c=2)),
    "volume_ker": _plan(VOLUME, G(d=2, w=2, c=2), "Ker", G(d=3)),
    "matrix_2d": _plan(MATRIX, G(b=2, k=4), "Out", G(c=3)),
    "matrix_cannon": _plan(NINE, G(b=3, k=3), "Out", G(c=3)),
    "matrix_3d": _plan(MATRIX, G(b=2, c=2, k=2), "Out", G(c=2)),
    "matrix_ker": _plan(MATRIX, G(b=2, c=2, k=2), "Ker", G(b=3)),
    "matrix_in": _plan(MATRIX, G(c=4, k=2), "In", G(k=3)),
    "einsum_3d": _plan(SCORES, G(g=2, c=2, k=2), "Out", G(c=3)),
    "einsum_ker": _plan(SCORES, G(b=2, g=3), "Ker", G(b=2)),
    "back_einsum": _plan(SCORES, G(b=2, c=2, k=2), "In", G(k=3), pass_="backward-data"),
    "training_einsum": _training(SCORES, G(g=3, c=2), "In Ker"),
    "placed": replace(
        _plan(SMALL, G(b=2, c=2, k=2), "Out", G(c=2)), order=("g", "d", "h", "w", "k", "c", "b")
    ),
    "idle": _plan(MATRIX, G(b=3, k=2), "Out", G(c=2), procs=7),
    "double": _plan(DOUBLE, G(b=2, c=2)),
    "half": _plan(HALF, G(c=2, k=2), "Out", G(c=2)),
    "back_spatial": _plan(WIDE, G(h=4), pass_="backward-data"),
    "back_summa": _plan(SMALL, G(b=2, k=4), "In", G(k=2), pass_="backward-data"),
    "back_3d": _plan(UNEVEN, G(h=2, c=2, k=2), "In", G(k=2), pass_="backward-data"),
    "back_panels": _plan(STRIDED, G(h=2, k=3), "Out", G(c=2), pass_="backward-data"),
    "back_rows_shared": _plan(RGB, G(h=2, k=4), "Ker", G(h=2), pass_="backward-data"),
    "back_gaps": _plan(GAPS, G(h=4, k=2), "In", G(k=2), pass_="backward-data"),
    "back_matrix": _plan(MATRIX, G(b=2, c=2, k=2), "In", G(k=3), pass_="backward-data"),
    "filter_data": _plan(SMALL, G(b=4), "Ker", pass_="backward-filter"),
    "filter_3d": _plan(UNEVEN, G(h=2, c=2, k=2), "Ker", G(h=2), pass_="backward-filter"),
    "filter_panels": _plan(SMALL, G(b=2, c=2, k=2), "In", G(k=4), pass_="backward-filter"),
    "filter_grouped": _plan(GROUPED, G(g=2, h=2, k=2), "Ker", G(b=2), pass_="backward-filter"),
    "filter_matrix": _plan(MATRIX, G(b=2, c=2, k=2), "Ker", G(b=3), pass_="backward-filter"),
    "training_data": _training(SMALL, G(b=4), swapped=True),
    "training_alone": _training(UNEVEN, G()),
    "training_3d": _training(UNEVEN, G(h=2, c=2, k=2)),
    "training_3d_b": _training(UNEVEN, G(h=4, k=2), "In"),
    "training_dker_first": _training(
        UNEVEN, G(h=2, c=2, k=2), "Ker Out", (ONES, G(h=2), G(k=2)), "Out In Out", swapped=True
    ),
    "training_nothing_saved": _training(SMALL, G(h=2, c=2, k=2), "", (G(c=4), G(k=2), G(b=2)), "Out In Ker"),
    "training_tiles": _training(
        STRIDED, G(h=2, k=3), "In Out", (G(c=2, h=2), G(c=2), G(w=2, c=2)), "Ker Out In"
    ),
    "training_streams": _training(
        UNEVEN, G(h=2, c=2, k=2), tiles=(G(c=3), G(k=2), ONES), stationary="Out In Ker"
    ),
    "training_streams_b": _training(
        UNEVEN, G(h=2, k=2), tiles=(G(b=2), G(b=3), ONES), stationary="Ker Ker In"
    ),
    "training_streams_matrix": _training(
        MATRIX, G(b=2, k=2), tiles=(G(c=4), ONES, G(c=2)), stationary="Out In Out"
    ),
    "training_streams_up": _training(UP, G(h=2, c=2), tiles=(G(k=2), ONES, ONES), stationary="In In Out"),
    "training_rotated": _training(
        SMALL, G(h=2, c=2, k=2), tiles=(G(c=2), G(k=2), ONES), stationary="Out In Ker"
    ),
    "training_grouped": _training(GROUPED, G(g=2, h=2, k=2), "Ker"),
    "training_volume": _training(VOLUME, G(d=2, h=2, k=2), "In Out", (ONES, G(k=2), ONES), "Ker"),
    "training_first": _training(UNEVEN, G(h=2, c=2, k=2), gradients="Ker"),
    "training_first_streams": _training(
        SMALL, G(b=2, c=2, k=2), "", (G(c=2), G(k=2)), "Out In", gradients="Ker"
    ),
    "training_frozen": _training(MATRIX, G(b=2, c=2, k=2), gradients="In"),
    "training_up_first": _training(UP, G(h=2, c=2, k=2), gradients="Ker"),
    "training_up_frozen": _training(APART, G(g=2, h=2, k=2), gradients="In"),
    "training_spatial": _training(WIDE, G(h=4), swapped=True),
    "training_spatial_volume": _training(VOLUME, G(d=2, h=2, w=2)),
    "training_spatial_apart": _training(UNEVEN, G(h=2, w=3), "Out"),
    "training_line": _training(LINE, G(b=2, w=2, k=2)),
    "up_spatial": _plan(UP, G(h=2, c=2), pass_="backward-data"),
    "training_spread": _training(SPREAD, G(h=2, w=2, k=2)),
    "training_up": _training(UP, G(h=2, c=2, k=2)),
    "training_up_dker_first": _training(UP, G(b=2, c=2), "Ker", swapped=True),
    "training_apart": _training(APART, G(g=2, h=2, k=2), "Out"),
    "input_rows": replace(_plan(UNEVEN, G(h=2, c=2, k=2), "Out", G(c=2)), turned=("h",)),
    "input_rows_strided": replace(_plan(STRIDED, G(h=3, w=2), "Out", G(c=2)), turned=("h", "w")),
    "input_rows_panels": replace(_plan(UNEVEN, G(h=2, c=2, k=2), "Ker", G(h=2, w=2)), turned=("h",)),
    "back_input_rows": replace(_plan(RGB, G(h=2, k=4), "Ker", G(h=2), pass_="backward-data"), turned=("h",)),
    "filter_input_rows": replace(
        _plan(GROUPED, G(g=2, h=2, k=2), "Ker", G(b=2), pass_="backward-filter"), turned=("h",)
    ),
    "training_input_rows": replace(_training(UNEVEN, G(h=2, w=3), "Out"), turned=("h", "w")),
    "training_up_input_rows": replace(_training(UP, G(h=2, c=2, k=2)), turned=("h",)),
    "classes": replace(_plan(LINE, G(b=4, w=2), "Out", G(c=2)), classes=(("w", 2),)),
    "classes_filler": replace(_plan(ATROUS, G(b=3, h=2), "Ker", G(b=2)), classes=(("h", 3), ("w", 2))),
    "back_classes": replace(_plan(ATROUS, G(b=3, k=2), pass_="backward-data"), classes=(("h", 3),)),
    "training_classes": replace(_training(ATROUS, G(b=3, h=2), swapped=True), classes=(("h", 3), ("w", 2))),
    "training_classes_input_rows": replace(
        _training(ATROUS, G(b=3, h=2)), classes=(("h", 3), ("w", 2)), turned=("h",)
    ),
    "training_up_classes": replace(_training(UP_ATROUS, G(b=4, c=2)), classes=(("h", 2),)),
    "training_matrix": _training(MATRIX, G(b=2, c=2, k=2), "In Ker Out", (), "Ker"),
}
