"""What the function of one pass is given and returns, how it calls its tensors, and which of them move."""

from __future__ import annotations

from textwrap import wrap

from synth.codegen.index_functions import carries_more
from synth.layer.axes import DIMS, SPATIAL, Tensor
from synth.layer.passes import role_name
from synth.planning.plan import Plan
from synth.schedule.pass_plan import PassPlan
from synth.schedule.pass_program import pass_program

PENDING = "ker_pending"  # Ker, prefetched
WIDTH = 84  # columns of a docstring in a function


class Signature:
    """The function of one pass, seen from outside: in a program of its own (`alone`) or beside others.

    overlap: its last sums travel while the caller computes something else.
    early: Ker is on its way when the function is called.
    """

    def __init__(
        self,
        plan: Plan,
        pass_plan: PassPlan,
        alone: bool = True,
        overlap: bool = False,
        early: bool = False,
    ) -> None:
        self.plan, self.pass_plan, self.distribution = plan, pass_plan, plan.distribution
        self.loops, self.written = pass_plan.loops(), pass_plan.written
        self.halo = carries_more(plan)
        self.alone, self.overlap, self.early = alone, overlap, early
        self.name = pass_plan.pass_.replace("-", "_")
        self.touches: set[Tensor] = set()  # tensors of which the text asks what a block touches
        self.program = pass_program(self.distribution, pass_plan)
        self.skewed = self.program.loop.rotation
        self.framed = self.halo and frames(plan)

    def role(self, tensor: Tensor) -> str:
        """`In`, or `dIn` where it is a gradient."""
        return role_name(self.pass_plan.pass_, tensor)

    def var(self, tensor: Tensor) -> str:
        """The beginning of a tensor's variables."""
        return self.role(tensor).lower()

    def whole(self, tensor: Tensor) -> str:
        """The variable with the whole slice of a tensor that is read."""
        return f"{self.var(tensor)}_slice" if self.grouped(tensor) else self.here(tensor)

    def here(self, tensor: Tensor) -> str:
        """The variable with what this rank hands to its group."""
        return "in_wide" if tensor == "In" and self.halo else f"{self.var(tensor)}_own"

    def carried(self, tensor: Tensor) -> str:
        """The function that says which box that is."""
        return "carried_in" if tensor == "In" and self.halo else f"owned_{tensor.lower()}"

    def touched(self, tensor: Tensor) -> str:
        """The function that says what a block touches of a tensor."""
        self.touches.add(tensor)
        return f"touched_{tensor.lower()}"

    def given(self, tensor: Tensor) -> str:
        """The parameter by which a tensor comes: what a rank owns, what a pass kept, or what is coming."""
        if tensor == "Ker" and self.early:
            return PENDING
        return self.whole(tensor) if tensor in self.pass_plan.reuses else f"{self.var(tensor)}_own"

    @property
    def parameters(self) -> tuple[str, ...]:
        """What the pass is given of the tensors that it reads."""
        return tuple(self.given(tensor) for tensor in self.pass_plan.reads)

    @property
    def kept(self) -> tuple[str, ...]:
        """What the pass returns beside its result: slices that a later pass finds."""
        slices = (self.whole(t) for t in self.pass_plan.reads if t in self.pass_plan.saves)
        return tuple(name for name in slices if name not in self.parameters)

    @property
    def at_once(self) -> list[Tensor]:
        """The tensors that are gathered whole before anything is computed."""
        expanded = [gather.tensor for gather in self.program.gathers]
        return expanded + ([] if self.loops else [gather.tensor for gather in self.program.loop.gathers])

    def grouped(self, tensor: Tensor) -> bool:
        """Whether several ranks share a slice of the tensor."""
        return self.distribution.group_size(tensor) > 1

    @property
    def gathered(self) -> tuple[Tensor, ...]:
        """The tensors that are read and not found kept: they are gathered, whole or panel by panel."""
        return tuple(t for t in self.pass_plan.reads if t not in self.pass_plan.reuses)

    def arrives(self, tensor: Tensor) -> bool:
        """Whether a tensor that is read comes panel by panel."""
        return tensor in {gather.tensor for gather in self.program.loop.gathers}

    @property
    def block(self) -> str:
        """The function that says what a rank works on in a step."""
        return f"{self.name}_tile" if self.skewed and not self.alone else "tile"

    def tile(self, at: str = "at") -> str:
        """A call of it."""
        tiles = "" if self.alone or self.skewed else ", tiles"
        return f"{self.block}({at}, step{tiles})"

    @property
    def fills(self) -> tuple[Tensor, ...]:
        """The tensors that come panel by panel and fill a slice for a later pass."""
        return self.program.fills

    @property
    def leaves(self) -> bool:
        """Whether the tensor that is written leaves panel by panel."""
        return self.pass_plan.stationary != self.written and self.grouped(self.written)

    @property
    def returns(self) -> bool:
        """Whether halo rows of dIn go back to their owners."""
        return self.written == "In" and self.halo

    def about(self) -> tuple[str, ...]:
        """The docstring, line by line."""
        place = self.written.lower()
        result = f"its words of the box `owned_{place}(at)`"
        first = f"This rank's share of {self.role(self.written)}: {result}."
        if self.overlap:
            first = f"A function that returns this rank's share of {self.role(self.written)}."
        (one, one_box), (other, other_box) = (self._parameter(tensor) for tensor in self.pass_plan.reads)
        rest = (
            f"`{one}` and `{other}` hold the boxes `{one_box}` and `{other_box}`, `groups` the group of this "
            "rank for every entry of GROUP_AXES; `context` counts what arrives."
        )
        rest = rest.replace(f"`{PENDING}`", f"`{PENDING}` (see `prefetch_ker`)")
        if self.overlap:
            rest += f" The share, {result}, is whole once the sums that travel meanwhile are here."
        if self.framed and "in_wide" in (one, other):
            rest += " `in_wide` has the zeros of `explicit_zeros` around it."
        if self.kept:
            names = " and ".join(f"`{name}`" for name in self.kept)
            rest += f" Returned as well, for the passes to come: {names}."
        return (first, "", *wrap(rest, WIDTH, break_on_hyphens=False))

    def _parameter(self, tensor: Tensor) -> tuple[str, str]:
        name = self.given(tensor)
        if name.endswith("_own"):
            return name, f"owned_{tensor.lower()}(at)"
        return name, "carried_in(at)" if name == "in_wide" else f"{self.touched(tensor)}(work(at))"


def frames(plan: Plan) -> bool:
    """Whether kernels read a widened share of In as it is: the zeros that they need are laid around it once.

    So if no other rank needs it and no pass cuts it into tiles, and if padding meets the cut of an axis.
    """
    tiles = (axis for t in plan.pass_plans if t.written != "In" for axis in t.loops())
    cut = (axis for axis in SPATIAL if getattr(plan.grid, axis) > 1)
    alone = plan.distribution.group_size("In") == 1 and not any(axis in DIMS["In"] for axis in tiles)
    return alone and any(plan.nest.windows[axis].padding > 0 for axis in cut)
