"""The function of one pass, seen from outside: parameters, results, docstring, and names of tensors."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import wrap

from synth.codegen.parts.roles import suffix
from synth.layer.axes import Tensor
from synth.layer.passes import role_name
from synth.planning.plan import Plan
from synth.schedule.pass_program import Gather, PassProgram

PENDING = "ker_pending"  # the parameter with Ker where its gather has started
WIDTH = 84  # columns of a docstring in a function


@dataclass(frozen=True)
class Signature:
    """How the function of one pass is called.

    deferred: the function returns another one that waits for its sums. prefetched: the gather of Ker has
    started when the function is called. checked: it refuses shards of other shapes or dtypes. ghosts:
    shards live in buffers with ghost rows, see `Distribution`.
    """

    plan: Plan
    program: PassProgram
    deferred: bool = False
    prefetched: bool = False
    checked: bool = False
    ghosts: bool = True

    @property
    def name(self) -> str:
        """The function: `run` in a program of one pass."""
        return self.pass_name if self.plan.later else "run"

    @property
    def pass_name(self) -> str:
        """The pass as a Python name."""
        return self.program.pass_plan.pass_.replace("-", "_")

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The two tensors that the pass reads."""
        return self.program.loop.compute.reads

    @property
    def written(self) -> Tensor:
        """The tensor that the pass writes."""
        return self.program.loop.compute.writes

    @property
    def slices(self) -> tuple[Gather, ...]:
        """The gathers before the local kernel starts; also the only panels of a pass without a loop."""
        program = self.program
        return program.gathers if program.loop.axes else (*program.gathers, *program.loop.gathers)

    # -- names of a tensor ----------------------------------------------------------------------------

    def role(self, tensor: Tensor) -> str:
        """`In`, or `dIn` where it is a gradient."""
        return role_name(self.program.pass_plan.pass_, tensor)

    def var(self, tensor: Tensor) -> str:
        """The beginning of a tensor's variables."""
        return self.role(tensor).lower()

    def owned(self, tensor: Tensor) -> str:
        """The function that says which box a rank stores alone."""
        return f"owned_{suffix(self.plan, tensor)}"

    def touched(self, tensor: Tensor) -> str:
        """The function that says what a block touches of a tensor."""
        return f"touched_{suffix(self.plan, tensor)}"

    def carried(self, tensor: Tensor) -> str:
        """The function that says which box a rank sends to its group: its shard, and the halo."""
        return f"carried_{suffix(self.plan, tensor)}" if self._has_halo(tensor) else self.owned(tensor)

    def carried_var(self, tensor: Tensor) -> str:
        """The variable with the values of the carried box."""
        return f"{self.var(tensor)}_{'wide' if self._has_halo(tensor) else 'own'}"

    def slice_(self, tensor: Tensor) -> str:
        """The variable with the slice of a tensor that is read."""
        return f"{self.var(tensor)}_slice" if self.shared(tensor) else self.carried_var(tensor)

    def group(self, tensor: Tensor) -> str:
        """The variable with the group of a tensor."""
        return f"{self.var(tensor)}_group"

    def shared(self, tensor: Tensor) -> bool:
        """Whether several ranks use the same slice of a tensor."""
        return self.plan.distribution.group_size(tensor) > 1

    def _has_halo(self, tensor: Tensor) -> bool:
        return bool(self.plan.distribution.halo_axes(tensor))

    def prefetches(self, tensor: Tensor) -> bool:
        """Whether the gather of a tensor has started when the function is called."""
        return tensor == "Ker" and self.prefetched

    # -- what goes in and out -------------------------------------------------------------------------

    def given(self, tensor: Tensor) -> str:
        """The parameter of a tensor: its shard, a slice that an earlier pass saved, or a started gather."""
        if self.prefetches(tensor):
            return PENDING
        if tensor in self.program.pass_plan.reuses:
            return self.slice_(tensor)
        return f"{self.var(tensor)}_own"

    @property
    def parameters(self) -> tuple[str, ...]:
        """What the function is given of the tensors that the pass reads."""
        return tuple(self.given(tensor) for tensor in self.reads)

    @property
    def saved(self) -> tuple[str, ...]:
        """What the function returns beside its result: slices that a later pass reuses."""
        slices = (self.slice_(tensor) for tensor in self.reads if tensor in self.program.pass_plan.saves)
        return tuple(name for name in slices if name not in self.parameters)

    @property
    def padded(self) -> bool:
        """Whether the widened shard of In has the zeros that the kernels need around it."""
        return self.plan.distribution.keeps_zeros

    def about(self) -> tuple[str, ...]:
        """The docstring, line by line."""
        role, box = self.role(self.written), f"`{self.owned(self.written)}(at)`"
        first = f"This rank's shard of {role}: its words of the box {box}."
        if self.deferred:
            first = f"A function that waits for this rank's shard of {role} and returns it."
        (one, one_box), (other, other_box) = (self._parameter(tensor) for tensor in self.reads)
        rest = (
            f"{one} and {other} hold the boxes `{one_box}` and `{other_box}`; `groups` holds the group of "
            "this rank for every entry of GROUP_AXES; `context` counts received words."
        )
        if self.deferred:
            rest += f" The shard has the words of the box {box}."
        if self.padded and f"{self.var('In')}_wide" in self.parameters:
            rest += f" `{self.var('In')}_wide` has the zeros of `explicit_zeros` around it."
        if self.saved:
            names = " and ".join(f"`{name}`" for name in self.saved)
            rest += f" Also returned, for later passes: {names}."
        return (first, "", *wrap(rest, WIDTH, break_on_hyphens=False))

    def _parameter(self, tensor: Tensor) -> tuple[str, str]:
        """A parameter and its box, for the docstring."""
        name = self.given(tensor)
        shown_name = f"`{name}` (see `prefetch_ker`)" if name == PENDING else f"`{name}`"
        if tensor not in self.program.pass_plan.reuses and not self.prefetches(tensor):
            return shown_name, f"{self.owned(tensor)}(at)"
        if name == self.carried_var(tensor):
            return shown_name, f"{self.carried(tensor)}(at)"
        return shown_name, f"{self.touched(tensor)}(work(at))"
