"""The decisions of a schedule, each described once: how it is asked for, checked, stored, read back and told.

`PlanRequest`, the command line, plan files, ids, the one-line form, summaries, reports and the headers of
programs read `DECISIONS`. A new decision is one row here, a field of `Plan`, and a field of `PlanRequest` if
a user may ask for it. A decision with its usual value stays out of files and ids, so a new one changes none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from synth.base.errors import UsageError
from synth.base.ranges import MOST_PROCS
from synth.layer.axes import AXES, ROW_MAJOR, SPATIAL, Axis, Order, PerAxis, placement
from synth.layer.residue_classes import Classes, possible_counts

if TYPE_CHECKING:
    from synth.layer.layer import Layer
    from synth.layer.nest import Nest
    from synth.planning.plan import Plan
    from synth.planning.request import PlanRequest

Stationary = Literal["auto", "out", "in", "ker"]
STATIONARY: tuple[Stationary, ...] = get_args(Stationary)
MOST_PANELS = 2**40
EXAMPLE = "b=8 c=2 k=4; Out; c/4"  # of a plan in one line


@dataclass(frozen=True, kw_only=True)
class Option:
    """A field of `PlanRequest`, which has its default, and a flag of the commands that plan.

    name: of the field. about, example: what it means and how a value is written, for `--help`.
    typed: the text of the flag -> the value. switch: whether the flag takes no value.
    check, check_layer: raise `UsageError` where the value is out of range, contradicts another field, or does
        not fit the layer.
    network: whether it says something about the plan of a network.
    """

    name: str
    about: str
    example: str | None = None
    typed: Callable[[str], Any] | None = None
    choices: Sequence[str] | None = None
    switch: bool = False
    check: Callable[[PlanRequest], None] = lambda request: None
    check_layer: Callable[[PlanRequest, Layer], None] = lambda request, layer: None
    network: bool = False


@dataclass(frozen=True, kw_only=True)
class Decision(Option):
    """An option that a plan decides in a field of its own.

    key, kind: in the JSON of plan files and ids, with the type there. field: of `Plan`.
    usual: the value that goes without saying. always: whether plan files have it nevertheless.
    to_json, from_json: between the field and its JSON; the latter checks it and raises `UsageError`.
    to_line, from_line: the text that the one-line form has after `name`; such a text -> JSON.
    phrase: what reports and programs say of a value that is not usual.
    """

    key: str
    kind: Any
    field: str
    usual: Any = ()
    always: bool = False
    to_json: Callable[[Any], Any]
    from_json: Callable[[Any, Reading], Any]
    to_line: Callable[[Plan], str]
    from_line: Callable[[str], Any]
    phrase: Callable[[Plan], str]

    def of(self, plan: Plan) -> Any:
        """The value that a plan decides."""
        return getattr(plan, self.field)


@dataclass(frozen=True)
class Reading:
    """A plan that is being read: its layer, its grid as it is written, and the decisions that are known.

    Raises `UsageError` for what cannot be.
    """

    layer: Layer
    parts: Mapping[Axis, int]
    chosen: dict[str, Any] = field(default_factory=dict)  # field of `Plan` -> value

    @property
    def nest(self) -> Nest:
        """The nest with the classes and turned axes that are known."""
        nest = self.layer.nest.by_classes(self.chosen.get("classes", ()))
        return nest.turn(self.chosen.get("turned", ()))

    @property
    def grid(self) -> PerAxis:
        """The grid; blocks along no axis are empty."""
        return self.within(self.parts, self.nest.extents, "grid")

    def within(self, parts: Mapping[Axis, int], most: PerAxis, key: str) -> PerAxis:
        """Counts per axis, from 1 to `most`; an axis that is not named has 1."""
        return PerAxis(
            *(self.whole(parts.get(axis, 1), 1, getattr(most, axis), f"{key}.{axis}") for axis in AXES)
        )

    def whole(self, value: int, least: int, most: int, key: str) -> int:
        """The value, which must lie in a range."""
        if not least <= value <= most:
            raise UsageError(f"{key} is {str(value)[:60]}, not a whole number from {least} to {most}")
        return value


def decided(plan: Plan, file: bool = False) -> dict[str, Any]:
    """Key -> JSON of the decisions of a plan, without the usual ones; `file`: as plan files have them."""
    return {
        each.key: each.to_json(each.of(plan))
        for each in reversed(DECISIONS)
        if each.of(plan) != each.usual or (file and each.always)
    }


def phrases(plan: Plan) -> list[str]:
    """A sentence for each decision of a plan that is not usual."""
    return [each.phrase(plan) for each in DECISIONS if each.of(plan) != each.usual]


def is_whole(value: object, most: int) -> bool:
    """Whether a value is an integer, and no bool, from 1 to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


# -- texts of flags ---------------------------------------------------------------------------------------


def names_of(text: str) -> list[str]:
    """`b, h,k` -> ["b", "h", "k"]."""
    return [name.strip() for name in text.split(",")]


