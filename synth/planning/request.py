"""What a user may ask of the planner for one layer: every default and every check stands here once.

`synth.plan(...)` and the commands build the same `PlanRequest`; `derive` turns it into a plan. Its
`command_line` is the `synth` command that makes the same request.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, TypedDict, get_args

from synth.base.doors import option
from synth.base.errors import UsageError
from synth.base.flags import flag_words, portable_path
from synth.base.units import as_bytes
from synth.base.work_balance import BALANCE, check_balance
from synth.layer.axes import AXES, SPATIAL, Tensor
from synth.layer.passes import GRADIENTS, TASKS
from synth.layer.residue_classes import possible_counts
from synth.search.strategies import Strategy, strategy_named

if TYPE_CHECKING:
    from synth.layer.layer import Layer
    from synth.layer.nest import Nest

Objective = Literal["words", "time", "paper"]
Stationary = Literal["auto", "out", "in", "ker"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
STATIONARY: tuple[Stationary, ...] = get_args(Stationary)
# The stages of `derive`, for `--stop-after`.
STAGES = ("layer", "nest", "optimum", "grid", "distribution", "schedule", "plan")
MOST_PROCS = 2**30
MOST_PANELS = 2**40


class Options(TypedDict, total=False):
    """The keyword arguments of `plan`: fields of `PlanRequest`."""

    objective: str
    stationary: str
    grid: Mapping[str, int] | None
    balance: float
    exact_procs: bool
    pass_: str
    machine: str | os.PathLike[str] | None
    strategy: str | None
    order: Sequence[str] | None
    panels: int | None
    gradients: Sequence[str]
    rows: Mapping[str, str] | None
    classes: Mapping[str, int] | None


@dataclass(frozen=True)
class PlanRequest:
    """A request for the plan of one layer, checked.

    layer: a `Layer`, or the path of a layer file.
    procs: processes; the plan may leave a few idle, see `exact_procs`.
    memory: bytes per process, as a number or like "16GiB"; None for the machine's, or any amount.
    objective: "words" (fewest received words, exact), "paper" (least Eq. 10 of SPAA'21, on exactly `procs`
        processes) or "time" (fewest seconds on `machine`).
    stationary: the stationary tensor, or "auto".
    grid: fixed parts of the grid, e.g. {"b": 4, "k": 2}.
    balance: extra work that the most loaded process may do, as a fraction.
    exact_procs: whether every process must work.
    pass_: what the plan computes; "training" is forward and the gradients on one grid.
    machine: a machine file, or the name of a shipped machine.
    strategy: the name of a strategy (`search.strategies`) within which the plan must stay, e.g. "2.5D".
    order: the axes as they run over the ranks, the last one fastest; None for row-major.
    panels: panels of the streaming loop; None for as many as overlap and memory ask for.
    gradients: the gradients that a training step computes: "in", "ker" or both.
    rows: spatial axis -> whether blocks along it are cut by "in"put or by "out"put rows, e.g. {"h": "in"};
        None for whichever moves the fewest words. Of a transposed layer: rows of the convolution.
    classes: spatial axis -> into how many residue classes a dilated layer is divided along it, a divisor of
        the dilation, e.g. {"h": 4}; 1 for none. None for whichever moves the fewest words.

    Raises `UsageError` for a value out of range and for values that contradict each other. What depends on
    the layer is checked by `check_layer`.
    """

    layer: Layer | str | os.PathLike[str]
    procs: int
    memory: int | str | None = None
    objective: str = "words"
    stationary: str = "auto"
    grid: Mapping[str, int] | None = None
    balance: float = BALANCE
    exact_procs: bool = False
    pass_: str = "forward"
    machine: str | os.PathLike[str] | None = None
    strategy: str | None = None
    order: Sequence[str] | None = None
    panels: int | None = None
    gradients: Sequence[str] = tuple(tensor.lower() for tensor in GRADIENTS)
    rows: Mapping[str, str] | None = None
    classes: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        self._check_source()
        as_bytes(self.memory)
        if self.grid is not None and not isinstance(self.grid, Mapping):
            raise UsageError(f'grid is {self.grid!r}; write it like {{"b": 4, "k": 2}}')
        if not _is_whole(self.procs, MOST_PROCS):
            raise UsageError(f"procs is {self.procs!r}; it must be a whole number from 1 to {MOST_PROCS}")
        if self.stationary not in STATIONARY:
            raise UsageError(f"stationary is {self.stationary!r}; it must be one of {', '.join(STATIONARY)}")
        check_balance(self.balance)
        if self.pass_ not in TASKS:
            raise UsageError(f"pass is {self.pass_!r}; it must be one of {', '.join(TASKS)}")
        if self.panels is not None and not _is_whole(self.panels, MOST_PANELS):
            raise UsageError(f"panels is {self.panels!r}; it must be from 1 to {MOST_PANELS}")
        self._check_gradients()
        self._check_order()
        self._check_objective()
        self._check_strategy()
        self._check_rows()
        self._check_classes()
        self._normalise()

    def _normalise(self) -> None:
        """Requests that ask for the same are equal, however they were written."""
        known = PlanRequest.gradients
        object.__setattr__(self, "gradients", tuple(name for name in known if name in self.gradients))
        object.__setattr__(self, "grid", dict(self.grid) if self.grid else None)
        object.__setattr__(self, "rows", dict(self.rows) if self.rows else None)
        object.__setattr__(self, "classes", dict(self.classes) if self.classes else None)
        object.__setattr__(self, "balance", float(self.balance))
        if self.named_strategy is not None:
            object.__setattr__(self, "strategy", self.named_strategy.name)
        if self.order is not None:
            object.__setattr__(self, "order", tuple(self.order))

    def _check_source(self) -> None:
        if isinstance(self.layer, str | os.PathLike):
            return
        from synth.layer.layer import Layer

        if not isinstance(self.layer, Layer):
            raise UsageError(f"layer is {self.layer!r}; give a Layer, or the path of a layer file")

    def _check_gradients(self) -> None:
        names = self.gradients
        if isinstance(names, str) or not names or not set(names) <= set(PlanRequest.gradients):
            raise UsageError(f"gradients is {names!r}; it must name in, ker or both")
        if set(names) != set(PlanRequest.gradients) and self.pass_ != "training":
            raise UsageError(
                f"gradients {','.join(names)} are those of a training step, not of pass {self.pass_}; "
                "leave them out or ask for pass training"
            )

    def _check_order(self) -> None:
        if self.order is None:
            return
        if not isinstance(self.order, Sequence):
            raise UsageError(f"order is {self.order!r}; write axes, the last one fastest, like 'bhkc'")
        for axis in self.order:
            if axis not in AXES or list(self.order).count(axis) > 1:
                raise UsageError(
                    f"order {','.join(map(str, self.order))} has {axis!r}; "
                    f"name each of {', '.join(AXES)} at most once"
                )

    def _check_objective(self) -> None:
        if self.objective not in OBJECTIVES:
            raise UsageError(f"objective is {self.objective!r}; it must be one of {', '.join(OBJECTIVES)}")
        if self.objective == "paper" and self.strategy is not None:
            raise UsageError(f"objective paper chooses its own grid; leave out strategy {self.strategy}")
        if self.objective == "time" and self.machine is None:
            raise UsageError(
                "objective time needs a machine; name a file or a shipped one, as in "
                f"{option('machine', 'lassen')}"
            )

    def _check_rows(self) -> None:
        if self.rows is None:
            return
        if not isinstance(self.rows, Mapping):
            raise UsageError(f'rows is {self.rows!r}; write it like {{"h": "in", "w": "out"}}')
        for axis, side in self.rows.items():
            if axis not in SPATIAL or side not in ("in", "out"):
                raise UsageError(f"rows {axis}={side} is not in or out along d, h or w, like h=in")
        if "in" in self.rows.values() and self.objective != "words":
            raise UsageError(
                f"objective {self.objective} knows cuts by output rows only; leave out rows, or take words"
            )

    def _check_classes(self) -> None:
        if self.classes is None:
            return
        if not isinstance(self.classes, Mapping):
            raise UsageError(f'classes is {self.classes!r}; write it like {{"h": 4, "w": 1}}')
        for axis, count in self.classes.items():
            if axis not in SPATIAL or not _is_whole(count, MOST_PROCS):
                raise UsageError(f"classes {axis}={count!r} is not a number along d, h or w, like h=4")
        if set(self.classes.values()) - {1} and (self.objective != "words" or self.strategy is not None):
            other = f"strategy {self.strategy}" if self.strategy else f"objective {self.objective}"
            raise UsageError(f"{other} knows no residue classes; leave out classes, or take the fewest words")

    def _check_strategy(self) -> None:
        strategy = self.named_strategy
        if strategy is None:
            return
        for axis, parts in (self.grid or {}).items():
            if axis in AXES and axis not in strategy.axes and parts != 1:
                raise UsageError(
                    f"strategy {strategy.name} does not split axis {axis}; leave {axis}={parts} out of grid"
                )
        own = strategy.stationary
        if own is not None and self.stationary not in ("auto", own.lower()):
            raise UsageError(f"strategy {strategy.name} keeps {own} stationary, not {self.stationary}")

    def check_layer(self, layer: Layer) -> None:
        """Raises `UsageError` where memory, grid or objective do not fit the layer."""
        limit_bytes, extents = self.limit_bytes, self._checked_nest(layer).extents
        if limit_bytes is not None and limit_bytes < layer.nest.word_bytes:
            raise UsageError(f"memory is {limit_bytes} bytes; it must hold at least one {layer.dtype} word")
        for axis, parts in (self.grid or {}).items():
            if axis not in AXES:
                raise UsageError(f"grid has no axis {axis!r}; the axes are {', '.join(AXES)}")
            most = getattr(extents, axis)
            if isinstance(parts, bool) or not isinstance(parts, int):
                raise UsageError(
                    f"grid {axis}={parts!r} is no count; it must be a whole number from 1 to {most}"
                )
            if not 1 <= parts <= most:
                raise UsageError(
                    f"grid {axis}={parts} cannot cut N_{axis}={most}; it must be from 1 to {most}"
                )
        for axis in (axis for axis, side in (self.rows or {}).items() if side == "in"):
            if axis not in self._checked_nest(layer).turnable:
                raise UsageError(
                    f"rows {axis}=in: blocks of {layer.name} share no rows along {axis}, so there is no halo "
                    "to choose; leave it out"
                )
        if self.objective == "paper" and (self.grid or self.stationary not in ("auto", "out")):
            raise UsageError(
                f"objective paper chooses grid and stationary tensor of {layer.name}; leave them out"
            )

    def _checked_nest(self, layer: Layer) -> Nest:
        """The nest with the classes that the request fixes. Raises `UsageError` where it cannot have them."""
        asked = {axis: count for axis, count in (self.classes or {}).items() if count > 1}
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

    @property
    def limit_bytes(self) -> int | None:
        """The memory limit per process."""
        return as_bytes(self.memory)

    @property
    def gradient_tensors(self) -> tuple[Tensor, ...]:
        """The tensors whose gradients a training step computes."""
        return tuple(tensor for tensor in GRADIENTS if tensor.lower() in self.gradients)

    @property
    def named_strategy(self) -> Strategy | None:
        """The strategy that `strategy` names. Raises `UsageError` for an unknown name."""
        return None if self.strategy is None else strategy_named(self.strategy)

    def command_line(self, command: str = "plan") -> list[str]:
        """The words of the `synth` command that makes this request; what has its default is left out.

        Paths are those of `portable_path`. Raises `UsageError` where the layer is not a file.
        """
        if not isinstance(self.layer, str | os.PathLike):
            raise UsageError("a layer that was built in Python has no command line; write a layer file")
        words = ["synth", command, portable_path(self.layer), "--procs", str(self.procs)]
        for field in fields(self)[2:]:
            value = getattr(self, field.name)
            if value != field.default:
                words += flag_words(field.name, value)
        return words


def _is_whole(value: object, most: int) -> bool:
    """Whether a value is an integer, and no bool, from 1 to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
