"""Plan → Program: decide every number, name and statement of the text."""

from __future__ import annotations

from codegen.coordinates import carries_more, tensor_texts, work_intervals
from codegen.facts import constants, header, title
from codegen.names import in_docstring
from codegen.program import (
    Broadcast,
    Fetch,
    Finish,
    Gather,
    Halo,
    HandOver,
    Node,
    Program,
    Receive,
    Start,
    Steps,
    Text,
    When,
)
from synth.axes import DIMS, LACKED_INDEX, TENSORS, Tensor
from synth.plan import Plan
from synth.schedule import WHY


def lower(plan: Plan, command: str) -> Program:
    """The program of a plan. `command` is the line that emits it, for its header."""
    loops = plan.tiling.loops()
    form = _Form(plan)
    run = form.statements()
    return Program(
        title=title(plan),
        command=in_docstring(command, "the command"),
        plan=plan.id,
        header=header(plan),
        constants=constants(plan),
        work=work_intervals(plan),
        tile="the block" if not loops else "one loop" if len(loops) == 1 else "nested loops",
        loop_axis=loops[0] if loops else "",
        asks_changes=form.asks_changes,
        tensors=tensor_texts(plan),
        broadcasts=any(form.grouped(tensor) for tensor in ("In", "Ker")),
        reduces=form.grouped("Out"),
        run=run,
        conv="" if plan.layer.kind == "matmul" else f"F.{plan.layer.kind}",
        idle=plan.procs > plan.used_procs,
    )