def counts_of(text: str, sign: str = "=") -> dict[Axis, int]:
    """Axis -> count, from `b=4,k=2` or `b=4 k=2`. Raises `UsageError`."""
    counts: dict[Axis, int] = {}
    for item in text.replace(",", " ").split():
        axis, found, count = item.partition(sign)
        if axis not in AXES or not found or not count.isdecimal() or len(count) > 18 or axis in counts:
            raise UsageError(f"{item!r} is no count of an axis; write axes like b{sign}4, each once")
        counts[axis] = int(count)
    return counts


def sides_of(text: str) -> dict[str, str]:
    """`h=in,w=out` -> {"h": "in", "w": "out"}. Raises `UsageError`."""
    pairs = [item.strip().partition("=") for item in text.split(",")] if text else []
    rows = {axis: side for axis, _, side in pairs}
    if len(rows) < len(pairs):
        raise UsageError(f"{text!r} names an axis twice; write it like h=in,w=out")
    return rows


# -- the grid ---------------------------------------------------------------------------------------------


def _check_grid(request: PlanRequest) -> None:
    if request.grid is not None and not isinstance(request.grid, Mapping):
        raise UsageError(f'grid is {request.grid!r}; write it like {{"b": 4, "k": 2}}')


def _grid_fits(request: PlanRequest, layer: Layer) -> None:
    extents = _with_classes(layer, request.classes or {}).extents
    for axis, parts in (request.grid or {}).items():
        if axis not in AXES:
            raise UsageError(f"grid has no axis {axis!r}; the axes are {', '.join(AXES)}")
        most = getattr(extents, axis)
        if isinstance(parts, bool) or not isinstance(parts, int):
            raise UsageError(f"grid {axis}={parts!r} is no count; it must be a whole number from 1 to {most}")
        if not 1 <= parts <= most:
            raise UsageError(f"grid {axis}={parts} cannot cut N_{axis}={most}; it must be from 1 to {most}")


GRID = Option(
    name="grid",
    about="processes along some axes (default: searched)",
    example="b=4,k=2",
    typed=counts_of,
    check=_check_grid,
    check_layer=_grid_fits,
)


# -- stationary tensor and panels -------------------------------------------------------------------------


def _check_stationary(request: PlanRequest) -> None:
    if request.stationary not in STATIONARY:
        raise UsageError(f"stationary is {request.stationary!r}; it must be one of {', '.join(STATIONARY)}")


def _check_panels(request: PlanRequest) -> None:
    if request.panels is not None and not is_whole(request.panels, MOST_PANELS):
        raise UsageError(f"panels is {request.panels!r}; it must be from 1 to {MOST_PANELS}")


STATIONARY_TENSOR = Option(
    name="stationary",
    about="the tensor that stays in memory for the whole loop (default: whichever moves the fewest words)",
    choices=STATIONARY,
    check=_check_stationary,
)
PANELS = Option(
    name="panels",
    about="panels of the streaming loop (default: as many as overlap and memory need)",
    example="N",
    typed=int,
    check=_check_panels,
)


# -- residue classes --------------------------------------------------------------------------------------


def _check_classes(request: PlanRequest) -> None:
    classes = request.classes
    if classes is None:
        return
    if not isinstance(classes, Mapping):
        raise UsageError(f'classes is {classes!r}; write it like {{"h": 4, "w": 1}}')
    for axis, count in classes.items():
        if axis not in SPATIAL or not is_whole(count, MOST_PROCS):
            raise UsageError(f"classes {axis}={count!r} is not a number along d, h or w, like h=4")
    if set(classes.values()) - {1} and (request.objective != "words" or request.strategy is not None):
        other = f"strategy {request.strategy}" if request.strategy else f"objective {request.objective}"
        raise UsageError(f"{other} knows no residue classes; leave out classes, or take the fewest words")


def _with_classes(layer: Layer, counts: Mapping[Any, int]) -> Nest:
    """The nest with some classes. Raises `UsageError` where it cannot have them."""
    asked = {axis: count for axis, count in counts.items() if count > 1}
    for axis, count in asked.items():
        window = layer.nest.windows[axis]
        possible = possible_counts(window)
        if count not in possible:
            most = ", ".join(map(str, possible[:16]))
            raise UsageError(
                f"classes {axis}={count}: {layer.name} has stride {window.stride} and dilation "
                f"{window.dilation} along {axis} (common factors divided out), and {window.out} output "
                f"rows; its numbers of classes are {most}"
            )
    return layer.nest.by_classes(tuple((axis, asked[axis]) for axis in SPATIAL if axis in asked))


def _read_classes(counts: Mapping[Axis, int], reading: Reading) -> Classes:
    if set(counts) - set(SPATIAL) or min(counts.values(), default=2) < 2:
        raise UsageError(f"classes {dict(counts)} are not numbers from 2 along d, h or w")
    _with_classes(reading.layer, counts)
    return tuple((axis, counts[axis]) for axis in SPATIAL if axis in counts)


def _classes_phrase(plan: Plan) -> str:
    counts = " x ".join(f"{count} along {axis}" for axis, count in plan.classes)
    rows, classes = plan.nest.undivided.windows, plan.nest.windows
    filled = [
        f"{axis} {rows[axis].out} to {count * classes[axis].out}"
        for axis, count in plan.classes
        if count * classes[axis].out > rows[axis].out
    ]
    more = f"; output rows with filler: {', '.join(filled)}" if filled else ""
    return f"residue classes of the dilation, {counts}, are samples: axis b counts both{more}"


