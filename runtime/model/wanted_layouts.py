"""The layouts in which the planned layers of a network read their inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from torch import fx, nn

from synth.runtime.comm.layout import Layout, even
from synth.runtime.grid.boxes import first_rows, volume
from synth.runtime.grid.ranks import Ranks
from synth.runtime.kernels.context import Context
from synth.runtime.layers.distributed_layer import DistributedLayer
from synth.runtime.layers.layer_io import with_unread_rows
from synth.runtime.layers.planned_layer import PlannedBoxes, merged_runs
from synth.runtime.operators.call import Call, node_shape
from synth.runtime.operators.table import Kind, Operator, Operators

Make = Callable[[str, nn.Module, tuple[int, ...], Context], DistributedLayer | None]
# what keeps the shape of its input and computes it where it lies
IN_PLACE: tuple[Kind, ...] = (
    *("elementwise", "same", "prelu", "dropout"),
    *("batchnorm", "groupnorm", "instancenorm"),
)


class PlannedLayers:
    """The distributed layers of calls, each made once.

    make: the planned layer for a name, a module, the shape of its input and the
        context of the network, or None.
    """

    def __init__(self, make: Make, context: Context) -> None:
        self.make, self.context = make, context
        self._ready: dict[str, DistributedLayer | None] = {}

    def made(
        self, call: Call, operator: Operator, whole: tuple[int, ...]
    ) -> DistributedLayer | None:
        """The distributed layer of a call, made once."""
        name = call.node.name
        if name not in self._ready:
            self._ready[name] = self.make(name, operator.module, whole, self.context)
        return self._ready[name]

    def take(self, call: Call) -> None:
        """Forget the layer of a call, which its step holds from now on."""
        del self._ready[call.node.name]


class WantedLayouts:
    """The layouts in which planned layers read their inputs.

    places: node -> the boxes of all ranks before and after a layer without weights.
    """

    def __init__(
        self,
        operators: Operators,
        planned: PlannedLayers,
        places: Mapping[str, PlannedBoxes],
        ranks: Ranks,
    ) -> None:
        self.operators, self.planned = operators, planned
        self.places, self.ranks = places, ranks

    def of_input(self, node: fx.Node) -> Layout:
        """Where the first planned layer owns its input, or an even layout.

        A row that the layer does not read belongs to the owner of the row before it.
        """
        whole = node_shape(node)
        first = next((user for user in node.users if user.op != "output"), None)
        wanted = None if first is None else self._wanted_by(first, whole, True)
        wanted = wanted or self._by_channels(node) or self._by_rows(node)
        return wanted or even(whole, self.ranks)

    def _by_channels(self, node: fx.Node) -> Layout | None:
        """Where the first planned layer wants some channels of an input, as a half.

        It may read them behind calls that keep all other dimensions. None where it cuts
        channels, or where there is no such layer.
        """
        whole = node_shape(node)
        if len(whole) < 3:
            return None
        found = self._first_behind(
            node, lambda shape: shape[:1] + shape[2:] == whole[:1] + whole[2:]
        )
        if found is None:
            return None
        cut = {box[1] for box in found.boxes if volume(box)} - {(0, found.whole[1])}
        boxes = ((box[0], (0, whole[1]), *box[2:]) for box in found.boxes)
        return None if cut else found.with_boxes(whole, boxes)

    def _by_rows(self, node: fx.Node) -> Layout | None:
        """Where the first planned layer behind an input cuts rows of about its extents.

        As of faces of a sphere that are padded by rows of others. None where it cuts
        samples or channels, or where there is no such layer.
        """
        found = self._first_behind(node, lambda shape: True)
        return None if found is None else _with_rows_of(found, node_shape(node))

    def _first_behind(
        self, node: fx.Node, follows: Callable[[tuple[int, ...]], bool]
    ) -> Layout | None:
        """What the first planned layer behind a value wants of its own input.

        follows: whether the readers of a result, by its shape, are looked at.
        """
        seen, waiting = {node}, [node]
        for here in waiting:
            for user in here.users:
                found = self._wanted_by(user, node_shape(here), True)
                if found is not None:
                    return found
                called = user.op.startswith("call") and user not in seen
                if called and follows(node_shape(user)):
                    seen.add(user)
                    waiting.append(user)
        return None

    def by_reader(self, node: fx.Node) -> Layout | None:
        """Where the one layer that reads a value wants it.

        Between the two there may be calls that compute a value where it lies, or that
        drop its single positions. None where there is no such layer.
        """
        whole = here = node_shape(node)
        found: Layout | None = None
        while len(node.users) == 1 and found is None:
            (node,) = node.users
            place = self.places.get(node.name)
            if place is not None:
                found = Layout(here, place.before, self.ranks)
            elif self._in_place(node):
                here = node_shape(node)
            else:
                found = self._wanted_by(node, here)
                break
        if found is None:
            return None
        single = ((0, 1),) * (len(whole) - len(here))
        return found.with_boxes(whole, ((*box, *single) for box in found.boxes))

    def _in_place(self, node: fx.Node) -> bool:
        """Whether a call computes its input where it lies, but for single positions."""
        if not node.op.startswith("call"):
            return False
        call = self.operators.call(node)
        if len(call.inputs) > 1:
            return False
        kind, before = self.operators.operator(call).kind, call.shapes[0]
        single = kind == "flatten" and math.prod(before[2:]) == 1
        return single or (kind in IN_PLACE and before == call.out)

    def _wanted_by(
        self, node: fx.Node, whole: tuple[int, ...], unread: bool = False
    ) -> Layout | None:
        """What a planned layer owns of its input; None where that is not all of it.

        unread: rows that it does not read are added.
        """
        if not node.op.startswith("call"):
            return None
        call = self.operators.call(node)
        operator = self.operators.operator(call)
        if operator.kind != "layer":
            return None
        made = self.planned.made(call, operator, whole)
        if made is None:
            return None
        own = merged_runs(made.input) if made.grouped else made.input
        if own is None or whole != own.whole:
            return None
        transposed = made.program.transposed_rows is not None  # it reads every row
        windows = () if transposed else tuple(made.program.windows.values())
        plain = len(whole) - len(windows)
        if all(w.size == n for w, n in zip(windows, whole[plain:], strict=True)):
            return own
        if not unread:
            return None
        boxes = (
            (*box[:plain], *with_unread_rows(box[plain:], windows, whole[plain:]))
            for box in own.boxes
        )
        return own.with_boxes(whole, boxes)


def _with_rows_of(layer: Layout, whole: tuple[int, ...]) -> Layout | None:
    """A layout that cuts the last dimensions as a layer does, which cuts no others."""
    rows = len(layer.whole) - 2
    if rows < 1 or len(whole) < rows + 1:
        return None
    last, kept = layer.whole[2:], len(whole) - rows
    near = all(n // 2 < m <= 2 * n for n, m in zip(last, whole[kept:], strict=True))
    full = tuple((0, n) for n in layer.whole[:2])
    if not near or any(box[:2] != full for box in layer.boxes if volume(box)):
        return None
    boxes = [
        (
            *((0, n) for n in whole[:kept]),
            *map(first_rows, box[2:], last, whole[kept:]),
        )
        if volume(box)
        else ((0, 0),) * len(whole)
        for box in layer.boxes
    ]
    return layer.with_boxes(whole, boxes)