class _Form:
    """The statements of `run` for one plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.tiling, self.distribution = plan, plan.tiling, plan.distribution
        self.loops = plan.tiling.loops()
        self.halo = carries_more(plan)
        self.asks_changes = False

    def grouped(self, tensor: Tensor) -> bool:
        """Whether several ranks share a slice of the tensor."""
        return self.distribution.group_size(tensor) > 1

    def moves(self, tensor: Tensor) -> bool:
        """Whether the tensor comes, or leaves, panel by panel."""
        return tensor != self.tiling.stationary and self.grouped(tensor)

    def statements(self) -> tuple[Node, ...]:
        """All of `run`."""
        nodes: list[Node] = []
        if self.halo:
            nodes.append(Halo(_sentence(WHY["halo"]), self._neighbour_axes()))
        nodes += [self._gather(t) for t in ("In", "Ker") if self._comes_whole(t)]
        nodes += self._all_steps()
        if not self.moves("Out") and self.grouped("Out"):
            return (*nodes, Finish(self._why("reduce", "Out")))
        if self.loops or self.moves("Out"):
            nodes.append(Text(("return out",)))
        return tuple(nodes)

    # -- what comes in --------------------------------------------------------------------------------

    def _comes_whole(self, tensor: Tensor) -> bool:
        return self.grouped(tensor) and (tensor == self.tiling.stationary or not self.loops)

    def _fetches(self) -> list[Tensor]:
        return [t for t in ("In", "Ker") if self.moves(t) and self.loops]

    def _broadcast(self, tensor: Tensor) -> Broadcast:
        here, carried = self._here(tensor)
        return Broadcast(tensor, tensor.lower(), here, carried, LACKED_INDEX[tensor])

    def _here(self, tensor: Tensor) -> tuple[str, str]:
        """The variable with what this rank carries, and the function that says its box."""
        if tensor == "In" and self.halo:
            return "in_wide", "carried_in"
        return f"{tensor.lower()}_own", f"owned_{tensor.lower()}"

    def _gather(self, tensor: Tensor) -> Gather:
        phase = "expand" if tensor == self.tiling.stationary else "loop"
        return Gather(**vars(self._broadcast(tensor)), why=self._why("broadcast", tensor), phase=phase)

    def _start(self, tensor: Tensor) -> tuple[Node, ...]:
        start = Start(**vars(self._broadcast(tensor)))
        why = Text((f"# {self._why('broadcast', tensor)}",))
        condition = self._changes(tensor, "step")
        return (why, When(condition, (start,))) if condition else (why, start)

    def _changes(self, tensor: Tensor, step: str) -> str:
        """The condition under which a step begins another tile of a tensor; empty if it always does."""
        if self.loops[-1] in DIMS[tensor]:
            return ""
        axes = [f'"{axis}"' for axis in self.loops if axis in DIMS[tensor]]
        if not axes:  # one tile for all steps
            return "step == 0" if step == "step" else "step + 1 == STEPS"
        self.asks_changes = True
        return f"changes({', '.join([step, *axes])})"

    # -- the loop -------------------------------------------------------------------------------------

    def _all_steps(self) -> list[Node]:
        box = "owned_out(at)" if self.moves("Out") else "touched_out(work(at))"
        begin = f"out_box = {box}", "out = in_own.new_zeros(shape(out_box))"
        named = self._names_block()
        if not self.loops:
            block = ("block = work(at)",) if named else ()
            if self.moves("Out"):
                return [Text((*begin, *block)), *self._step("0")]
            kernel = self._kernel()[1]
            if self.grouped("Out"):
                return [Text((begin[0], *block, f"out = {kernel}"))]
            return [Text((*block, f"return {kernel}"))]
        body: list[Node] = [Text(("block = tile(at, step)",))] if named else []
        if not self._fetches():
            return [Text(begin), Steps((*body, *self._step("step")))]
        fetch = Fetch(tuple(node for tensor in self._fetches() for node in self._start(tensor)))
        loop = Steps((*body, Receive(), *self._step("step")))
        return [Text(begin), fetch, Text(("panels, coming = {}, fetch(0)",)), loop]

    def _step(self, step: str) -> list[Node]:
        """The local kernel, and what follows when Out leaves panel by panel."""
        lines, kernel = self._kernel()
        if self.moves("Out"):
            return self._hand_over(lines, kernel, step)
        if any(axis in DIMS["Out"] for axis in self.loops):
            lines += [f"term = {kernel}", "out[within(touched_out(block), out_box)] += term"]
        else:
            lines.append(f"out += {kernel}")
        return [Text(tuple(lines))]

    def _kernel(self) -> tuple[list[str], str]:
        """The statements before the local kernel, and the expression that it is."""
        lines: list[str] = []
        operands = []
        for tensor in ("In", "Ker"):
            operand, before = self._operand(tensor)
            lines += before
            operands.append(operand)
        if self.plan.layer.kind == "matmul":
            return lines, f"{operands[0]} @ {operands[1]}.mT"
        return lines, f"convolve(F.{self.plan.layer.kind}, {', '.join(operands)}, block, WINDOWS)"

    def _names_block(self) -> bool:
        """Whether a step says which block of the nest it works on."""
        local = (t for t in TENSORS if not (self.moves(t) and t != "Out"))
        tiled = any(axis in DIMS[t] for t in local for axis in self.loops)
        return self.plan.layer.kind != "matmul" or self.moves("Out") or tiled

    def _hand_over(self, lines: list[str], kernel: str, step: str) -> list[Node]:
        leave = HandOver(self._why("reduce", "Out"), step)
        begins = self._changes("Out", "step") if self.loops else ""
        if not begins:
            return [Text((*lines, f"sums = {kernel}")), leave]
        fresh = When(begins, (Text(("sums = 0  # another panel of Out begins",)),))
        add = Text((*lines, f"sums += {kernel}"))
        return [fresh, add, When(self._changes("Out", "step + 1"), (leave,))]

    def _operand(self, tensor: Tensor) -> tuple[str, list[str]]:
        """What the local kernel takes of a tensor, and the statements that make it."""
        var = tensor.lower()
        if self.moves(tensor) and self.loops:
            return f'panels["{tensor}"]', []
        whole, frame = self._here(tensor)
        frame = f"{frame}(at)"
        if self.grouped(tensor):
            whole, frame = f"{var}_slice", f"{var}_box"
        if not any(axis in DIMS[tensor] for axis in self.loops):
            return whole, []
        return f"{var}_tile", [f"{var}_tile = {whole}[within(touched_{var}(block), {frame})]"]

    # -- words ----------------------------------------------------------------------------------------

    def _neighbour_axes(self) -> str:
        shared = any(dim in "dhw" for dim, _ in self.distribution.shares["In"])
        axes = [a for a in ("d", "h", "w", *("k" * shared)) if getattr(self.plan.grid, a) > 1]
        return f"({', '.join(repr(a) for a in axes)}{',' * (len(axes) == 1)})".replace("'", '"')

    @staticmethod
    def _why(kind: str, tensor: Tensor) -> str:
        return _sentence(WHY[kind].format(along=LACKED_INDEX[tensor], tensor=tensor))


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."
