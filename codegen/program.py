"""An IR close to the text of a program: every number and name is decided here, templates only place them.

`lower` makes a `Program` from a plan, `render` turns it into text. The statements of a pass are a tree of
small nodes; a node is rendered by the macro of its name in `templates/statements.py.j2`. Fields typed `str`
hold Python text: a name, an expression or a statement. Nothing ever searches in such a text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class IndexFunction:
    """A function from a rank's coordinates, or from a block of the nest, to a box."""

    name: str
    parameter: str  # "at" or "block"
    about: str  # its docstring
    body: tuple[str, ...]


@dataclass(frozen=True)
class BindGroup:
    """Name the group of a tensor, and where the words received in it are counted."""

    why: str
    var: str  # what is bound
    group: str  # the entry of GROUP_AXES
    context: str  # the traffic counter
    phase: str
    tensor: str  # as words are counted: "Out" also for dOut


@dataclass(frozen=True)
class FetchRows:
    """Widen the shard of a framed tensor by the rows that neighbours own."""

    why: str
    var: str  # "in": the beginning of the variables' names
    owned: str  # the function that says which box this rank owns
    carried: str  # and with its halo
    axes: str
    tensor: str
    padded: bool  # the zeros that the kernel needs are laid around it
    in_room: bool  # the shard may live in a buffer with ghost rows
    step: int  # its position among the exchanges of a pass


@dataclass(frozen=True)
class Gathered:
    """What the gather of a tensor needs: names that all forms of it share."""

    var: str  # "dout": the beginning of the variables' names
    box: str  # the function that says what a block touches
    own: str  # the variable with what this rank carries
    carried: str  # the function that says which box that is
    group: str  # the variable with the group


@dataclass(frozen=True)
class GatherSlice(Gathered):
    """Start to gather the whole slice of a tensor."""

    step: int  # its position in the phase
    wait: bool  # at once, as no other gather starts first
    returned: bool  # the caller waits: the statement is all that a function does


@dataclass(frozen=True)
class GatherPanel(Gathered):
    """Start to gather the panel that all ranks of a group use in a step."""

    role: str  # the entry of `pending`: "dOut"


@dataclass(frozen=True)
class GatherRotated(Gathered):
    """Start to gather the panel of a step where each rank of a group uses another one."""

    role: str
    tile: str  # the call that says what a `peer` works on


@dataclass(frozen=True)
class Fetch:
    """The function that starts to gather the panels of one step."""

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
class WaitPanels:
    """Wait for the panels of this step, then start to gather those of the next."""

    steps: str


@dataclass(frozen=True)
class Reduced:
    """What the reduction of a written tensor needs."""

    var: str  # "din": the variable with the sums
    box: str  # the function that says what a block touches
    carried: str  # the function that says which box a rank sums
    group: str


@dataclass(frozen=True)
class ReducePanel(Reduced):
    """Start to reduce the panel that is complete; wait for the panel before."""


@dataclass(frozen=True)
class ReduceSlice(Reduced):
    """Reduce everything that was written."""

    into: str  # "return", or the assignment of the total; empty: `finish` waits for the sums


@dataclass(frozen=True)
class ReturnRows:
    """Send the halo rows of a written tensor to their owners, who add them."""

    why: str
    owned: str
    carried: str
    axes: str
    tensor: str
    sums: str  # the variable with this rank's sums
    in_place: bool  # the shard may be a part of them
    into: str  # "return", or an assignment


@dataclass(frozen=True)
class Finish:
    """The function that the caller calls for the result, once it needs it."""

    role: str
    body: tuple[Node, ...]


@dataclass(frozen=True)
class Text:
    """Plain statements."""

    lines: tuple[str, ...]


Moves = (
    BindGroup | FetchRows | GatherSlice | GatherPanel | GatherRotated | ReducePanel | ReduceSlice | ReturnRows
)
Node = Moves | Fetch | WaitPanels | When | Steps | Finish | Text


@dataclass(frozen=True)
class Function:
    """One pass."""

    name: str  # "run", or the pass
    parameters: str
    about: tuple[str, ...]  # its docstring
    body: tuple[tuple[Node, ...], ...]  # paragraphs


class Call(NamedTuple):
    """The call of one pass by the layer."""

    pass_: str  # as words are counted
    name: str  # of the function
    bound: str  # what the call binds
    arguments: str
    then: str  # the statement that waits for its sums, or defers them; empty: they are there


@dataclass(frozen=True)
class Layer:
    """The passes of a training step as one differentiable function.

    The first pass runs forward: "forward" of a convolution, "backward-data" of a transposed one. The passes
    that make the gradients of the layer's input and of Ker follow, in either order, or one of them.
    """

    given: str  # parameters: the layer's input, and the gradient of its output
    gradient: str
    about_forward: str
    about_backward: str
    about_run: str
    ahead: Call
    back: tuple[Call, ...]
    result: str  # the variable with the layer's output
    saved: tuple[str, ...]  # what the backward passes reuse
    prefetch: bool  # a network may prefetch Ker, and may defer the sums of dKer
    gathers_ker: bool  # Ker is gathered before the first pass is called
    meanwhile: str  # which sums travel while the third pass computes, as a sentence; empty: none
    returned: str  # the gradients, as torch wants them
    operands: str  # of a run: the layer's input and Ker, as torch is to differentiate them
    asked: str  # and those of them whose gradients are made


@dataclass(frozen=True)
class Forward:
    """The forward pass of a network in inference, as a function that has no gradient."""

    given: str  # the parameter with the layer's input
    about: str
    ahead: Call


@dataclass(frozen=True)
class RotatedTile:
    """What a rank works on in a step of a pass where the ranks of a group start at different panels."""

    name: str  # the function
    pass_: str  # the entry of TILES and STEPS; empty: there is one pass
    first: tuple[str, ...]  # the statements that say at which panel the rank at `at` starts
    why: str


@dataclass(frozen=True)
class Operand:
    """A tensor that the program is given."""

    role: str
    var: str
    owned: str
    shape: str
    windows: str  # ", windows" where it has rows that only a window reads; ", dims=2" for half types
    sample: str  # the function that makes its sample values
    carried: str  # the function that says its box with ghost rows, which some pass receives; empty: none does
    padded: bool  # and zeros are laid around that box


@dataclass(frozen=True)
class Result:
    """A tensor that the program makes, and the torch call that makes it."""

    role: str
    var: str
    owned: str
    expected: str


@dataclass(frozen=True)
class Program:
    """Everything that the text of one program says."""

    title: str
    command: str
    plan: str
    header: tuple[str, ...]
    constants: tuple[str, ...]  # that the algorithm reads
    functions: tuple[Function, ...]  # the algorithm: the passes
    layer: Layer | None  # training
    forward: Forward | None  # inference
    work: tuple[tuple[str, str], ...]  # axis -> expression of its interval
    loop: str  # "one axis", "nested axes" or "by pass": what `tile` cuts
    loop_axis: str
    rotated: tuple[RotatedTile, ...]
    index_functions: tuple[IndexFunction, ...]
    check_constants: tuple[str, ...]  # that the self-check reads, or the runtime in a module
    operands: tuple[Operand, ...]
    results: tuple[Result, ...]
    windows: bool  # some operand has rows that only a window reads
    idle: bool
    limited: bool  # by a limit of memory: messages keep no buffers
    module: str  # the class of `distributed_layer` that the program becomes; empty: it becomes a command
    protocol: tuple[tuple[str, str], ...]  # what a module declares: field of `LayerProgram`, expression
