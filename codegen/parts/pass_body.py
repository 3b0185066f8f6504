"""The statements of one pass: a walk over its schedule tree."""

from __future__ import annotations

from synth.codegen.parts import moves
from synth.codegen.parts.local_kernel import local_kernel, tiled
from synth.codegen.parts.signature import PENDING, Signature
from synth.codegen.program import Fetch, Finish, Function, Node, Steps, Text, WaitPanels, When
from synth.schedule.pass_program import Collective, Compute, Gather, Reduce

FREES = "# frees memory for what follows"
Paragraph = list[Node]


class PassBody:
    """The function of one pass with its statements."""

    def __init__(self, signature: Signature) -> None:
        self.signature, self.program, self.loop = signature, signature.program, signature.program.loop
        self.written, self.var = signature.written, signature.var(signature.written)
        self.alone = not signature.plan.later
        self.steps = "STEPS" if self.alone else "steps"
        self.kernel = local_kernel(signature)
        # a pass without a loop gathers its only panels like slices, and reduces its only panel at the end
        self.slices = signature.slices
        self.panels = self.loop.gathers if self.loop.axes else ()
        self.reduce = next(iter((*self.program.reduces, *self.loop.reduces)), None)
        self.by_panel = bool(self.loop.axes and self.loop.reduces)

    def function(self) -> Function:
        """The whole pass."""
        groups: Paragraph = [moves.bind_group(self.signature, move) for move in self._started()]
        fetches: list[Paragraph] = [[moves.fetch_rows(self.signature, rows)] for rows in self.program.fetches]
        paragraphs = [
            self._checks(),
            self._constants(),
            groups,
            *fetches,
            self._slices(),
            *(self._loop() if self.loop.axes else [self._one_step()]),
            *(self._deferred_end() if self.signature.deferred else self._end()),
        ]
        body = tuple(tuple(paragraph) for paragraph in paragraphs if paragraph)
        return Function(
            self.signature.name, ", ".join(self.signature.parameters), self.signature.about(), body
        )

    def prefetch(self) -> Function:
        """The function that starts to gather Ker, for a pass that only waits for it."""
        (gather,) = (gather for gather in self.slices if self.signature.prefetches(gather.tensor))
        context = f'context.for_pass("{self.program.pass_plan.pass_}")'
        about = "Start to gather this rank's slice of Ker, possibly before the layer's turn."
        bind = moves.bind_group(self.signature, gather, context)
        body = bind, moves.gather_slice(self.signature, gather, returned=True)
        return Function("prefetch_ker", "ker_own", (about,), (body,))

    # -- before the loop ------------------------------------------------------------------------------

    def _checks(self) -> Paragraph:
        """Refuse shards of another shape or dtype; a training program does so in its `run`."""
        of = self.signature
        lines = (
            f'context.check_shard("{of.role(t)}", {of.given(t)}, {of.owned(t)}(at), DTYPE)' for t in of.reads
        )
        frees = (
            ("context.keep_no_buffers()  # the plan has a limit",) if of.plan.limit_bytes is not None else ()
        )
        return [Text((*lines, *frees))] if of.checked else []

    def _constants(self) -> Paragraph:
        """The tiles of this pass, in a program of several."""
        if self.alone or not self.loop.axes:
            return []
        steps = f'STEPS["{self.signature.pass_name}"]'
        if self.loop.rotation:
            return [Text((f"steps = {steps}",))]
        return [Text((f'tiles, steps = TILES["{self.signature.pass_name}"], {steps}',))]

    def _started(self) -> list[Gather | Reduce]:
        """The moves within groups that this function starts."""
        gathers = (*self.slices, *self.panels)
        started: list[Gather | Reduce] = [g for g in gathers if not self.signature.prefetches(g.tensor)]
        return [*started, self.reduce] if self.reduce else started

    def _slices(self) -> Paragraph:
        """Slices that are gathered whole: all gathers start before the first wait."""
        started = [gather for gather in self.slices if not self.signature.prefetches(gather.tensor)]
        if len(self.slices) == len(started) == 1:
            return [moves.gather_slice(self.signature, started[0], wait=True)]
        nodes: Paragraph = [moves.gather_slice(self.signature, gather) for gather in started]
        if self.slices:
            vars_ = [self.signature.var(gather.tensor) for gather in self.slices]
            slices = ", ".join(f"{var}_slice" for var in vars_)
            waits = ", ".join(f"wait_gather({var}_pending)" for var in vars_)
            nodes.append(Text((f"{slices} = {waits}",)))
        return nodes

    # -- the loop -------------------------------------------------------------------------------------

    def _one_step(self) -> Paragraph:
        """The local kernel on the whole block."""
        block = ("block = work(at)",) if self.kernel.reads_block else ()
        if self.reduce:
            box, _ = self._zeros()
            computed = f"{self.var} = {self.kernel.expression}"
            return [Text((box, *block, computed, self._check_finite(self.var, "0")))]
        result = f"{self.var} =" if self.program.returns or self.signature.saved else "return"
        return [Text((*block, f"{result} {self.kernel.expression}"))]

    def _loop(self) -> list[Paragraph]:
        """Zeros, the fetch of panels, the steps, and the wait for the last panel of sums."""
        body = [*self._block(), *self._step()]
        zeros = [*self._zeros(), *(["pending_sums = []"] if self.by_panel else [])]
        # if the sums are deferred, the caller waits for the last panel
        last = [self._wait_reduces()] if self.by_panel and not self.signature.deferred else []
        if not self.panels:
            return [[Text(tuple(zeros)), Steps(self.steps, tuple(body)), *last]]
        body = [*self._block(), WaitPanels(self.steps), *self._fills(), *self._step()]
        begin = Text(("panels, pending = {}, fetch(0)",))
        zeros += self._empty()
        return [[Text(tuple(zeros))], [self._fetch()], [begin, Steps(self.steps, tuple(body)), *last]]

    def _block(self) -> Paragraph:
        """What a step works on, if anything asks."""
        asked = (
            self.kernel.reads_block
            or self.by_panel
            or self.program.fills
            or tiled(self.signature, self.written)
        )
        return [Text((f"block = {self._tile()}",))] if asked else []

    def _fetch(self) -> Fetch:
        """The function that starts to gather the panels of a step."""
        starts = tuple(self._when(gather, "step", self._gather_panel(gather)) for gather in self.panels)
        rotated = all(gather.tensor in self.loop.rotation for gather in self.panels)
        return Fetch("" if rotated else self._tile(), starts)

    def _gather_panel(self, gather: Gather) -> Node:
        if gather.tensor in self.loop.rotation:
            return moves.gather_rotated(self.signature, gather, self._tile("peer"))
        return moves.gather_panel(self.signature, gather)

    def _tile(self, at: str = "at") -> str:
        """A call of the function that says what a rank works on in a step."""
        if self.loop.rotation:
            return f"{rotated_tile(self.signature)}({at}, step)"
        return f"tile({at}, step)" if self.alone else f"tile({at}, step, tiles)"

    def _when(self, node: Collective | Compute, step: str, statement: Node) -> Node:
        """A statement for the steps at which the panel of a node changes."""
        condition = self._changes(node, step)
        return When(condition, (statement,)) if condition else statement

    def _changes(self, node: Collective | Compute, step: str) -> str:
        """The condition under which a step begins another panel; empty if it always does."""
        if self.loop.axes[-1] in node.changes:
            return ""
        if not node.changes:  # one panel for all steps
            return "step == 0" if step == "step" else f"step + 1 == {self.steps}"
        axes = [f'"{axis}"' for axis in node.changes]
        return f"changes({', '.join([step, *([] if self.alone else ['tiles']), *axes])})"

    def _zeros(self) -> tuple[str, str]:
        """The box of what is summed here, and its zeros."""
        box = f"{self.signature.touched(self.written)}(work(at))"
        if self.by_panel:
            box = f"{self.signature.carried(self.written)}(at)"
        like = next(name for name in self.signature.parameters if name != PENDING)
        return f"{self.var}_box = {box}", f"{self.var} = {like}.new_zeros(shape({self.var}_box))"

    def _empty(self) -> list[str]:
        """Slices that panels fill, for a later pass."""
        lines = []
        for tensor in self.program.fills:
            box, slice_ = f"{self.signature.var(tensor)}_box", self.signature.slice_(tensor)
            lines += [
                f"{box} = {self.signature.touched(tensor)}(work(at))",
                f"{slice_} = {self.signature.carried_var(tensor)}.new_empty(shape({box}))",
            ]
        return lines

    def _fills(self) -> Paragraph:
        """Panels are copied into those slices."""
        lines = [
            f"{self.signature.slice_(tensor)}[within({self.signature.touched(tensor)}(block), "
            f'{self.signature.var(tensor)}_box)] = panels["{self.signature.role(tensor)}"]'
            for tensor in self.program.fills
        ]
        return [Text(("# saved for later passes", *lines))] if lines else []

    def _step(self) -> Paragraph:
        """The local kernel, and the reduction of a panel that is complete."""
        expression, before, _ = self.kernel
        if self.by_panel:
            return self._reduce_panels(before, expression)
        lines = [*before, f"{self.var} += {expression}"]
        if tiled(self.signature, self.written):
            place = f"place = within({self.signature.touched(self.written)}(block), {self.var}_box)"
            lines = [*before, place, f"{self.var}[place] += {expression}"]
        return [Text((*lines, self._check_finite(self.var)))]

    def _reduce_panels(self, before: tuple[str, ...], kernel: str) -> Paragraph:
        (move,) = self.loop.reduces
        reduce = moves.reduce_panel(self.signature, move)
        if not self._changes(move, "step"):
            return [Text((*before, f"sums = {kernel}", self._check_finite("sums"))), reduce]
        fresh = Text((f"sums = 0  # another panel of {move.role} begins",))
        add = Text((*before, f"sums += {kernel}", self._check_finite("sums")))
        return [self._when(move, "step", fresh), add, self._when(move, "step + 1", reduce)]

    def _wait_reduces(self) -> Text:
        return Text((f"wait_reduces(pending_sums, {self.var}, {self.var}_box)",))

    def _check_finite(self, var: str, step: str = "step") -> str:
        """The statement that checks for NaN in what a step leaves."""
        return f'context.check_finite("{self.signature.role(self.written)}", {step}, {var})'

    # -- the end --------------------------------------------------------------------------------------

    def _end(self) -> list[Paragraph]:
        """Reduce a stationary result, return halo rows to their owners, return the result."""
        returns, saved, result = self.program.returns, self.signature.saved, self.var
        nodes = self._release()
        if self.reduce and not self.by_panel:
            last = not (returns or saved)
            into = "return" if last else "total ="
            nodes.append(moves.reduce_slice(self.signature, self.reduce, into))
            if last:
                return [nodes]
            nodes += [Text((f"del {self.var}",))] if returns else []
            result = "total"
        elif not (self.loop.axes or returns or saved):
            return []  # the kernel call is what is returned
        paragraphs = [nodes]
        for rows in returns:
            own = f"{self.var}_own"
            into = f"{own} =" if saved else "return"
            paragraphs.append([moves.return_rows(self.signature, rows, result, into)])
            result = own
        if saved or not returns:
            paragraphs.append([Text((f"return {', '.join([result, *saved])}",))])
        return paragraphs

    def _release(self) -> Paragraph:
        """Emit `del` of the operands of a result before it is reduced or its rows are exchanged."""
        if not self.loop.compute.stationary or not (self.reduce or self.program.returns):
            return []
        names = ["panels"]
        if not self.panels:
            vars_ = [self.signature.var(gather.tensor) for gather in self.slices if not gather.saves]
            names = [f"{var}_{what}" for var in vars_ for what in ("slice", "pending")]
        return [Text((f"del {', '.join(names)}  {FREES}",))] if names else []

    def _deferred_end(self) -> list[Paragraph]:
        """Start the last sums, and return the function that waits for them."""
        nodes, waits, result = self._release(), list[Node](), self.var
        if self.by_panel:
            waits.append(self._wait_reduces())
        elif self.reduce:
            nodes.append(moves.reduce_slice(self.signature, self.reduce, into=""))
            total = "total =" if self.program.returns else "return"
            waits.append(Text((f"{total} wait_reduce(pending_sum)",)))
            result = "total"
        waits += [moves.return_rows(self.signature, rows, result, "return") for rows in self.program.returns]
        if self.by_panel and not self.program.returns:
            waits.append(Text((f"return {result}",)))
        finish = Finish(self.signature.role(self.written), tuple(waits))
        return [nodes, [finish], [Text((f"return {', '.join(['finish', *self.signature.saved])}",))]]


def rotated_tile(signature: Signature) -> str:
    """The function that says what a rank works on in a step of a pass with rotation."""
    return f"{signature.pass_name}_tile" if signature.plan.later else "tile"
