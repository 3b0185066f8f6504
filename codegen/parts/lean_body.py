"""The statements of one pass in a lean program: a walk over its schedule tree, with one call for every move.

`exchange` is the only collective: halo rows, slices, panels and partial sums are boxes that ranks hold and
want. Messages and computing alternate, so nothing is in flight, and no buffer outlives its step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from synth.codegen.parts.lean_calls import bare_call
from synth.codegen.parts.local_kernel import GROUPED, tiled
from synth.codegen.parts.moves import neighbour_axes, quoted, sentence
from synth.codegen.parts.signature import Signature
from synth.layer.axes import Axis, Tensor
from synth.layer.passes import Pass
from synth.schedule.pass_program import Collective, Compute, Gather, Reduce, Rows

KERNELS: dict[Pass, str] = {  # on what a pass reads
    "forward": "convolve({one}, {other}, block)",
    "backward-data": "input_gradient({one}, {other}, block)",
    "backward-filter": "kernel_gradient({one}, {other}, block)",
}
PRODUCTS: dict[Pass, str] = {  # the same where the layer is Out[b,k] = In[b,c] Ker[k,c]
    "forward": "{one} @ {other}.mT",
    "backward-data": "{other} @ {one}",
    "backward-filter": "{other}.mT @ {one}",
}
Lines = list[str]


class LeanFunction(NamedTuple):
    """A function of the text."""

    name: str
    parameters: str
    about: str  # its docstring
    body: tuple[tuple[str, ...], ...]  # paragraphs of lines


class Value(NamedTuple):
    """What the result of a pass becomes, and the lines before."""

    before: Lines
    expression: str


class LeanBody:
    """The function of one pass, and of what its ranks work on in a step where they start at own panels."""

    def __init__(self, signature: Signature) -> None:
        self.signature, self.program, self.loop = signature, signature.program, signature.program.loop
        self.pass_plan = signature.program.pass_plan
        self.written, self.var = signature.written, signature.var(signature.written)
        self.by_panel = bool(self.loop.axes and self.loop.reduces)
        self.tile = _rotated_tile(signature) if self.loop.rotation else "work"
        self.bare = bare_call(signature.plan) if self.loop.compute.pass_ == "forward" else None
        counts = (f'"{axis}": {getattr(self.pass_plan.counts, axis)}' for axis in self.loop.axes)
        self.tiles = f"tiles = {{{', '.join(counts)}}}  # of the block, outermost loop first"

    def exchanges(self) -> Iterator[tuple[Axis, ...]]:
        """The axes along which the ranks of each exchange differ, in order of execution."""
        for node in self.program.nodes():
            match node:
                case Rows():
                    yield neighbour_axes(self.signature, node)
                case Gather() | Reduce():
                    yield node.axes

    def function(self) -> LeanFunction:
        """The whole pass."""
        of = self.signature
        paragraphs: list[Lines] = [
            [self.tiles] if self.loop.axes and not self.loop.rotation else [],
            *(self._fetch(rows) for rows in self.program.fetches),
            *(self._gather(gather, f"{of.var(gather.tensor)}_slice", "work") for gather in of.slices),
            self._loop() if self.loop.axes else [],
        ]
        lines = [line for paragraph in paragraphs for line in paragraph]
        values = [] if self.loop.axes else [self._one_step()]
        values += [*self._end(), Value([], self.var)]
        if len(values) > 1 and not of.saved:
            values.pop()  # the last one is returned without a name
        *named, last = values
        for value in named:
            lines += [*value.before, f"{self.var} = {value.expression}"]
        lines += [*last.before, f"return {', '.join([last.expression, *of.saved])}"]
        also = " and ".join(f"`{name}`" for name in of.saved)
        about = f"This rank's shard of {of.role(self.written)}"
        about += f", and {also} for later passes." if also else "."
        return LeanFunction(of.name, ", ".join([*of.parameters, "at"]), about, (tuple(lines),))

    def step(self) -> LeanFunction | None:
        """The function that says what a rank works on in a step, where ranks start at different panels."""
        if not self.loop.rotation:
            return None
        (axis,), panels = self.loop.axes, self.pass_plan.panels
        first = " + ".join(self._first_panel(tensor, axis, panels) for tensor in self.loop.rotation)
        line = f'return part(work(at), {{"{axis}": {panels}}}, {{"{axis}": ({first} + step) % {panels}}})'
        about = f"The panel along {axis} of one step: ranks start at panels of their own."
        return LeanFunction(self.tile, "at, step", about, ((line,),))

    def _first_panel(self, tensor: Tensor, axis: Axis, panels: int) -> str:
        """The panel that has this rank's shard; see `panel_rotation`."""
        parts = dict(self.signature.plan.distribution.shard_cuts[tensor])[axis]
        index = f'share("{tensor}", at)["{axis}"]'
        return index if parts == panels else f"{index} // {parts // panels}"

    # -- moves ----------------------------------------------------------------------------------------

    def _fetch(self, rows: Rows) -> Lines:
        of, tensor = self.signature, rows.tensor
        own, axes = f"{of.var(tensor)}_own", quoted(neighbour_axes(of, rows))
        call = f'exchange("{tensor}", {own}, owned, {self.held(tensor)}, {axes})'
        return [f"# {sentence(rows.why)}", f"{of.carried_var(tensor)} = {call}"]

    def _gather(self, gather: Gather, into: str, block: str) -> Lines:
        tensor, held = gather.tensor, self.held(gather.tensor)
        values = self.signature.carried_var(tensor)
        call = f'exchange("{tensor}", {values}, {held}, touching({block}))'
        return [f"# {sentence(gather.why())}", f"{into} = {call}"]

    def _reduce(self, reduce: Reduce, values: str, block: str) -> str:
        tensor, wanted = reduce.tensor, self.held(reduce.tensor)
        return f'exchange("{tensor}", {values}, touching({block}), {wanted})'

    def held(self, tensor: Tensor) -> str:
        """The function that says which box of a tensor a rank has for its group: all, where it is alone."""
        if self.signature.carried(tensor) == self.signature.owned(tensor):
            return "owned"
        return "carried" if self.signature.shared(tensor) else "touching(work)"

    def _box(self, tensor: Tensor) -> str:
        """The box itself."""
        held = self.held(tensor)
        return f'touched("{tensor}", work(at))' if held == "touching(work)" else f'{held}("{tensor}", at)'

    # -- the steps ------------------------------------------------------------------------------------

    def _one_step(self) -> Value:
        block = ["block = work(at)"] if self.signature.plan.layer.spatial_axes and not self.bare else []
        return Value(block, self._kernel({}))

    def _loop(self) -> Lines:
        """Zeros, and the steps: panels arrive, the kernel adds to the result, panels of sums leave."""
        of, steps = self.signature, self.pass_plan.steps
        which = "step" if self.loop.rotation else "step, tiles"
        work, step = "touched({}, work(at))", f"{self.tile}, {which}"
        zeros, body = Lines(), [f"block = {self.tile}(at, {which})"] if self._asks_for_block() else []
        panels = {gather.tensor: f"{of.var(gather.tensor)}_panel" for gather in self.loop.gathers}
        for tensor in self.program.fills:
            box = work.format(f'"{tensor}"')
            zeros.append(f"{of.slice_(tensor)} = torch.zeros(shape({box}), dtype=DTYPE)")
        box = self._box(self.written) if self.by_panel else work.format(f'"{self.written}"')
        zeros.append(f"{self.var} = torch.zeros(shape({box}), dtype=DTYPE)")
        for gather in self.loop.gathers:
            body += self._when(gather, "step", self._gather(gather, panels[gather.tensor], step))
        for tensor in self.program.fills:
            body.append(f"{of.slice_(tensor)}[{self._place(tensor)}] = {panels[tensor]}")
        for tensor in of.reads:
            if tensor not in panels and tiled(of, tensor):
                panels[tensor] = f"{of.var(tensor)}_tile"
                body.append(f"{panels[tensor]} = {of.slice_(tensor)}[{self._place(tensor)}]")
        body += self._added(self._kernel(panels), step)
        return [*zeros, f"for step in range({steps}):", *(f"    {line}" for line in body)]

    def _asks_for_block(self) -> bool:
        """Whether a step names the block that it works on."""
        of, gathered = self.signature, {gather.tensor for gather in self.loop.gathers}
        parts = [*(t for t in of.reads if t not in gathered), *([] if self.by_panel else [self.written])]
        kernel = of.plan.layer.spatial_axes and not self.bare
        return bool(kernel or self.program.fills or any(tiled(of, tensor) for tensor in parts))

    def _added(self, kernel: str, step: str) -> Lines:
        """The kernel of a step, added to what it writes; panels of sums leave when they are complete."""
        if not self.by_panel:
            if not tiled(self.signature, self.written):
                return [f"{self.var} += {kernel}"]
            return [f"place = {self._place(self.written)}", f"{self.var}[place] += {kernel}"]
        (move,) = self.loop.reduces
        leave = [f"# {sentence(move.why())}", f"{self.var} += {self._reduce(move, 'sums', step)}"]
        if not self._changes(move, "step"):
            return [f"sums = {kernel}", *leave]
        fresh = self._when(move, "step", [f"sums = 0  # another panel of {move.role} begins"])
        return [*fresh, f"sums = sums + {kernel}", *self._when(move, "step + 1", leave)]

    def _place(self, tensor: Tensor) -> str:
        """The tile of a step within what this rank has of a tensor."""
        alone = tensor in self.signature.reads and not self.signature.shared(tensor)
        frame = self._box(tensor) if alone else f'touched("{tensor}", work(at))'
        return f'within(touched("{tensor}", block), {frame})'

    def _kernel(self, operands: dict[Tensor, str]) -> str:
        of, layer = self.signature, self.signature.plan.layer
        one, other = (operands.get(tensor, of.slice_(tensor)) for tensor in of.reads)
        if self.bare:
            return self.bare.format(one=one, other=other)
        kernels = KERNELS if layer.spatial_axes else GROUPED if layer.groups > 1 else PRODUCTS
        return kernels[self.loop.compute.pass_].format(one=one, other=other)

    def _when(self, node: Collective | Compute, step: str, lines: Lines) -> Lines:
        """Statements for the steps at which the panel of a node changes."""
        condition = self._changes(node, step)
        return [f"if {condition}:", *(f"    {line}" for line in lines)] if condition else lines

    def _changes(self, node: Collective | Compute, step: str) -> str:
        """The condition under which a step begins another panel; empty if it always does."""
        if self.loop.axes[-1] in node.changes:
            return ""
        if not node.changes:  # one panel for all steps
            return "step == 0" if step == "step" else f"{step} == {self.pass_plan.steps}"
        axes = ", ".join(f'"{axis}"' for axis in node.changes)
        return f"changes({step}, tiles, {axes})"

    # -- the end --------------------------------------------------------------------------------------

    def _end(self) -> list[Value]:
        """Reduce a stationary result, return halo rows to their owners."""
        of, moves = self.signature, list[Value]()
        for move in () if self.by_panel else (*self.program.reduces, *self.loop.reduces):
            moves.append(Value([f"# {sentence(move.why())}"], self._reduce(move, self.var, "work")))
        for rows in self.program.returns:
            axes = quoted(neighbour_axes(of, rows))
            held = self.held(rows.tensor)
            call = f'exchange("{rows.tensor}", {self.var}, {held}, owned, {axes})'
            moves.append(Value([f"# {sentence(rows.why)}"], call))
        return moves


def _rotated_tile(signature: Signature) -> str:
    """The function that says what a rank works on in a step where ranks start at different panels."""
    return f"{signature.pass_name}_tile" if signature.plan.later else "tile"
