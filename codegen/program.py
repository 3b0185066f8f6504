"""An IR close to the text of a program: every number and every name is decided, templates only place them.

`lower` makes a `Program` from a plan, `render` turns it into text. The statements of a pass are a tree of
small nodes; a node is rendered by the macro of its name in `templates/run.py.j2`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class TensorText:
    """The coordinate functions of one tensor."""

    name: str  # "In"
    var: str  # "in"
    dims: str  # "b, c, h, w"
    verb: str  # what a block does with it: "reads" or "adds to"
    owned: str  # a return statement, as are the next two
    touched: str  # empty: nothing asks
    member: str = ""  # place in the group, where `owned` uses that name
    carried: str = ""  # empty: what a rank owns is what it hands out
    carried_member: str = ""
    kept: str = ""  # `dims`, with _ where `carried` replaces an interval


@dataclass(frozen=True)
class Halo:
    """Widen the own share of In by the rows that neighbours own."""

    why: str
    axes: str
    framed: bool  # zeros that the kernel needs are laid around it


@dataclass(frozen=True)
class Bring:
    """How the panels of one tensor reach all ranks of a group."""

    tensor: str  # as words are counted: "Out"
    role: str  # what it is in this pass: "dOut"
    box: str  # the function that says what a block touches
    here: str  # the variable with what this rank carries
    carried: str  # the function that says which box that is
    group: str

    @property
    def var(self) -> str:
        """The beginning of the names of its variables."""
        return self.role.lower()


@dataclass(frozen=True)
class Gather(Bring):
    """Bring the whole slice of a tensor before anything is computed."""

    why: str = ""
    phase: str = "expand"
    step: int = 0
    alone: bool = False  # it is waited for at once
    early: str = ""  # the pass that it is started for, by a function of its own


@dataclass(frozen=True)
class Start(Bring):
    """Start to bring in a panel."""


@dataclass(frozen=True)
class StartOwn(Bring):
    """Start to bring in a panel where ranks that share a slice use different ones."""

    tile: str  # the call that says what a `peer` works on


@dataclass(frozen=True)
class Fetch:
    """The function that starts to bring in all panels that one step waits for."""

    tile: str  # the call that says what this rank works on; empty: nothing asks
    body: tuple[Node, ...]


@dataclass(frozen=True)
class When:
    """Statements under a condition."""

    condition: str
    body: tuple[Node, ...]


@dataclass(frozen=True)
class Steps:
    """The loop over the tiles of the work block."""

    count: str
    body: tuple[Node, ...]


@dataclass(frozen=True)
class Receive:
    """Wait for the panels of this step, then start those of the next."""

    steps: str


@dataclass(frozen=True)
class Reduce:
    """How partial sums of the written tensor reach the ranks that sum them."""

    why: str
    tensor: str
    var: str
    box: str  # the function that says what a block touches
    carried: str
    group: str


@dataclass(frozen=True)
class HandOver(Reduce):
    """Reduce a panel onto the shares of a group."""


@dataclass(frozen=True)
class Finish(Reduce):
    """Reduce all that was written onto the shares of a group."""

    phase: str
    into: str  # "return", or the variable with the total; empty: a later function adds up


@dataclass(frozen=True)
class GiveBack:
    """Send the halo rows of dIn to their owners, who add them."""

    why: str
    axes: str
    result: str  # "return", or the variable with the outcome
    sums: str


@dataclass(frozen=True)
class Later:
    """What remains to be done once the caller wants the result, as a function that it is given."""

    about: str
    body: tuple[Node, ...]


@dataclass(frozen=True)
class Text:
    """Plain statements."""

    lines: tuple[str, ...]


Moves = Halo | Gather | Start | StartOwn | Fetch | Receive | HandOver | Finish | GiveBack
Node = Moves | When | Steps | Later | Text


@dataclass(frozen=True)
class Function:
    """One pass."""

    name: str  # "run", or the pass
    parameters: str
    about: tuple[str, ...]  # its docstring
    body: tuple[Node, ...]


class Call(NamedTuple):
    """One pass of a layer, called by it."""

    pass_: str  # as words are counted
    name: str  # of the function
    bound: str  # what the call binds
    arguments: str
    then: str  # the statement that waits for its sums, or leaves them to travel; empty: they are there


@dataclass(frozen=True)
class Layer:
    """The passes of a training step as one differentiable function.

    The first runs forward: forward of a convolution, backward_data of a transposed one. The gradients of
    what the layer is given and of Ker follow, in either order, or one of them.
    """

    given: str  # parameters: what the layer is given, and the gradient of what it gives
    gradient: str
    roles: tuple[str, str, str, str]  # "In", "Out", "dIn and dKer", "dOut"
    ahead: Call
    back: tuple[Call, ...]
    saved: tuple[str, ...]  # what waits for the backward passes
    early: bool  # Ker may be on its way before, and its gradient's sums after: a network asks for it
    brings: bool  # Ker is gathered before the first pass computes
    overlap: bool  # sums of the second pass travel while the third computes
    meanwhile: str  # that, in a sentence
    returned: str  # the gradients, as torch wants them
    operands: str  # of a run: what the layer is given and Ker, as torch is to differentiate them
    asked: str  # and those of them whose gradients are made

    @property
    def result(self) -> str:
        """The variable with what the layer gives."""
        return self.ahead.bound.split(", ")[0]


@dataclass(frozen=True)
class SkewedTile:
    """What a rank works on in a step of a pass where each begins with a panel of its own."""

    name: str  # the function
    pass_: str  # the entry of TILES and STEPS; empty: there is one pass
    first: str  # the statements that say where the rank at `at` begins
    tensors: str  # of which ranks are at different panels


@dataclass(frozen=True)
class Operand:
    """A tensor that the program is given."""

    role: str
    var: str
    owned: str
    shape: str
    windows: str  # ", windows" where it has rows that only a window reads; ", dims=2" for half types


@dataclass(frozen=True)
class Result:
    """A tensor that the program makes, and how one torch call makes it."""

    role: str
    var: str
    owned: str
    expected: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """Everything that the text of one program says."""

    title: str
    command: str
    plan: str
    header: tuple[str, ...]
    constants: tuple[str, ...]
    work: tuple[tuple[str, str], ...]  # axis -> expression of its interval
    skewed: tuple[SkewedTile, ...]
    tile: str  # "the block", "one loop", "nested loops" or "by pass"
    loop_axis: str
    asks_changes: bool
    tensors: tuple[TensorText, ...]
    gathers: bool
    reduces: bool
    functions: tuple[Function, ...]
    layer: Layer | None  # training
    module: str  # the class of `distributed_layer` that the program becomes; empty: it becomes a command
    operands: tuple[Operand, ...]
    results: tuple[Result, ...]
    windows: bool  # whether the layer has spatial dimensions
    idle: bool
