"""One pass of a plan as statements: the form that all nine programs share, with the roles exchanged."""

from __future__ import annotations

from dataclasses import replace

from synth.codegen.program import (
    Bring,
    Fetch,
    Finish,
    Function,
    Gather,
    GiveBack,
    Halo,
    HandOver,
    Later,
    Node,
    Receive,
    Reduce,
    Start,
    StartOwn,
    Steps,
    Text,
    When,
)
from synth.codegen.signature import PENDING, WIDTH, Signature
from synth.layer.axes import DIMS, LACKED_INDEX, TENSORS, Tensor
from synth.layer.passes import Pass
from synth.planning.plan import Plan
from synth.schedule.pass_plan import PassPlan
from synth.schedule.pass_program import WHY

KERNELS: dict[Pass, str] = {  # the local kernel on what a pass reads
    "forward": "convolve(F.{conv}, {one}, {other}, block, WINDOWS)",
    "backward-data": "input_gradient({one}, {other}, block, WINDOWS)",
    "backward-filter": "kernel_gradient({one}, {other}, block, WINDOWS)",
}
PRODUCTS: dict[Pass, str] = {  # the same where the layer is Out[b,k] = In[b,c] Ker[k,c]
    "forward": "{one} @ {other}.mT",
    "backward-data": "{other} @ {one}",
    "backward-filter": "{other}.mT @ {one}",
}