CLASSES = Decision(
    name="classes",
    about="residue classes of a dilated layer along an axis, a divisor of the dilation (default: "
    "whichever moves the fewest words)",
    example="h=4,w=1",
    typed=counts_of,
    check=_check_classes,
    key="classes",
    kind=dict[Axis, int],
    field="classes",
    to_json=dict,
    from_json=_read_classes,
    to_line=lambda plan: ",".join(f"{axis}={count}" for axis, count in plan.classes),
    from_line=counts_of,
    phrase=_classes_phrase,
)


# -- cuts by input rows -----------------------------------------------------------------------------------


def _no_side(axis: object, side: object) -> UsageError:
    return UsageError(f"rows {axis}={side} is not in or out along d, h or w, like h=in")


def _check_rows(request: PlanRequest) -> None:
    rows = request.rows
    if rows is None:
        return
    if not isinstance(rows, Mapping):
        raise UsageError(f'rows is {rows!r}; write it like {{"h": "in", "w": "out"}}')
    for axis, side in rows.items():
        if axis not in SPATIAL or side not in ("in", "out"):
            raise _no_side(axis, side)
    if "in" in rows.values() and request.objective != "words":
        raise UsageError(
            f"objective {request.objective} knows cuts by output rows only; leave out rows, or take words"
        )


def _share_rows(nest: Nest, axes: Iterable[str], name: str) -> None:
    """Raise `UsageError` for an axis along which blocks cannot be cut by input rows."""
    for axis in axes:
        if axis not in nest.turnable:
            raise UsageError(
                f"rows {axis}=in: blocks of {name} share no rows along {axis}, so there is no halo "
                "to choose; leave it out"
            )


def _rows_fit(request: PlanRequest, layer: Layer) -> None:
    asked = [axis for axis, side in (request.rows or {}).items() if side == "in"]
    _share_rows(_with_classes(layer, request.classes or {}), asked, layer.name)


def _read_turned(axes: Sequence[Axis], reading: Reading) -> tuple[Axis, ...]:
    _share_rows(reading.nest, axes, reading.layer.name)
    return tuple(axis for axis in SPATIAL if axis in axes)


def _turned_of(text: str) -> list[str]:
    rows = sides_of(text)
    for axis, side in rows.items():
        if side not in ("in", "out"):
            raise _no_side(axis, side)
    return [axis for axis, side in rows.items() if side == "in"]


def _turned_phrase(plan: Plan) -> str:
    return f"blocks along {', '.join(plan.turned)} are cut by input rows: the halo is of Out"


ROWS = Decision(
    name="rows",
    about="whether blocks are cut by input or by output rows (default: whichever moves the fewest words)",
    example="h=in,w=out",
    typed=sides_of,
    check=_check_rows,
    check_layer=_rows_fit,
    key="turned",
    kind=list[Axis],
    field="turned",
    to_json=list,
    from_json=_read_turned,
    to_line=lambda plan: ",".join(f"{axis}=in" for axis in plan.turned),
    from_line=_turned_of,
    phrase=_turned_phrase,
)


# -- the order of the ranks -------------------------------------------------------------------------------


def _check_order(request: PlanRequest) -> None:
    order = request.order
    if order is None:
        return
    if not isinstance(order, Sequence):
        raise UsageError(f"order is {order!r}; write axes, the last one fastest, like 'bhkc'")
    for axis in order:
        if axis not in AXES or list(order).count(axis) > 1:
            raise UsageError(
                f"order {','.join(map(str, order))} has {axis!r}; name each of {', '.join(AXES)} at most once"
            )


def _read_order(axes: Sequence[Axis], reading: Reading) -> Order:
    if sorted(axes) != sorted(AXES):
        raise UsageError(f"order does not name each of the axes {', '.join(AXES)} once")
    return placement(reading.grid, axes)


def _split(plan: Plan) -> list[Axis]:
    return [axis for axis in plan.order if getattr(plan.grid, axis) > 1]


def _whole_order(text: str) -> list[str]:
    """The axes that a text names, after all others."""
    names = names_of(text)
    return [*(axis for axis in AXES if axis not in names), *names]


def _order_phrase(plan: Plan) -> str:
    split = _split(plan)
    return f"ranks run by {', '.join(split)}, {split[-1]} fastest"


ORDER = Decision(
    name="order",
    about="grid axes in the order in which ranks are counted, the last one fastest",
    example="b,h,k,c",
    typed=names_of,
    check=_check_order,
    key="order",
    kind=list[Axis],
    field="order",
    usual=ROW_MAJOR,
    always=True,
    to_json=list,
    from_json=_read_order,
    to_line=lambda plan: ",".join(_split(plan)),
    from_line=_whole_order,
    phrase=_order_phrase,
)

# In the order in which they are read: a decision may depend on those before it.
DECISIONS: tuple[Decision, ...] = (CLASSES, ROWS, ORDER)
