"""What a user may ask of the planner for a layer or a network: defaults and checks stand here once.

`synth.plan(...)` and the commands build the same `PlanRequest`; `derive` turns it into a plan. Its
`command_line` is the `synth` command that makes the same request. `OPTIONS` describes its fields; those that
are decisions of a schedule are described in `decisions`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, get_args

from synth.base.doors import option
from synth.base.errors import UsageError
from synth.base.flags import flag_words, portable_path
from synth.base.ranges import MOST_PROCS
from synth.base.units import as_bytes
from synth.base.work_balance import BALANCE, check_balance
from synth.layer.axes import AXES, Tensor
from synth.layer.passes import GRADIENTS, TASKS
from synth.planning.decisions import (
    CLASSES,
    EXAMPLE,
    GRID,
    ORDER,
    PANELS,
    ROWS,
    STATIONARY_TENSOR,
    Option,
    is_whole,
    names_of,
)
from synth.search.strategies import Strategy, strategy_named

if TYPE_CHECKING:
    from synth.layer.layer import Layer

P = ParamSpec("P")
R = TypeVar("R")
Objective = Literal["words", "time", "paper"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
# The stages of `derive`, for `--stop-after`.
STAGES = ("layer", "nest", "optimum", "grid", "distribution", "schedule", "plan")


@dataclass(frozen=True)
class PlanRequest:
    """A request for the plan of a layer or a network, checked.

    layer: a `Layer`, or the path of a layer file; of a network its name, or the path of its file.
    procs: processes, from 1 to 2^30, of a network to 2^20. The plan may leave a few idle, see `exact_procs`.
    memory: bytes per process, as a number or like "16GiB"; None for the machine's, or any amount.
    objective: "words" (the fewest that any process receives), "time" (seconds on `machine`) or, for a layer,
        "paper" (least Eq. 10 of SPAA'21, on exactly `procs` processes).
    balance: extra work that the most loaded process may do, as a fraction of the least.
    exact_procs: whether every process must work.
    pass_: "forward", "training" (forward and the gradients on one grid) or, for a layer, "backward-data" or
        "backward-filter".
    machine: a machine file, or the name of a shipped machine.
    gradients: the gradients that a training step computes: "in", "ker" or both.

    The others are for a layer alone:
    stationary: the tensor that stays in memory: "out", "in", "ker", or "auto".
    grid: fixed parts of the grid, e.g. {"b": 4, "k": 2}.
    strategy: the name of a strategy (`search.strategies`) within which the plan must stay, e.g. "2.5D".
    order: the axes as they run over the ranks, the last one fastest; None for row-major.
    panels: panels of the streaming loop; None for as many as overlap and memory ask for.
    rows: spatial axis -> whether blocks along it are cut by "in"put or by "out"put rows, e.g. {"h": "in"};
        None for whichever moves the fewest words. Of a transposed layer: rows of the convolution.
    classes: spatial axis -> into how many residue classes a dilated layer is divided along it, a divisor of
        the dilation, e.g. {"h": 4}; 1 for none. None for whichever moves the fewest words.
    as_: a whole plan in one line, as reports print it, e.g. "b=8 c=2 k=4; Out; c/4": nothing is searched.

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
    as_: str | None = None

    def __post_init__(self) -> None:
        self._check_source()
        if not is_whole(self.procs, MOST_PROCS):
            raise UsageError(f"procs is {self.procs!r}; it must be a whole number from 1 to {MOST_PROCS}")
        for each in OPTIONS:
            each.check(self)
        self._normalise()

    def _normalise(self) -> None:
        """Requests that ask for the same are equal, however they were written."""
        known = PlanRequest.gradients
        object.__setattr__(self, "gradients", tuple(name for name in known if name in self.gradients))
        for name in ("grid", "rows", "classes"):
            object.__setattr__(self, name, dict(getattr(self, name) or {}) or None)
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

    def check_layer(self, layer: Layer) -> None:
        """Raises `UsageError` where an option does not fit the layer."""
        for each in OPTIONS:
            each.check_layer(self, layer)

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

    def given(self, *options: Option) -> Option | None:
        """The first of some options that has not its default."""
        return next((each for each in options if getattr(self, each.name) != default_of(each)), None)

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


def default_of(option: Option) -> Any:
    """The value of an option that is not given."""
    return getattr(PlanRequest, option.name)


def asks(_: Callable[P, PlanRequest]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """A function that takes the arguments of `PlanRequest`, and is documented with them.

    `@asks(PlanRequest)` gives it the types of the arguments, too.
    """

    def signed(function: Callable[..., R]) -> Callable[P, R]:
        own, asked = inspect.signature(function), inspect.signature(PlanRequest)
        function.__signature__ = asked.replace(return_annotation=own.return_annotation)  # type: ignore[attr-defined]
        arguments = inspect.cleandoc(PlanRequest.__doc__ or "").split("\n\n")[1:-1]
        first, *rest = inspect.cleandoc(function.__doc__ or "").split("\n\n")
        function.__doc__ = "\n\n".join([first, *arguments, *rest])
        return function

    return signed


# -- checks -----------------------------------------------------------------------------------------------


def _check_memory(request: PlanRequest) -> None:
    as_bytes(request.memory)


def _memory_fits(request: PlanRequest, layer: Layer) -> None:
    limit_bytes = request.limit_bytes
    if limit_bytes is not None and limit_bytes < layer.nest.word_bytes:
        raise UsageError(f"memory is {limit_bytes} bytes; it must hold at least one {layer.dtype} word")


def _check_pass(request: PlanRequest) -> None:
    if request.pass_ not in TASKS:
        raise UsageError(f"pass is {request.pass_!r}; it must be one of {', '.join(TASKS)}")


def _check_gradients(request: PlanRequest) -> None:
    names = request.gradients
    if isinstance(names, str) or not names or not set(names) <= set(PlanRequest.gradients):
        raise UsageError(f"gradients is {names!r}; it must name in, ker or both")
    if set(names) != set(PlanRequest.gradients) and request.pass_ != "training":
        raise UsageError(
            f"gradients {','.join(names)} are those of a training step, not of pass {request.pass_}; "
            "leave them out or ask for pass training"
        )


def _check_objective(request: PlanRequest) -> None:
    if request.objective not in OBJECTIVES:
        raise UsageError(f"objective is {request.objective!r}; it must be one of {', '.join(OBJECTIVES)}")
    if request.objective == "paper" and request.strategy is not None:
        raise UsageError(f"objective paper chooses its own grid; leave out strategy {request.strategy}")
    if request.objective == "time" and request.machine is None:
        raise UsageError(
            "objective time needs a machine; name a file or a shipped one, as in "
            f"{option('machine', 'lassen')}"
        )


def _objective_fits(request: PlanRequest, layer: Layer) -> None:
    if request.objective == "paper" and (request.grid or request.stationary not in ("auto", "out")):
        raise UsageError(
            f"objective paper chooses grid and stationary tensor of {layer.name}; leave them out"
        )


def _check_strategy(request: PlanRequest) -> None:
    strategy = request.named_strategy
    if strategy is None:
        return
    for axis, parts in (request.grid or {}).items():
        if axis in AXES and axis not in strategy.axes and parts != 1:
            raise UsageError(
                f"strategy {strategy.name} does not split axis {axis}; leave {axis}={parts} out of grid"
            )
    own = strategy.stationary
    if own is not None and request.stationary not in ("auto", own.lower()):
        raise UsageError(f"strategy {strategy.name} keeps {own} stationary, not {request.stationary}")


def _check_line(request: PlanRequest) -> None:
    if request.as_ is None:
        return
    if not isinstance(request.as_, str):
        raise UsageError(f'as is {request.as_!r}; write a plan like "{EXAMPLE}"')
    if request.objective != "words":
        raise UsageError(f"objective {request.objective} searches a plan; leave it out, or {option('as_')}")
    also = request.given(*SEARCHED)
    if also is not None:
        raise UsageError(
            f"{option('as_', request.as_)} is a whole plan; leave out "
            f"{option(also.name, getattr(request, also.name))}"
        )


# -- the table --------------------------------------------------------------------------------------------

# Every field of `PlanRequest` from `memory` on, in the order in which they are checked.
OPTIONS: tuple[Option, ...] = (
    Option(
        name="memory",
        about="bytes per process, e.g. 16GiB",
        example="SIZE",
        check=_check_memory,
        check_layer=_memory_fits,
        network=True,
    ),
    GRID,
    STATIONARY_TENSOR,
    Option(
        name="balance",
        about="extra multiply-adds that the busiest process may do so that fewer words move, as a fraction "
        f"(default {BALANCE:.2f})",
        example="F",
        typed=float,
        check=lambda request: check_balance(request.balance),
        network=True,
    ),
    Option(name="exact_procs", about="leave no process idle", switch=True, network=True),
    Option(
        name="pass_",
        about="what is computed; training: all passes on one grid",
        choices=TASKS,
        check=_check_pass,
        network=True,
    ),
    PANELS,
    Option(
        name="gradients",
        about="of a training step: ker for a network's first layer, in for frozen weights (default: both)",
        example="in,ker",
        typed=names_of,
        check=_check_gradients,
        network=True,
    ),
    ORDER,
    Option(
        name="objective",
        about="the fewest words received (the default), the least time on --machine, or the least cost "
        "by Eq. 10 of the paper (Li et al., SPAA'21)",
        choices=OBJECTIVES,
        check=_check_objective,
        check_layer=_objective_fits,
        network=True,
    ),
    Option(
        name="machine",
        about="machine file, or the name of a shipped machine",
        example="FILE",
        network=True,
    ),
    Option(
        name="strategy",
        about="the best plan of a layer within a named strategy, e.g. data or 2.5D",
        example="NAME",
        check=_check_strategy,
    ),
    ROWS,
    CLASSES,
    Option(
        name="as_",
        about="a whole plan in one line, as reports print it; nothing is searched",
        example="PLAN",
        check=_check_line,
    ),
)
# Options that tell the search what to look for: a plan that is given whole leaves none of them open.
SEARCHED = tuple(each for each in OPTIONS if not each.network and each.name != "as_")
ALONE = tuple(each for each in OPTIONS if not each.network)  # options of a layer, not of a network
