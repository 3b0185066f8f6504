"""An IR close to the text of a program: every number and every name is decided, templates only place them.

`lower` makes a `Program` from a plan, `render` turns it into text. The statements of `run` are a tree of
small nodes; a node is rendered by the macro of its name in `templates/run.py.j2`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorText:
    """The coordinate functions of one tensor."""

    name: str  # "In"
    var: str  # "in"
    dims: str  # "b, c, h, w"
    verb: str  # what a block does with it: "reads" or "writes"
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


@dataclass(frozen=True)
class Broadcast:
    """How the panels of one tensor reach all ranks of a group."""

    tensor: str
    var: str
    here: str  # the variable with what this rank carries
    carried: str  # the function that says which box that is
    group: str


@dataclass(frozen=True)
class Gather(Broadcast):
    """Bring the whole slice of a tensor before anything is computed."""

    why: str = ""
    phase: str = "expand"


@dataclass(frozen=True)
class Start(Broadcast):
    """Start the broadcasts of a panel."""


@dataclass(frozen=True)
class Fetch:
    """The function that starts all broadcasts that one step waits for."""

    body: tuple[Node, ...]


@dataclass(frozen=True)
class When:
    """Statements under a condition."""

    condition: str
    body: tuple[Node, ...]


@dataclass(frozen=True)
class Steps:
    """The loop over the tiles of the work block."""

    body: tuple[Node, ...]


@dataclass(frozen=True)
class Receive:
    """Wait for the panels of this step, then start those of the next."""


@dataclass(frozen=True)
class HandOver:
    """Reduce an Out panel onto the shares of a group."""

    why: str
    step: str


@dataclass(frozen=True)
class Finish:
    """Reduce the stationary Out and return the own share."""

    why: str


@dataclass(frozen=True)
class Text:
    """Plain statements."""

    lines: tuple[str, ...]


Node = Halo | Gather | Start | Fetch | When | Steps | Receive | HandOver | Finish | Text


@dataclass(frozen=True)
class Program:
    """Everything that the text of one program says."""

    title: str
    command: str
    plan: str
    header: tuple[str, ...]
    constants: tuple[str, ...]
    work: tuple[tuple[str, str], ...]  # axis -> expression of its interval
    tile: str  # "the block", "one loop" or "nested loops"
    loop_axis: str
    asks_changes: bool
    tensors: tuple[TensorText, ...]
    broadcasts: bool
    reduces: bool
    run: tuple[Node, ...]
    conv: str  # "F.conv2d"; empty for a matrix product
    idle: bool