class OnePass(Signature):
    """The function of one pass with its statements."""

    def __init__(
        self,
        plan: Plan,
        pass_plan: PassPlan,
        alone: bool = True,
        overlap: bool = False,
        early: bool = False,
    ) -> None:
        super().__init__(plan, pass_plan, alone, overlap, early)
        self.steps = "STEPS" if alone else "steps"
        self.tiles = "" if alone else ", tiles"
        self.asks_changes = False

    def function(self) -> Function:
        """The whole pass."""
        body = self.statements()
        name = "run" if self.alone else self.name
        return Function(name, ", ".join(self.parameters), self.about(), body)

    # -- what moves -----------------------------------------------------------------------------------

    def statements(self) -> tuple[Node, ...]:
        """The body of the function."""
        nodes: list[Node] = []
        if self.alone:
            nodes.append(Text(tuple(self._given(tensor) for tensor in self.pass_plan.reads)))
        if not self.alone and self.loops:
            key = f'"{self.name}"'
            both = f"tiles, steps = TILES[{key}], STEPS[{key}]"
            nodes.append(Text((f"steps = STEPS[{key}]" if self.skewed else both,)))
        if self.halo and self.written != "In" and "In" not in self.pass_plan.reuses:
            nodes.append(Halo(_sentence(WHY["fetch"]), self._neighbour_axes(), self.framed))
        nodes += self._gathers()
        nodes += self._all_steps()
        return (*nodes, *self._end())

    def _given(self, tensor: Tensor) -> str:
        """The statement that refuses a share of another shape or dtype."""
        own = f"{self.var(tensor)}_own"
        return f'context.check_shard("{self.role(tensor)}", {own}, owned_{tensor.lower()}(at), DTYPE)'

    def _look(self, var: str, step: str = "step") -> str:
        """The statement that looks for NaN in what a step leaves."""
        return f'context.check_finite("{self.role(self.written)}", {step}, {var})'

    def _fetches(self) -> list[Tensor]:
        return [t for t in self.pass_plan.reads if self.arrives(t) and self.loops]

    def _bring(self, tensor: Tensor) -> Bring:
        names = self.touched(tensor), self.here(tensor), self.carried(tensor)
        return Bring(tensor, self.role(tensor), *names, LACKED_INDEX[tensor])

    def _gathers(self) -> list[Node]:
        """Slices that come whole: all are on their way before the first is waited for."""
        gathers = [self._gather(tensor) for tensor in self.at_once]
        starts = [gather for gather in gathers if not (self.early and gather.tensor == "Ker")]
        if len(gathers) == len(starts) < 2:
            return [replace(gather, alone=True) for gather in gathers]
        slices = ", ".join(f"{gather.var}_slice" for gather in gathers)
        arrive = ", ".join(f"wait_gather({gather.var}_pending)" for gather in gathers)
        return [*starts, Text((f"{slices} = {arrive}",))]

    def prefetch(self) -> Function:
        """The function that starts to gather Ker for a pass that only waits for it."""
        gather = replace(self._gather("Ker"), early=self.pass_plan.pass_)
        about = "Start to gather this rank's slice of Ker, possibly before the layer's turn."
        return Function("prefetch_ker", "ker_own", (about,), (gather,))

    def _gather(self, tensor: Tensor) -> Gather:
        phase, step = "loop", 0
        whole = [gather.tensor for gather in self.program.gathers]
        if tensor in whole:
            phase, step = "expand", whole.index(tensor)
        common = vars(self._bring(tensor))
        return Gather(**common, why=self._why("gather", tensor), phase=phase, step=step)

    def _start(self, tensor: Tensor) -> tuple[Node, ...]:
        start: Node = Start(**vars(self._bring(tensor)))
        if tensor in self.skewed:
            start = StartOwn(**vars(self._bring(tensor)), tile=self.tile("peer"))
        why = Text((f"# {self._why('gather', tensor)}",))
        condition = self._changes(tensor, "step")
        return (why, When(condition, (start,))) if condition else (why, start)

    def _changes(self, tensor: Tensor, step: str) -> str:
        """The condition under which a step begins another tile of a tensor; empty if it always does."""
        if self.loops[-1] in DIMS[tensor]:
            return ""
        axes = [f'"{axis}"' for axis in self.loops if axis in DIMS[tensor]]
        if not axes:  # one tile for all steps
            return "step == 0" if step == "step" else f"step + 1 == {self.steps}"
        self.asks_changes = True
        return f"changes({', '.join([step + self.tiles, *axes])})"

    # -- the loop -------------------------------------------------------------------------------------

    def _all_steps(self) -> list[Node]:
        named = self._names_block()
        if not self.loops:
            return self._one_step(("block = work(at)",) if named else ())
        nodes = self._loop(named)
        if self.leaves and not self.overlap:
            nodes.append(self._collect())
        return nodes

    def _collect(self) -> Text:
        var = self.var(self.written)
        return Text((f"wait_reduces(pending_sums, {var}, {var}_box)",))

    def _loop(self, named: bool) -> list[Node]:
        body: list[Node] = [Text((f"block = {self.tile()}",))] if named else []
        if not self._fetches():
            return [Text(self._begin()), Steps(self.steps, (*body, *self._step()))]
        starts = tuple(node for tensor in self._fetches() for node in self._start(tensor))
        fetch = Fetch("" if {*self._fetches()} <= {*self.skewed} else self.tile(), starts)
        loop = Steps(self.steps, (*body, Receive(self.steps), *self._filled(), *self._step()))
        begin = Text((*self._begin(), *self._empty()))
        return [begin, fetch, Text(("panels, pending = {}, fetch(0)",)), loop]

    def _empty(self) -> list[str]:
        """Slices that panels are to fill."""
        lines = []
        for tensor in self.fills:
            box, whole = f"{self.var(tensor)}_box", self.whole(tensor)
            lines += [
                f"{box} = {self.touched(tensor)}(work(at))",
                f"{whole} = {self.here(tensor)}.new_empty(shape({box}))",
            ]
        return lines

    def _filled(self) -> list[Node]:
        """Panels are put into those slices."""
        lines = []
        for tensor in self.fills:
            place = f"within({self.touched(tensor)}(block), {self.var(tensor)}_box)"
            lines.append(f'{self.whole(tensor)}[{place}] = panels["{self.role(tensor)}"]')
        return [Text(("# later passes find what this fills", *lines))] if lines else []

    def _one_step(self, block: tuple[str, ...]) -> list[Node]:
        var, kernel = self.var(self.written), self._kernel()[1]
        if self.grouped(self.written):
            return [Text((self._begin()[0], *block, f"{var} = {kernel}", self._look(var, "0")))]
        name = f"{var} =" if self.returns or self.kept else "return"
        return [Text((*block, f"{name} {kernel}"))]

    def _begin(self) -> tuple[str, ...]:
        """The box of what is summed here, and its zeros."""
        var, written = self.var(self.written), self.written
        away = self.leaves and self.loops
        box = self.carried(written) + "(at)" if away else self.touched(written) + "(work(at))"
        like = next(name for name in self.parameters if name != PENDING)
        begin = f"{var}_box = {box}", f"{var} = {like}.new_zeros(shape({var}_box))"
        return (*begin, "pending_sums = []") if away else begin

    def _step(self) -> list[Node]:
        """The local kernel, and what follows when the result leaves panel by panel."""
        var, written = self.var(self.written), self.written
        lines, kernel = self._kernel()
        if self.leaves:
            return self._hand_over(lines, kernel)
        if any(axis in DIMS[written] for axis in self.loops):
            lines.append(f"place = within({self.touched(written)}(block), {var}_box)")
            lines.append(f"{var}[place] += {kernel}")
        else:
            lines.append(f"{var} += {kernel}")
        return [Text((*lines, self._look(var)))]

    def _kernel(self) -> tuple[list[str], str]:
        """The statements before the local kernel, and the expression that it is."""
        lines: list[str] = []
        operands = []
        for tensor in self.pass_plan.reads:
            operand, before = self._operand(tensor)
            lines += before
            operands.append(operand)
        kind = self.plan.layer.kind
        form = (PRODUCTS if kind == "matmul" else KERNELS)[self.pass_plan.pass_]
        return lines, form.format(conv=kind, one=operands[0], other=operands[1])

    def _names_block(self) -> bool:
        """Whether a step says which block of the nest it works on."""
        local = (t for t in TENSORS if t == self.written or not self.arrives(t))
        tiled = any(axis in DIMS[t] for t in local for axis in self.loops)
        away = bool(self.loops) and (self.leaves or bool(self.fills))
        return self.plan.layer.kind != "matmul" or away or tiled

    def _hand_over(self, lines: list[str], kernel: str) -> list[Node]:
        leave = HandOver(**vars(self._reduce()))
        begins = self._changes(self.written, "step")
        if not begins:
            return [Text((*lines, f"sums = {kernel}", self._look("sums"))), leave]
        panel = f"another panel of {self.role(self.written)} begins"
        fresh = When(begins, (Text((f"sums = 0  # {panel}",)),))
        add = Text((*lines, f"sums += {kernel}", self._look("sums")))
        return [fresh, add, When(self._changes(self.written, "step + 1"), (leave,))]

    def _reduce(self) -> Reduce:
        written = self.written
        names = self.var(written), self.touched(written), self.carried(written)
        return Reduce(self._why("reduce", written), written, *names, LACKED_INDEX[written])

    def _operand(self, tensor: Tensor) -> tuple[str, list[str]]:
        """What the local kernel takes of a tensor, and the statements that make it."""
        var = self.var(tensor)
        if self.arrives(tensor) and self.loops:
            return f'panels["{self.role(tensor)}"]', []
        whole = self.whole(tensor)
        if not any(axis in DIMS[tensor] for axis in self.loops):
            return whole, []
        frame = f"{self.carried(tensor)}(at)"
        if self.grouped(tensor):
            named = tensor not in self.pass_plan.reuses and self.given(tensor) != PENDING
            frame = f"{var}_box" if named else f"{self.touched(tensor)}(work(at))"
        cut = f"{var}_tile = {whole}[within({self.touched(tensor)}(block), {frame})]"
        if len(cut) <= WIDTH - 4:
            return f"{var}_tile", [cut]
        return f"{var}_tile", [f"{var}_box = {frame}", cut.replace(frame, f"{var}_box")]

    # -- the end --------------------------------------------------------------------------------------

    def _end(self) -> list[Node]:
        if self.overlap:
            return [*self._release(), *self._later()]
        nodes = self._release()
        result = self.var(self.written)
        if self.grouped(self.written) and not (self.leaves and self.loops):
            phase = "loop" if self.leaves else "reduce"
            last = not (self.returns or self.kept)
            nodes.append(Finish(**vars(self._reduce()), phase=phase, into="return" if last else "total ="))
            if last:
                return nodes
            if self.returns:
                nodes.append(Text((f"del {result}",)))
            result = "total"
        elif self.returns and self.leaves:
            nodes.append(Text(("del sums",)))
        elif not (self.loops or self.returns or self.kept):
            return nodes  # the one kernel call is what is returned
        if self.returns:
            nodes.append(self._give_back("din_own =" if self.kept else "return", result))
            result = "din_own"
        if self.kept or not self.returns:
            nodes.append(Text((f"return {', '.join([result, *self.kept])}",)))
        return nodes

    def _release(self) -> list[Node]:
        """Before a result that was here all the time leaves: forget what it is made of."""
        if self.pass_plan.stationary != self.written or not (self.grouped(self.written) or self.returns):
            return []
        if self._fetches():
            names = ["panels"]
        else:
            slices = [t for t in self.at_once if t not in self.pass_plan.saves]
            names = [f"{self.var(t)}_{what}" for t in slices for what in ("slice", "pending")]
        return [Text((f"del {', '.join(names)}  # what follows needs room",))] if names else []

    def _later(self) -> list[Node]:
        """The end when sums go on travelling: what remains to be done is a function for the caller."""
        nodes: list[Node] = []
        result, remains = self.var(self.written), list[Node]()
        if self.leaves and self.loops:
            remains.append(self._collect())
        else:
            phase, total = "loop" if self.leaves else "reduce", "total = " if self.returns else "return "
            nodes.append(Finish(**vars(self._reduce()), phase=phase, into=""))
            remains.append(Text((f"{total}wait_reduce(pending_sum)",)))
            result = "total"
        if self.returns:
            remains.append(self._give_back("return", result))
        elif self.leaves and self.loops:
            remains.append(Text((f"return {result}",)))
        about = f"Wait for the sums of {self.role(self.written)} that still travel."
        nodes.append(Later(about, tuple(remains)))
        return [*nodes, Text((f"return {', '.join(['finish', *self.kept])}",))]

    def _give_back(self, into: str, sums: str) -> GiveBack:
        return GiveBack(_sentence(WHY["return"]), self._neighbour_axes(), into, sums)

    # -- words ----------------------------------------------------------------------------------------

    def _neighbour_axes(self) -> str:
        shared = any(dim in "dhw" for dim, _ in self.distribution.shares["In"])
        axes = [a for a in ("d", "h", "w", *("k" * shared)) if getattr(self.plan.grid, a) > 1]
        return f"({', '.join(repr(a) for a in axes)}{',' * (len(axes) == 1)})".replace("'", '"')

    def _why(self, kind: str, tensor: Tensor) -> str:
        return _sentence(WHY[kind].format(along=LACKED_INDEX[tensor], tensor=self.role(tensor)))


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."
